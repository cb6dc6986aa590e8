"""The project that a command works in, and what several verbs read of their words."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from orch.cli.errors import project_begins, rehearsal_begins, tell

if TYPE_CHECKING:
    from orch.stacks.project.project import Project

MOST = 2**63 - 1
"""The largest number that a ledger counts."""
MOST_OWNER = 120
"""Characters of an owner's name: Pulumi Cloud takes 256 for the tag that has it."""


def project_at(
    path: Path | str | None = None,
    *,
    rehearse: bool = False,
    owner: str | None = None,
    forget: bool = False,
    tells: bool = True,
    keyless: bool = False,
) -> Project:
    """Return the project of a path (default: here). Raises ProjectError.

    `owner`: who changes its stacks; `forget`: see `Forget`; `keyless`: plans are made without the key of its
    state. `tells`: the command says which project it is, on stderr where that is not the folder here, and in
    its JSON; False for what other programs read in a form of their own.
    """
    from dataclasses import replace

    from orch.spec.suggest import few
    from orch.stacks.project.project import find
    from orch.stacks.project.roots import lost_stacks, rehearsals_below
    from orch.stacks.project.trust import open_to_all

    project = replace(find(path), keyless=keyless)
    if tells:
        project_begins(project.name, str(project.root))
    if exposed := open_to_all(project.root, project.local_state):
        tell(f"warning: every user of this machine may change {exposed}; close it: `chmod o-w {exposed}`")
    if lost := lost_stacks(project.root):
        tell(
            f"warning: {few(lost)}: their settings are in {project.dot}, their state is not, and there is no "
            "orch.yml\n"
            "  hint: if it said where the state is, put it back: without it `orch up` makes them anew"
        )
    if owner is not None:
        if not owner.strip() or not owner.isprintable() or len(owner) > MOST_OWNER:
            raise typer.BadParameter(
                f"an owner is one line of at most {MOST_OWNER} characters", param_hint="--owner"
            )
        project = replace(project, owner=owner.strip())
    project = replace(project, forget=forget)
    if not rehearse:
        _tell_of_rotation(project)
        return project
    from orch.rehearsal.project import rehearse as begin

    rehearsal_begins()
    tell("rehearsal: the cloud is simulated, nothing is made there and nothing costs")
    for folder in rehearsals_below("." if path is None else str(path), project.root):
        tell(
            f"note: {folder} has a rehearsal of its own, from when it was a project of its own\n"
            f"  hint: `orch init {shlex.quote(str(folder))}` makes it one again"
        )
    return begin(project).project


def _tell_of_rotation(project: Project) -> None:
    """Say what to do about a rotation of the passphrase that was interrupted."""
    from orch.stacks.project.passphrase import former_file, is_given, is_unfinished, new_file

    if not is_given() and is_unfinished(project):
        file = next(each for each in (new_file(project), former_file(project)) if each.exists())
        tell(
            f"warning: a rotation of the passphrase is not finished, some stacks may need {file}; "
            "`orch rotate passphrase` finishes it"
        )


def strangers(untrusted: bool, allow: list[str] | None) -> tuple[str, ...] | None:
    """Variables and paths that untrusted files may name; None for trusted files."""
    if allow and not untrusted:
        raise typer.BadParameter("it goes with --untrusted", param_hint="--allow")
    return tuple(allow or ()) if untrusted else None


_OPTIONS = ("-f", "--file")


class FileCommand(TyperCommand):
    """A verb whose first argument may be written with `-f`, `--file` or `--file=` before it, anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, positional(args))


def positional(args: list[str]) -> list[str]:
    """The arguments with the value of `-f` or `--file` in its place, as a positional one."""
    end = args.index("--") if "--" in args else len(args)
    options = list[str]()
    for at, word in enumerate(args[:end]):
        if word.startswith("--file="):
            options.append(word.removeprefix("--file="))
        elif word not in _OPTIONS:
            options.append(word)
        elif at + 1 == end:
            raise typer.BadParameter("a file is expected after it", param_hint=word)
    return [*options, *args[end:]]


_LONGEST_LEASE_S = 100 * 365 * 86_400


def lease_seconds(duration: str, option: str) -> int:
    """Return the duration of a lease, in seconds, that an option gives. Raises BadParameter."""
    from orch.spec.grammar.values import Problem, parse_duration

    try:
        seconds = parse_duration(duration)
    except Problem as problem:
        raise typer.BadParameter(str(problem), param_hint=option) from problem
    if not seconds:
        raise typer.BadParameter("a lease ends: write `8h` or `2d`", param_hint=option)
    if seconds > _LONGEST_LEASE_S:
        raise typer.BadParameter("a lease lasts 100 years at most: write `8h` or `2d`", param_hint=option)
    return seconds
