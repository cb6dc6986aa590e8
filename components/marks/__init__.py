"""Resources with the marks of orch, as clouds list them: surveys, and what a killed call left."""
