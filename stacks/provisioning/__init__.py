"""Bringing a fleet up: where there is room, all of its nodes or none, and on none that is busy."""
