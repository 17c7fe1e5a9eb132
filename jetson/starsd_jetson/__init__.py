"""Everything beside the target model: the decode loop and the link to the hub."""
