"""Weights in few bits for TensorRT: a search on the model's own text, and what it did to the perplexity."""
