"""Verbs that act on fleets and on what is left of them."""
