"""What a star gives before it is built: the closed-form law, and the curve of verify times that it needs. Pure."""
