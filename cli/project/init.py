"""`orch init`: what a folder of fleets needs, for itself or for a team with a state that all use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.errors import UsageError, say, tell
from orch.spec.grammar.values import Problem, check_name

if TYPE_CHECKING:
    from orch.stacks.project.project import Project

MAIN = '''"""The Pulumi program of this folder's fleets; `orch` and `pulumi` run the same one."""

from orch.stacks.program import main

main()
'''


def init(
    folder: Annotated[str, typer.Argument(metavar="[FOLDER]", help="Where; default here.")] = ".",
    *,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="URL",
            help="The state that the project shares, as s3://BUCKET, gs://BUCKET, azblob://CONTAINER or "
            "file:///FOLDER; with --project.",
            show_default=False,
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="NAME", help="The project's name.", show_default=False),
    ] = None,
    secrets_provider: Annotated[
        str | None,
        typer.Option(
            "--secrets-provider",
            metavar="URL",
            help="What encrypts its secrets, as awskms://alias/NAME; else a passphrase does.",
            show_default=False,
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger",
            metavar="URL",
            help="The database of its runs, as postgresql://USER@HOST/DATABASE.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write what a GitOps folder needs so that `pulumi preview` and `pulumi up` work in it by hand.

    With --state also `orch.yml` for a team, and tell what is up there already.
    """
    from orch.stacks.errors import ProjectError
    from orch.stacks.project.project import find, project_in
    from orch.stacks.stack.state import project_file

    settings = {"project": project, "state": state, "secrets_provider": secrets_provider, "ledger": ledger}
    given = {name: value for name, value in settings.items() if value is not None}
    root = Path(folder).absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProjectError(
            "this folder cannot be made", where=str(root), detail=error.strerror or str(error), code="ORCH302"
        ) from error
    if given:
        _write_settings(root, given)
    elif not (root / "orch.yml").exists():
        # A folder inside another project becomes one of its own. What its `.orch` records stays its own.
        own = project_in(root) if (root / ".orch").is_dir() else None
        _write(root / "orch.yml", _settings(own.name) if own else f"project: {_named_after(root)}\n")
    found = find(root)
    found.prepare()
    _write(root / "Pulumi.yaml", project_file(found.name, ".orch/config"))
    _write(root / "__main__.py", MAIN)
    if state is not None:
        _tell_what_is_up(found)
    tell("now write a fleet, then `orch up fleet.yml`")
    tell('by hand, NAME being the fleet: eval "$(orch engine env)" && pulumi preview --stack NAME')


def _write_settings(root: Path, given: dict[str, str]) -> None:
    """Write settings into `orch.yml`, which may have others. Raises UsageError where one is there with
    another value, and where the project would lose sight of what is up."""
    from orch.stacks.project.project import project_in
    from orch.stacks.project.settings_file import change_settings, settings_in
    from orch.stacks.stack.state import stacks

    file = root / "orch.yml"
    present = settings_in(file.read_text("utf-8")) if file.is_file() else {}
    for name, value in given.items():
        if present.get(name, value) != value:
            hint = (
                f"`orch state move --to {value}` takes along what is up"
                if name == "state"
                else "edit the file"
            )
            raise UsageError(f"{file} has another `{name}`: {present[name]}", hint=hint)
    if "state" in given and "project" not in {*given, *present}:
        raise UsageError(
            "a state that others use needs the project's name", hint=f"add `--project {_named_after(root)}`"
        )
    if "state" in given and "state" not in present and (present or (root / ".orch").is_dir()):
        up = stacks(project_in(root))
        if up:
            raise UsageError(
                f"what is up here, in this folder's own state, would be lost sight of: {', '.join(up)}",
                hint=f"`orch state move --to {given['state']}` takes it along",
            )
    _, changed = change_settings(root, dict(given))
    say(f"{'written' if changed else 'kept   '} orch.yml{'' if changed else ' (it says so)'}")


def _tell_what_is_up(project: Project) -> None:
    """Show what the state records of this project and others, and who has the passphrase: with a mistyped
    name, nothing of a team's is found."""
    from orch.stacks.project.passphrase import keeper_elsewhere
    from orch.stacks.stack.state import projects, stacks

    if (keeper := keeper_elsewhere(project)) is not None:
        tell(f"note: the state has a passphrase: {keeper.words}; copy that file to {project.passphrase_file}")
    names = stacks(project)
    if names:
        say(f"project {project.name} at {project.state_url}: {', '.join(names)}")
        return
    say(f"project {project.name} at {project.state_url}: nothing is up")
    if others := [name for name in projects(project) if name != project.name]:
        tell(f"note: that state has other projects: {', '.join(others)}; is one of them meant?")


def _named_after(root: Path) -> str:
    """A name that orch.yml takes, from the folder's."""
    from orch.stacks.project.project import project_name

    try:
        return check_name(project_name(root))
    except Problem as problem:
        return problem.replacement or "orch"


def _settings(name: str) -> str:
    """The `orch.yml` that keeps the project name of a folder with state; an invalid one stays in `.orch`."""
    try:
        return f"project: {check_name(name)}\n"
    except Problem:
        return f"project:  # {name}, as `.orch/project` has it\n"


def _write(path: Path, text: str) -> None:
    if path.exists():
        say(f"kept    {path.name} (it was there)")
        return
    path.write_text(text)
    say(f"written {path.name}")
