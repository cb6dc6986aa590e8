"""Reading the files of a verb, and telling what is doubtful in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch.cli.outcome import tell

if TYPE_CHECKING:
    from orch.spec import Document


def load(path: str, *, launch: bool = False) -> tuple[Document, ...]:
    """The documents of a file or folder. Warnings are told; errors are raised, all at once.

    With `launch` a variable that is not set is an error: its value is needed now.
    """
    from orch.spec import load_paths
    from orch.spec.diagnostics import render_human

    loaded = load_paths([path], launch=launch).require()
    if loaded.diagnostics:
        tell(render_human(loaded.diagnostics))
    return loaded.documents
