"""`starsd-edge doctor`: is everything there, and what would a hub be worth."""
