"""Instances and their capacity in Compute Engine's API."""
