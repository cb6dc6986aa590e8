"""A document between text and model: YAML nodes with their places, and drafts with their diagnostics.

Knows no rules. `loader/` reads documents, `rules/` judges them.
"""
