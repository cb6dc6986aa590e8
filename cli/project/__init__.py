"""Verbs on a project as a whole: its folder, its state, its secrets, its log."""
