"""`starsd-edge export`: a checkpoint becomes a bundle, a bundle an engine."""
