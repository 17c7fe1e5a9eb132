"""The hub: queue, drafting thread, drafters, sessions and the front door."""

import starsd_edge  # noqa: F401 (tells libraries to keep quiet before one of them is imported)
