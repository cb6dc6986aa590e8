"""Networks in Compute Engine's API."""
