"""`starsd-edge monitor`: a live view of a hub and its targets."""
