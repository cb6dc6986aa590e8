"""`orch offers`: machines that fit a fleet, from the catalogue; `orch offers refresh`: new prices for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from orch.cli.context import ALSO, positional
from orch.cli.errors import say, tell

if TYPE_CHECKING:
    from orch.offers.search import Search

SHOWN_OFFERS = 20
SHOWN_MISSES = 8


class FileOrVerb(TyperGroup):
    """`orch offers FILE`: the hidden verb `show`, unless the first word is another verb's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = positional(args)
        verb = self.commands.get(args[0]) if args else None
        return super().parse_args(ctx, args if verb and not verb.hidden else ["", *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0] == "":
            return None, self.commands["show"], args[1:]
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=FileOrVerb)


@app.command(
    "show",
    hidden=True,
    epilog="Example: orch offers fleet.yml --explain. New prices: orch offers refresh. "
    "Exit codes: 0 each fleet has an offer, 3 the file is wrong, 5 nothing fits.",
)
def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help=f"A YAML file, a folder of them, or -. {ALSO}")],
    as_json: Annotated[bool, typer.Option("--json", help="Data on stdout, for pipelines.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help=f"Rows at most; 0 for all. Default {SHOWN_OFFERS}, in JSON all."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also tell what almost fits, and what keeps it from that.")
    ] = False,
) -> None:
    """List what the clouds offer for the fleets of a file, the cheapest first.

    Reads the catalogue on this machine and calls no cloud: a price is no quote, a row no promise of capacity.
    """
    from orch.cli import diagnostics
    from orch.offers.search import search
    from orch.spec.diagnostics import render_human
    from orch.spec.errors import ExitCode

    documents = diagnostics.load(file)
    searches = search(documents, _configured(documents, file))
    found = [each.diagnostics for each in searches]
    if as_json:
        from orch.cli.output.offers import offers_json

        print(json.dumps(offers_json(searches, limit or None, explain), indent=2, ensure_ascii=False))
    else:
        _print(searches, SHOWN_OFFERS if limit is None else limit, explain)
    if told := [diagnostic for each in found for diagnostic in each]:
        tell(render_human(told))
    if any(each.empty for each in searches):
        raise typer.Exit(int(ExitCode.PROVISION))


def _print(searches: tuple[Search, ...], limit: int, explain: bool) -> None:
    from orch.cli.output.offers import misses_text, offers_text, sources_text

    colour = sys.stdout.isatty()
    for each in searches:
        say(offers_text(each, limit or None, colour=colour))
        if explain or each.empty:
            say(misses_text(each, (limit or None) if explain else SHOWN_MISSES, colour=colour))
        say("")
    if dates := sources_text(searches):
        say(dates)


def _configured(documents: tuple[Any, ...], file: str) -> tuple[str, ...]:
    """Backends that the project's `orch.yml` configures: the nearest one upwards from the file."""
    from orch.spec import load_paths
    from orch.spec.models.project import Project

    here = Path.cwd() if file == "-" else Path(file).absolute()
    folders = [here, *here.parents] if here.is_dir() else here.parents
    known = [each.model for each in documents if isinstance(each.model, Project)]
    path = next((each / "orch.yml" for each in folders if (each / "orch.yml").is_file()), None)
    if not known and path is not None:
        known = [model for _, model in load_paths([path]).require().of(Project)]
    backends = [backend for project in known for backend in project.configured]
    return tuple(dict.fromkeys(backend.type for backend in backends))


@app.command("refresh", epilog="Example: orch offers refresh aws --region us-east-1")
def refresh(
    backend: Annotated[str, typer.Argument(metavar="[BACKEND]", help="Whose prices.")] = "aws",
    region: Annotated[
        list[str] | None, typer.Option("--region", help="Only this region; may be repeated.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Profile of the cloud's own configuration.")] = None,
) -> None:
    """Fetch prices and zones from a cloud's price APIs into this user's data folder, to be used from then on.

    Needs the network and an account of the cloud; costs nothing.
    """
    from orch.catalog.refresh import refresh as fetch

    done = fetch(backend, regions=tuple(region or ()), profile=profile)
    say(f"{backend}: {len(done.prices.offers)} offers as of {done.prices.as_of}, in {done.path}")
