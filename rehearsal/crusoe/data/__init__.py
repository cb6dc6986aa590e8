"""What the simulated Crusoe sells, and where."""
