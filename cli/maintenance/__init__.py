"""Changes nodes that are up, by plan and in waves, and checks whether they may take jobs; for any verb."""
