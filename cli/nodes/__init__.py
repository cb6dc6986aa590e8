"""Verbs that maintain nodes that are up, by plan and in waves."""
