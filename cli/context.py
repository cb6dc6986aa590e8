"""The project a command is about: the one of a file or folder, or its rehearsal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.errors import tell

if TYPE_CHECKING:
    from orch.stacks.project import Project

Rehearse = Annotated[
    bool, typer.Option("--rehearse", help="On a simulated cloud, with local nodes for its instances.")
]


def project_at(path: Path | str | None = None, *, rehearse: bool = False) -> Project:
    """The project of a path (default: here). Raises ProjectError."""
    from orch.stacks.project import find
    from orch.stacks.trust import open_to_all

    project = find(path)
    if exposed := open_to_all(project.root, project.local_state):
        tell(f"warning: every user of this machine may change {exposed}; close it: `chmod o-w {exposed}`")
    if not rehearse:
        return project
    from orch.rehearsal.project import rehearse as begin

    tell("rehearsal: the cloud is simulated, nothing is made there and nothing costs")
    return begin(project).project
