"""`starsd-edge check`: does a bundle compute what its model computes."""
