"""The hub: queue, drafting thread, drafters, sessions and the front door."""
