"""Create nodes for runs, and remove what runs and killed calls leave behind."""
