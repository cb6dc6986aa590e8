"""What the simulated Nebius does for each method of its services: the rules, in Nebius's own messages."""
