"""The Pulumi CLI: find or install it (`install.py`), start it and read its events (`process.py`)."""
