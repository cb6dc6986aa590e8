"""From a task and chosen nodes to a run plan: files, volumes, launchers. Pure, but for `files.py`."""
