"""The secrets of a project: `values.py` reads them, `store.py` changes them."""
