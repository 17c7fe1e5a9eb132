"""Everything beside the target model: the decode loop and the link to the hub."""

import starsd_edge  # noqa: F401 (tells libraries to keep quiet before one of them is imported)
