"""Errors about the user's files, shown as diagnostics with their place; and reading files for a verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch.cli.outcome import tell

if TYPE_CHECKING:
    from orch.components.plan import PlanError
    from orch.spec import Document
    from orch.spec.errors import OrchError


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


def placed(error: PlanError, document: Document) -> OrchError:
    """A plan's error, which knows a property, as a diagnostic with that property's place in the file."""
    from orch.spec import InvalidConfiguration

    found = document.diagnostic(
        error.code or "ORCH200", error.path, error.summary, detail=error.detail, hint=error.hint
    )
    return InvalidConfiguration((found,))


def diagnostics_of(error: OrchError) -> str | None:
    """The diagnostics an error carries, rendered; None when it carries none."""
    from orch.spec import InvalidConfiguration
    from orch.spec.diagnostics import render_human

    return render_human(error.diagnostics) if isinstance(error, InvalidConfiguration) else None
