"""What verbs share: their options, and the project that a command works in."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from orch.cli import completion
from orch.cli.errors import project_begins, rehearsal_begins, tell

if TYPE_CHECKING:
    from orch.stacks.project.project import Project

ALSO = "Also as `-f FILE`."

File = Annotated[str, typer.Argument(metavar="FILE", help=f"A YAML file, a folder of them, or -. {ALSO}")]
FileOrName = Annotated[
    str,
    typer.Argument(
        metavar="FILE|NAME",
        help=f"A fleet's file, or its name. {ALSO}",
        autocompletion=completion.files_or_fleets,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Data on stdout, for pipelines.")]
Indices = Annotated[
    list[int] | None,
    typer.Option("--instance", "-i", metavar="INDEX", help="Only this node of the fleet; repeatable."),
]
NewKeys = Annotated[
    bool,
    typer.Option(
        "--accept-new-host-keys",
        help="Trust hosts whose keys nobody has seen yet; a changed key is refused.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Every property that changes, also what only follows."),
]
Force = Annotated[bool, typer.Option("--force", help="Remove nodes also while runs are on them.")]
Forget = Annotated[
    bool,
    typer.Option(
        "--forget",
        help="Drop resources from the record although all of a cloud's are gone at once (ORCH349).",
    ),
]
Owner = Annotated[
    str | None,
    typer.Option("--owner", metavar="NAME", help="Who changes it, as leases name them; default USER@HOST."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
OnFleet = Annotated[
    str | None,
    typer.Option("--fleet", help="The fleet to run on.", autocompletion=completion.fleets),
]
Variables = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="K=V", help="A variable for the job; repeatable."),
]
Profile = Annotated[
    str | None,
    typer.Option("--profile", "-P", metavar="NAME", help="The profile of orch.yml to read tasks with."),
]
Port = Annotated[
    list[str] | None,
    typer.Option(
        "--port",
        metavar="[LOCAL:]JOB",
        help="Forward this port of the job, from another one here than the task says; repeatable.",
    ),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Return at once; the run goes on.")]
Untrusted = Annotated[
    bool,
    typer.Option(
        "--untrusted", help="For files of strangers: no environment, no file outside their repository."
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="NAME", help="A variable or path that they may name; it is not read. Repeatable."
    ),
]
REHEARSE = "ORCHCTL_REHEARSE"
"""The variable that is as `--rehearse`: shells of a rehearsed runbook have it, so that each `orch` in them is
rehearsed."""
Rehearse = Annotated[
    bool,
    typer.Option(
        "--rehearse",
        envvar=REHEARSE,
        show_envvar=False,
        help="On a simulated cloud, with local nodes for its instances.",
    ),
]
TraceOption = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="Send OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT, by default this machine's port 4318.",
    ),
]


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
    """How long a lease lasts, as an option says. Raises BadParameter."""
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
