"""Verbs on nodes: they check, examine, cordon and maintain them, list them, and log in."""
