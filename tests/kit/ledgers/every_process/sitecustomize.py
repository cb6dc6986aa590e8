"""What Python runs at the start of each process of tests whose ledgers are on PostgreSQL."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "postgres_ledgers.py"))["use"]()
