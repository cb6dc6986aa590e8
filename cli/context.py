"""The project a command is about: the one of a file or folder, or its rehearsal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

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


ALSO = "Also as `-f FILE`."
_OPTIONS = ("-f", "--file")


class FileCommand(TyperCommand):
    """A verb whose first argument may be written with `-f`, `--file` or `--file=` before it, anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, positional(args))


def positional(args: list[str]) -> list[str]:
    """The same arguments with what stands after `-f` as an argument, in its place."""
    end = args.index("--") if "--" in args else len(args)
    found = list[str]()
    for at, word in enumerate(args[:end]):
        if word.startswith("--file="):
            found.append(word.removeprefix("--file="))
        elif word not in _OPTIONS:
            found.append(word)
        elif at + 1 == end:
            raise typer.BadParameter("a file is expected after it", param_hint=word)
    return [*found, *args[end:]]
