"""What EC2's machine types are, and what they cost."""
