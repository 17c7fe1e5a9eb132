"""In which order waiting requests are drafted, and which of them together. Pure: clocks are handed in."""
