"""Tables of simulated clouds: CSV files beside the module that reads them, with `#` before comments."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib import resources


def read_text(module: str, name: str) -> str:
    """Return a file of a folder. `module`: the name of a module in it."""
    return resources.files(module.rpartition(".")[0]).joinpath(name).read_text("utf-8")


def read_rows(module: str, name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table in the folder of a module."""
    text = read_text(module, name)
    yield from csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
