"""The language: YAML text to typed, immutable models, and every mistake pointed at by file, line and column.

Imports nothing of orch but itself, and looks at nothing outside the files it is given. Start at
`loader/load.py` (`load_paths`), then `models/` (what can be written), `grammar/` (how a value reads) and
`rules/` (what must hold together).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orch.spec.diagnostics import Diagnostic, Severity, Span
    from orch.spec.loader.load import Document, InvalidConfiguration, Loaded, load_paths

__all__ = ["Diagnostic", "Document", "InvalidConfiguration", "Loaded", "Severity", "Span", "load_paths"]

_HOME = {
    "Diagnostic": "diagnostics",
    "Severity": "diagnostics",
    "Span": "diagnostics",
    "Document": "loader.load",
    "InvalidConfiguration": "loader.load",
    "Loaded": "loader.load",
    "load_paths": "loader.load",
}


def __getattr__(name: str) -> object:
    """Loads the reader on first use: whoever needs only `orch.spec.errors` does not wait for pydantic."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
