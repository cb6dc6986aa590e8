"""`orch ci`: workflows of a project, and what they post to a forge. Start at `ci.py`."""
