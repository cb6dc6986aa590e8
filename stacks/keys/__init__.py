"""Rotate the key pair of a fleet, and set the secrets of a project."""
