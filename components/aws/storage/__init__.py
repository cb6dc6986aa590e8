"""Shared file systems of AWS that are created with a fleet: who reaches them, and their resources."""
