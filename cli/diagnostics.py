"""Reading the files of a verb, and telling what is doubtful in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from orch.cli.errors import tell

if TYPE_CHECKING:
    from orch.spec import Document


def load(
    path: str,
    *,
    launch: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    untrusted: Iterable[str] | None = None,
    backends: Iterable[str] = (),
) -> tuple[Document, ...]:
    """The documents of a file or folder. Warnings are told; errors are raised, all at once.

    Kinds in `launch` are about to be acted on: what they lack outside the file is an error there, and so is a
    property that this version would ignore. `untrusted`, `backends`: as in `load_paths`.
    """
    from orch.spec import load_paths
    from orch.spec.diagnostics import render_human

    loaded = load_paths(
        [path], launch=launch, environ=environ, untrusted=untrusted, backends=backends
    ).require()
    if loaded.diagnostics:
        tell(render_human(loaded.diagnostics))
    return loaded.documents
