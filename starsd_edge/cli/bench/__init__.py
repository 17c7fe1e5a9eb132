"""`starsd-edge bench`: measure. One module per benchmark."""
