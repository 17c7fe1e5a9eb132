"""`starsd-edge demo`: a hub and some targets on this machine, side by side."""
