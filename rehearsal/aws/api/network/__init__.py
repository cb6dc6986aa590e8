"""Networks in EC2's API."""
