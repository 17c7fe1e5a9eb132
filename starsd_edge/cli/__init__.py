"""The command line: one module per command; it parses, prints and hands over."""
