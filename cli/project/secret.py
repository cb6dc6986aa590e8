"""`orch secret set`, `list`, `delete`: the secrets of this project."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli import completion
from orch.cli.context import project_at
from orch.cli.errors import UsageError, print_json, say, tell
from orch.cli.options import Json

if TYPE_CHECKING:
    from orch.stacks.keys.secret_store import SecretStore
    from orch.stacks.project.project import Project

app = typer.Typer(no_args_is_help=True)

SCHEMA = 1

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="What `${{ secrets.NAME }}` refers to.", autocompletion=completion.secrets
    ),
]


@app.command("set", epilog='Example: printf %s "$TOKEN" | orch secret set hf_token')
def set_secret(
    name: Name,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="[VALUE]", help="The value. Others see command lines: leave it out.", show_default=False
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help="Read the value from a file.", show_default=False),
    ] = None,
) -> None:
    """Set a secret: asks for its value on a terminal, else reads it from standard input.

    The line end of a value of one line is dropped; a value of several lines is kept as it is.
    """
    from orch.cli.output.progress import watching
    from orch.spec.grammar.interpolate import check_secret_name
    from orch.spec.grammar.values import Problem

    if value is not None and from_file is not None:
        raise UsageError("a secret has one value", hint="leave out VALUE or --from-file")
    try:
        check_secret_name(name)
    except Problem as problem:
        raise UsageError(problem.summary, hint=problem.hint, code=problem.code) from problem
    if value is not None:
        tell(
            "warning: the value was on the command line, where other users and your shell's history see it\n"
            f"  hint: `orch secret set {name}` asks for it, or reads standard input"
        )
    store = _store()
    if value is None:
        value = _read(name, from_file)
    with watching() as listener:
        is_new = store.set(name, value, listener)
    say(f"secret {name}: {'set' if is_new else 'replaced'}")


@app.command("list", epilog="Example: orch secret list --json")
def list_secrets(as_json: Json = False) -> None:
    """List the names of the secrets and when each was set. Values are never shown."""
    set_at = _store().set_at
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "secrets": [{"name": name, "set_at": moment} for name, moment in set_at.items()],
            }
        )
    elif set_at:
        width = max(len("NAME"), *map(len, set_at))
        for name, moment in {"NAME": "SET", **set_at}.items():
            say(f"{name:<{width}}  {moment}")
    else:
        tell("no secret is set in this project; `orch secret set NAME` sets one")


@app.command("delete", epilog="Example: orch secret delete hf_token")
def delete_secret(name: Name) -> None:
    """Delete a secret. Older copies of the state keep it encrypted: change what it opens, too."""
    from orch.cli.output.progress import watching

    store = _store()
    with watching() as listener:
        store.delete(name, listener)
    say(f"secret {name}: deleted")
    _warn_of_runs(store.project, name)


def _warn_of_runs(project: Project, name: str) -> None:
    """Tell which runs have still to be given a secret that is not there any more."""
    from contextlib import closing

    from orch.runner.errors import LedgerUnusable, NewerLedger
    from orch.runner.ledger.ledger import open_ledger
    from orch.runner.plan.run_names import as_argument
    from orch.runner.runs.arrays.choose import fold_waiting
    from orch.runner.runs.run_secrets import runs_that_need

    if project.local_ledger is not None and not project.local_ledger.exists():
        return  # no run was ever recorded
    try:
        with closing(open_ledger(project.ledger_url)) as ledger:
            rows = runs_that_need(project.dot, ledger, name)
    except (LedgerUnusable, NewerLedger) as error:
        tell(f"warning: which runs still need it is not known: {error.summary}")
        return
    for row in fold_waiting(rows):
        stop = f"`orch stop {as_argument(row.name)}`"
        tell(
            f"warning: run {row.name} ({row.status}) still needs it, and fails when it begins without it\n"
            f"  hint: `orch secret set {name}` gives it a value again, {stop} ends the run"
        )


def _store() -> SecretStore:
    from orch.stacks.keys.secret_store import SecretStore

    project = project_at()
    project.prepare()
    return SecretStore(project)


def _read(name: str, file: Path | None) -> str:
    """The value from a file, a terminal or standard input. Raises UsageError."""
    if file is not None:
        try:
            return _text(file.read_bytes(), str(file))
        except OSError as error:
            raise UsageError(
                "the file with the value cannot be read",
                where=str(file),
                detail=error.strerror or str(error),
            ) from error
    if sys.stdin.isatty():
        return getpass.getpass(f"value of {name}: ")
    return _text(sys.stdin.buffer.read(), "standard input")


def _text(data: bytes, where: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            "a secret is text in UTF-8, and this is none",
            where=where,
            detail=f"byte {error.start} is no part of it",
            hint="set its base64 form, and decode it in the job",
        ) from None
    one_line = text.removesuffix("\n").removesuffix("\r")
    return text if "\n" in one_line else one_line
