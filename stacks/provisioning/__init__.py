"""Brings a fleet up where there is capacity, all of its nodes or none, and keeps nodes with runs."""
