"""The verbs on arrays of runs, and on members of them by their indexes."""
