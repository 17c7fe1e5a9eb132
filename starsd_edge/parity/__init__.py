"""Whether two things that should compute the same do: passes that show it, how they are compared, what is found."""
