"""What existing hosts must be: one module per group of checks."""
