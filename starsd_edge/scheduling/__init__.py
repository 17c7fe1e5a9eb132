"""The order of a hub's queue, for the hub itself and for the simulator."""
