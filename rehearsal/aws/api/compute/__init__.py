"""Instances and their capacity in EC2's API."""
