"""Facts about clouds: GPU models, instance types, prices and zones, as data files and typed loaders.

Imports `spec` only; holds no rules and calls no network, but for `refresh.py`. Start at `load.py`; the files
are `gpus.csv`, `types.csv` and a `prices-BACKEND.csv` each with its source and date in the first lines.
"""
