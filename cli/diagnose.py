"""Reading the files of a verb, and telling what is doubtful in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from orch.cli.outcome import tell

if TYPE_CHECKING:
    from orch.spec import Document


def load(
    path: str, *, launch: Iterable[str] = (), environ: Mapping[str, str] | None = None
) -> tuple[Document, ...]:
    """The documents of a file or folder. Warnings are told; errors are raised, all at once.

    Kinds in `launch` are about to be acted on: what they lack outside the file is an error there, and so is a
    property that this version would ignore.
    """
    from orch.spec import load_paths
    from orch.spec.diagnostics import render_human

    loaded = load_paths([path], launch=launch, environ=environ).require()
    if loaded.diagnostics:
        tell(render_human(loaded.diagnostics))
    return loaded.documents


def refuse_ignored(document: Document) -> None:
    """A preview shows what `up` would do: a property that `up` refuses is refused here too."""
    from orch.spec import InvalidConfiguration
    from orch.spec.diagnostics import Severity, render_human
    from orch.spec.unsupported import not_acted_on

    found = not_acted_on(document)
    if any(each.severity is Severity.ERROR for each in found):
        raise InvalidConfiguration(found)
    if found:
        tell(render_human(found))
