"""`orch validate`: every mistake in files and folders, at once."""

from __future__ import annotations

from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.context import strangers
from orch.cli.errors import say, tell
from orch.cli.options import Allow, Untrusted
from orch.cli.output.findings import report

if TYPE_CHECKING:
    from orch.spec.diagnostics import Diagnostic


class Format(str, Enum):
    HUMAN = "human"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"
    GITLAB = "gitlab"


def command(
    paths: Annotated[
        list[Path], typer.Argument(help="Files, folders, or - for standard input.", show_default=False)
    ],
    format: Annotated[Format, typer.Option(help="How to print what is found.")] = Format.HUMAN,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    untrusted: Untrusted = False,
    allow: Allow = None,
) -> None:
    """Check configurations without touching anything.

    Looks at nothing outside the files but the names of the project's secrets: what is missing out there is a
    warning, and so is what this version of orch would refuse to launch. Exit code 0: nothing is wrong; 3:
    something is.

    Example: orch validate fleet.yml train.yml --format github
    """
    raise typer.Exit(validate([str(path) for path in paths], format, strict, strangers(untrusted, allow)))


def validate(
    paths: list[str],
    format: Format = Format.HUMAN,
    strict: bool = False,
    untrusted: tuple[str, ...] | None = None,
) -> int:
    """Prints what is wrong with the files; the exit code. `untrusted`: as in `load_paths`.

    People read diagnostics on stderr and a summary on stdout; programs read one document on stdout.
    """
    from orch.cli.diagnostics import found_in, settings_near, tell_of_folders_below
    from orch.spec.diagnostics import Severity, render_human, render_json
    from orch.spec.diagnostics import strict as as_errors
    from orch.spec.errors import ExitCode
    from orch.spec.loader.load import load_paths

    settings = settings_near(untrusted=untrusted is not None)
    secrets = None if untrusted is not None else partial(_known_secrets, paths)
    loaded = load_paths(paths, untrusted=untrusted, common=settings, secrets=secrets)
    diagnostics = found_in(loaded, untrusted=untrusted is not None)
    diagnostics = as_errors(diagnostics) if strict else diagnostics
    failed = any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)
    if format is Format.JSON:
        print(render_json(diagnostics))
    elif format is not Format.HUMAN:
        print(report(format.value, diagnostics), end="")
        if format is Format.GITHUB:
            tell(_summary(diagnostics, len(loaded.documents)))
    else:
        if diagnostics:
            tell(render_human(diagnostics))
        say(_summary(diagnostics, len(loaded.documents)))
        if untrusted is None:
            tell_of_folders_below(paths)
    return ExitCode.CONFIG if failed else ExitCode.OK


def _known_secrets(paths: list[str]) -> frozenset[str] | None:
    """Names of the secrets of the projects of `paths`, None where files of this machine do not tell.

    A project that cannot be used is no mistake of the files."""
    from orch.cli.diagnostics import secrets_near
    from orch.spec.errors import OrchError

    try:
        known = [secrets_near(path, local_only=True) for path in paths]
    except OrchError:
        return None
    names = [each for each in known if each is not None]
    return frozenset[str]().union(*names) if len(names) == len(known) else None


def _summary(diagnostics: tuple[Diagnostic, ...], documents: int) -> str:
    from orch.spec.suggest import counted

    counts = {noun: sum(each.severity.value == noun for each in diagnostics) for noun in ("error", "warning")}
    suffix = "".join(f", {counted(count, noun)}" for noun, count in counts.items() if count)
    return f"{counted(documents, 'valid document')}{suffix}"


def schema_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="fleet, task, dev-environment, volume, project (orch.yml) or a backend; any if not given.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a JSON Schema with which editors complete and check configurations.

    Example: orch schema > .orch.schema.json
    """
    import json

    from orch.spec.schema import kinds, schema
    from orch.spec.suggest import hint_for

    if kind is not None and kind not in kinds():
        hint = hint_for(kind, kinds()) or f"there are: {', '.join(kinds())}"
        raise typer.BadParameter(f"no kind of document is called '{kind}'; {hint}", param_hint="KIND")
    print(json.dumps(schema(kind), indent=2))
