"""What is reached of a run from this machine while it runs, or after: its ports, its files."""
