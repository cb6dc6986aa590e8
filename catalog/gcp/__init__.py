"""What Compute Engine's machine types are."""
