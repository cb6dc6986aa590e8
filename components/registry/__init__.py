"""The backends by name, and calls of them that are not of one backend alone."""
