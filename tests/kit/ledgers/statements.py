"""Statements of SQL are put into words once for all ledgers of a process.

Each engine of SQLAlchemy does that for itself: a fourth of what a short test with a ledger of its own takes.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite as Dialect
from sqlalchemy.util import LRUCache


def share() -> None:
    """Have engines for SQLite that are made from now on share what was compiled.

    What is kept goes by the dialect, which each engine has one of; those of SQLite are all alike here.
    """
    kept: LRUCache[Any, Any] = LRUCache(500)
    made = Engine.__init__

    def make(self: Engine, *given: Any, **more: Any) -> None:
        made(self, *given, **more)
        if type(self.dialect) is Dialect:
            self._compiled_cache = kept

    Engine.__init__ = make  # type: ignore[method-assign]
    Dialect.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
    Dialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
