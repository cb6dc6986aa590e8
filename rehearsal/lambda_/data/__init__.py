"""What the simulated Lambda sells, and where."""
