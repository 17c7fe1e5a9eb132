"""`starsd-edge plan`: what a star would give, before it is built."""
