"""Every test with its ledgers on PostgreSQL: `ORCHCTL_TEST_LEDGER=postgresql` before `make test` or pytest.

A ledger that a test, or a command that it calls, would keep in a file of SQLite is then a schema of one
database, named after the file. That holds in every process: in those that tests start, Python runs
`every_process/sitecustomize.py` first. Tests of SQLite's own file have the mark `sqlite` and are left out.

A project that names no ledger has the schema's URL as if its `orch.yml` named it; a URL of a file that a test
opens itself is replaced where the ledger reads it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

CHOICE = "ORCHCTL_TEST_LEDGER"
SERVER = "ORCHCTL_TEST_LEDGER_SERVER"
"""The URL of the database that has the schemas, once it runs."""

_OPTION = "options=-csearch_path%3D"
_PREFIX = "sqlite:///"
_known: set[str] = set()


def chosen() -> bool:
    return os.environ.get(CHOICE) == "postgresql"


def url_of(file: Path) -> str:
    """The URL of the ledger that would be this file."""
    import hashlib

    name = hashlib.sha256(os.fsencode(file.absolute())).hexdigest()[:24]
    return f"{os.environ[SERVER]}&{_OPTION}ledger_{name}"


def _made(url: str) -> str:
    """The same URL; its schema is there."""
    if url in _known or _OPTION not in url:
        return url
    import psycopg

    with (
        psycopg.connect(os.environ[SERVER], autocommit=True) as database,
        suppress(psycopg.errors.UniqueViolation),  # another process makes it at this moment
    ):
        database.execute(f"CREATE SCHEMA IF NOT EXISTS {url.rpartition('%3D')[2]}".encode())
    _known.add(url)
    return url


def _change_project(module: Any) -> None:
    before: Callable[[Path, str], str] = module._ledger_url

    def ledger_url(root: Path, written: str) -> str:
        found = before(root, written)
        return url_of(Path(found.removeprefix(_PREFIX))) if written == f"{_PREFIX}.orch/ledger.db" else found

    module._ledger_url = ledger_url


def _change_database(module: Any) -> None:
    before: Callable[[str], Any] = module._parse_url

    def parse_url(url: str) -> Any:
        parsed = before(url)
        if parsed.get_backend_name() == "sqlite":
            return before(_made(url_of(Path(parsed.database))))
        _made(url)
        return parsed

    module._parse_url = parse_url


_CHANGES = {"orch.stacks.project.project": _change_project, "orch.runner.ledger.database": _change_database}


class _Changing(MetaPathFinder):
    """Changes these modules when they are imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _CHANGES:
            return None
        others = (each for each in sys.meta_path if not isinstance(each, _Changing))
        spec = next((found for each in others if (found := each.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _CHANGES[name])
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, change: Callable[[Any], None]) -> None:
        self._loader, self._change = loader, change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)


def use() -> None:
    """From here on, ledgers of this process and of those that it starts are on PostgreSQL.

    A process that was started by such a one has it from its start, by another copy of this module.
    """
    if any(type(each).__name__ == _Changing.__name__ for each in sys.meta_path):
        return
    for name, change in _CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, _Changing())
    folder = str(Path(__file__).with_name("every_process"))
    others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in ("", folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *others])
