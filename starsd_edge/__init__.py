"""One draft model speeds up many language models on edge devices, without changing a token of what they say."""

__version__ = "0.1.0"
