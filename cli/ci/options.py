"""Options of `orch ci` that say where and about what it posts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.errors import UsageError

if TYPE_CHECKING:
    from orch.ci.pipeline import Kind, Pipeline

SCHEMA = 1

Repo = Annotated[
    str | None, typer.Option("--repo", metavar="OWNER/NAME", help="The repository; default: the pipeline's.")
]
OnForge = Annotated[
    str | None,
    typer.Option("--forge", metavar="github|gitlab", help="Where to; default: what the pipeline runs on."),
]
Number = Annotated[
    int | None,
    typer.Option("--pr", metavar="NUMBER", min=1, help="The pull or merge request; default: the pipeline's."),
]
HeadSha = Annotated[
    str | None,
    typer.Option("--head-sha", metavar="SHA", help="The commit that it is about; default: the pipeline's."),
]
BaseSha = Annotated[
    str | None,
    typer.Option("--base-sha", metavar="SHA", help="The commit that it is merged into."),
]
Author = Annotated[
    str | None,
    typer.Option(
        "--author", metavar="LOGIN", help="The login of the token's owner, where the API does not tell it."
    ),
]
FindingsFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--findings",
        metavar="FILE",
        help="JSON of `orch preview --json` or `orch validate --format json`; repeatable.",
    ),
]
Stranger = Annotated[
    bool,
    typer.Option(
        "--untrusted",
        help="The findings are a fork's: their size and shape are checked, and the pull request is found by "
        "--head-sha.",
    ),
]
ProjectPath = Annotated[str, typer.Option("--path", metavar="DIR", help="The project; default here.")]
FolderPath = Annotated[
    str | None, typer.Option("--path", metavar="PATH", help="The file or folder that was previewed.")
]


def pipeline_of(forge: str | None) -> Pipeline:
    from orch.ci.pipeline import pipeline

    return pipeline(os.environ, None if forge is None else kind_of(forge))


def kind_of(forge: str) -> Kind:
    if forge in ("github", "gitlab"):
        return forge
    raise UsageError(f"no forge is called {forge}", hint="write github or gitlab")
