"""`orch rotate`: new keys in place of old ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orch.cli.context import Yes, project_at
from orch.cli.errors import UsageError, say, tell

app = typer.Typer(no_args_is_help=True)


@app.callback()
def rotate() -> None:
    """New keys in place of old ones: the passphrase of the state."""


@app.command("passphrase", epilog="Example: orch rotate passphrase")
def passphrase(
    *,
    new_from: Annotated[
        Path | None,
        typer.Option(
            "--new-from",
            metavar="FILE",
            help="The file with the new one, where PULUMI_CONFIG_PASSPHRASE has the old one.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Encrypt the secrets of this project's state with a new passphrase. Nothing that is up changes."""
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.pulumi.locks import subject
    from orch.stacks.team import rotation

    project = project_at()
    project.prepare()
    given = None if new_from is None else _read(new_from)
    names = rotation.plan_rotation(project)
    tell(f"passphrase of {project.name}: its secrets are encrypted anew in {project.state_url}")
    for name in names:
        tell(f"  {subject(name)}")
    if not yes:
        need_terminal("orch rotate passphrase --yes", project)
        confirm("Rotate the passphrase?")
    with watching() as listener:
        file = rotation.rotate_passphrase(project, given, listener)
    if file is None:
        say("rotated: from now on PULUMI_CONFIG_PASSPHRASE is the text of that file, here and for all others")
    else:
        say(f"rotated: {file} has the new passphrase")
        if project.shares_files:
            tell("note: others who use this state need a copy of that file")
    tell("note: older copies of the state, as backups of a bucket, still open with the former passphrase")


def _read(file: Path) -> str:
    try:
        text = file.read_text("utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "the file with the new passphrase cannot be read",
            where=str(file),
            detail=getattr(error, "strerror", None) or str(error),
        ) from error
    if not text or "\n" in text:
        raise UsageError("a passphrase is one line of text", where=str(file))
    return text
