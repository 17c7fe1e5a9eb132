"""`starsd-edge run-draft`: the draft server."""
