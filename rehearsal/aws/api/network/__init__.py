"""The part of EC2's API that is about networks."""
