"""`orch offers`: machines that fit a fleet, from the catalogue; `orch offers refresh`: new prices for it."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from orch.cli.context import positional, project_at
from orch.cli.errors import print_json, say, tell
from orch.cli.options import File, Json
from orch.spec.errors import visible
from orch.spec.grammar.values import render_size

if TYPE_CHECKING:
    from orch.catalog.records import InstanceType
    from orch.catalog.shortages import Shortage
    from orch.offers.match import Fit
    from orch.offers.near_misses import NearMiss
    from orch.offers.query import MachineQuery
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
    file: File,
    as_json: Json = False,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help=f"Rows at most; 0 for all. Default {SHOWN_OFFERS}, in JSON all."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also list near misses, with the conditions that they fail.")
    ] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="With what rehearsals of the project found no room for.")
    ] = False,
) -> None:
    """List what the clouds offer for the fleets of a file, the cheapest first.

    Reads the catalogue on this machine and calls no cloud: a price is no quote, a row no promise of capacity.
    NO ROOM: where an `up` found none in the last ten minutes, or a cloud that tells it with its prices.
    """
    from orch.catalog.load import user_folder
    from orch.catalog.shortages import FILE, recent
    from orch.cli import diagnostics
    from orch.offers.search import search
    from orch.spec.diagnostics import render_human
    from orch.spec.errors import ExitCode

    documents = diagnostics.load(file)
    configured = diagnostics.backend_settings(file, documents)
    place = None if file == "-" else file
    noted = project_at(place, rehearse=True, tells=False).shortages if rehearse else user_folder() / FILE
    known = recent(noted, time.time())
    searches = search(documents, tuple(dict.fromkeys(each.type for each in configured)), shortages=known)
    if as_json:
        print_json(offers_json(searches, limit or None, explain))
    else:
        _print(searches, SHOWN_OFFERS if limit is None else limit, explain)
    if warnings := [diagnostic for each in searches for diagnostic in each.diagnostics]:
        tell(render_human(warnings))
    if any(each.empty for each in searches):
        raise typer.Exit(int(ExitCode.PROVISION))


def _print(searches: tuple[Search, ...], limit: int, explain: bool) -> None:
    colour = sys.stdout.isatty()
    for each in searches:
        say(offers_text(each, limit or None, colour=colour))
        if explain or each.empty:
            say(misses_text(each, (limit or None) if explain else SHOWN_MISSES, colour=colour))
        say("")
    if dates := sources_text(searches):
        say(dates)


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

    result = fetch(backend, regions=tuple(region or ()), profile=profile)
    say(f"{backend}: {len(result.prices.offers)} offers as of {result.prices.as_of}, in {result.path}")


ASKED = (
    "Zone ?: the account is asked which zones of the region have the type, before a fleet is planned there."
)

# For people


def offers_text(search: Search, limit: int | None, *, colour: bool) -> str:
    """A headline and the offers of one fleet, in the order of choice."""
    head = f"{search.name}: {query_text(search.query)}"
    if search.skipped:
        return f"{search.name}: {search.skipped}"
    fits = search.judgement.fits
    if not fits:
        return f"{head}\nno offer fits"
    columns = ("#", "BACKEND", "REGION", "ZONE", "INSTANCE TYPE", "RESOURCES", "SPOT", "PRICE")
    folded = _folded(fits)
    rows = [_row(number, group, search.query) for number, group in folded[:limit]]
    no_room = [no_room_text(search, group) for _, group in folded[:limit]]
    if any(no_room):
        columns, rows = (*columns, "NO ROOM"), [(*row, text) for row, text in zip(rows, no_room, strict=True)]
    lines = [head, table(columns, rows, colour=colour)]
    shown = sum(len(group) for _, group in folded[:limit])
    if shown < len(fits):
        lines.append(f"{len(fits) - shown} more of {len(fits)} (--limit 0 lists all)")
    if any(not fit.offer.listed for fit in fits[:shown]):
        lines.append(ASKED)
    return "\n".join(lines)


def no_room_text(search: Search, group: Sequence[Fit]) -> str:
    """`fabric-2 3 min ago`; a place that the row itself names is not repeated."""
    known = {each: fit for fit in group for each in search.no_room(fit)}
    words: list[str] = []
    for each, fit in known.items():
        ago = _ago(each)
        minutes = f"{ago // 60} min ago" if ago >= 60 else "just now"
        own = each.zone in (fit.offer.zone, fit.offer.region, "") and len(group) == 1
        words.append(minutes if own else f"{each.zone or each.region} {minutes}")
    return ", ".join(words)


def _ago(shortage: Shortage) -> int:
    """Return the age of a sighting, in seconds."""
    return max(0, int(time.time()) - shortage.at)


def _folded(fits: Sequence[Fit]) -> list[tuple[int, tuple[Fit, ...]]]:
    """Rows of the table, each with the number of its first offer. Offers of one type in several unlisted
    regions, at the price of another region, share a row."""

    def key(numbered: tuple[int, Fit]) -> object:
        number, fit = numbered
        return (
            number
            if fit.offer.listed or fit.sure
            else (fit.offer.type.backend, fit.offer.type.name, fit.spot)
        )

    groups = (tuple(group) for _, group in groupby(enumerate(fits, 1), key))
    return [(group[0][0], tuple(fit for _, fit in group)) for group in groups]


def misses_text(search: Search, limit: int | None, *, colour: bool) -> str:
    """The near misses of one fleet, grouped by the number of failed conditions."""
    misses = search.misses[:limit]
    if search.skipped or not misses:
        return ""
    lines: list[str] = []
    for failed in dict.fromkeys(miss.failed for miss in misses):
        group = [miss for miss in misses if miss.failed == failed]
        lines.append(f"off by {failed} condition{'' if failed == 1 else 's'}:")
        columns = ("BACKEND", "INSTANCE TYPE", "SPOT", "PRICE FROM", "WHY NOT")
        lines.append(table(columns, [_miss_row(miss) for miss in group], colour=colour))
    if len(misses) < len(search.misses):
        lines.append(f"{len(search.misses) - len(misses)} more are further off")
    return "\n".join(lines)


def sources_text(searches: Sequence[Search]) -> str:
    """The source and the date of the prices."""
    lists = {each.backend: each for search in searches for each in search.lists}
    dates = "; ".join(f"{each.backend} {each.as_of}" for each in lists.values())
    return f"Prices in US dollars per hour, lists and no quotes. Dates: {dates}" if dates else ""


def query_text(query: MachineQuery) -> str:
    """`gpu H100:8, cpu 2.., memory 8GB.., on-demand, in aws`."""
    from orch.offers.match import gpu_text, money, range_text

    resources = query.resources
    arch = f"{resources.cpu.arch}:" if resources.cpu.arch else ""
    price = f"at most {money(query.max_price)}" if query.max_price is not None else ""
    parts = (
        f"gpu {gpu_text(query)}",
        f"cpu {arch}{range_text(resources.cpu.count)}",
        f"memory {range_text(resources.memory_mib, render_size)}",
        " or ".join(query.instance_types),
        {"auto": "spot or on-demand"}.get(query.spot_policy, query.spot_policy),
        price,
        f"in {', '.join((*query.backends, *query.regions, *query.zones))}",
    )
    return ", ".join(part for part in parts if part)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, colour: bool) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold" if colour else "")
    for column in columns:
        grid.add_column(
            column,
            justify="right" if column in ("#", "PRICE", "PRICE FROM") else "left",
            no_wrap=column not in ("RESOURCES", "WHY NOT"),
        )
    for row in rows:
        grid.add_row(*(Text(visible(cell)) for cell in row))
    text = io.StringIO()
    Console(file=text, force_terminal=colour, width=None if colour else 240).print(grid)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _row(number: int, group: Sequence[Fit], query: MachineQuery) -> tuple[str, ...]:
    from orch.offers.match import price_text

    fit = group[0]
    offer, each = fit.offer, fit.offer.type
    return (
        str(number),
        each.backend,
        (offer.region or "n/a") if len(group) == 1 else f"{len(group)} regions",
        offer.zone or ("n/a" if offer.listed else "?"),
        each.name,
        resources_text(each, query),
        "yes" if fit.spot else "no",
        price_text(fit),
    )


def resources_text(each: InstanceType, query: MachineQuery | None = None) -> str:
    """`192xCPU, 2TB, 100GB (disk), H100:80GB:8`; the disk is the one that the query requires."""
    from orch.offers.match import gpu_memory_mib

    cpus = f"{'?' if each.vcpus is None else each.vcpus}x{'ARM ' if each.arch == 'arm' else ''}CPU"
    parts = [cpus, render_size(each.memory_mib) if each.memory_mib else "? memory"]
    if query is not None and query.resources.disk_mib.min:
        parts.append(f"{render_size(int(query.resources.disk_mib.min))} (disk)")
    if each.gpu:
        memory = gpu_memory_mib(each)
        size = f":{render_size(memory)}" if memory else ""
        parts.append(f"{each.gpu.name}{size}:{each.gpu_count}")
    return ", ".join(parts)


def _miss_row(miss: NearMiss) -> tuple[str, ...]:
    from orch.offers.match import price_text
    from orch.offers.near_misses import reason_text

    why = "; ".join(reason_text(reason) for reason in miss.reasons)
    spot = "yes" if miss.spot else "no"
    return (miss.backend, miss.instance_type, spot, price_text(miss.cheapest), why)


# For programs


def offers_json(searches: Sequence[Search], limit: int | None, explain: bool) -> dict[str, Any]:
    """The JSON of `orch offers --json`, schema 1 of docs/reference/offers.md."""
    lists = {each.backend: each for search in searches for each in search.lists}
    return {
        "schema": 1,
        "fleets": [_fleet_json(each, limit, explain) for each in searches],
        "diagnostics": [one.as_dict() for each in searches for one in each.diagnostics],
        "sources": [
            {
                "backend": each.backend,
                "source": each.source,
                "as_of": each.as_of,
                "note": each.note,
                "refreshed": each.refreshed,
            }
            for each in lists.values()
        ],
    }


def _fleet_json(search: Search, limit: int | None, explain: bool) -> dict[str, Any]:
    fits = search.judgement.fits
    return {
        "name": search.name,
        "file": search.file,
        "wanted": _query_json(search.query),
        "skipped": search.skipped,
        "total": len(fits),
        "offers": [{**_offer_json(fit), "no_room": _no_room_json(search, fit)} for fit in fits[:limit]],
        "near_misses": [_miss_json(miss) for miss in search.misses[:limit]]
        if explain or search.empty
        else [],
    }


def _query_json(query: MachineQuery) -> dict[str, Any]:
    from orch.offers.match import gpu_text, range_text

    resources = query.resources
    return {
        "gpu": gpu_text(query),
        "cpu": range_text(resources.cpu.count),
        "arch": resources.cpu.arch,
        "memory": range_text(resources.memory_mib, render_size),
        "backends": list(query.backends),
        "regions": list(query.regions),
        "availability_zones": list(query.zones),
        "instance_types": list(query.instance_types),
        "spot_policy": query.spot_policy,
        "max_price": query.max_price,
    }


def _offer_json(fit: Fit) -> dict[str, Any]:
    from orch.offers.match import gpu_memory_mib

    offer, each = fit.offer, fit.offer.type
    gpus = None
    if each.gpu:
        memory = gpu_memory_mib(each)
        gpus = {
            "vendor": each.gpu.vendor,
            "name": each.gpu.name,
            "count": each.gpu_count,
            "memory_mib": memory,
        }
    return {
        "backend": each.backend,
        "region": offer.region,
        "zone": offer.zone,
        "local_zone": offer.local_zone,
        "instance_type": each.name,
        "arch": each.arch,
        "cpus": each.vcpus,
        "memory_mib": each.memory_mib,
        "gpus": gpus,
        "spot": fit.spot,
        "price": fit.price,
        "price_of": fit.price_of,
        "listed": offer.listed,
    }


def _no_room_json(search: Search, fit: Fit) -> list[dict[str, Any]]:
    return [{"zone": each.zone or None, "seconds_ago": _ago(each)} for each in search.no_room(fit)]


def _miss_json(miss: NearMiss) -> dict[str, Any]:
    return {
        "backend": miss.backend,
        "instance_type": miss.instance_type,
        "spot": miss.spot,
        "reasons": [
            {"constraint": each.constraint, "wanted": each.required, "found": list(each.values)}
            for each in miss.reasons
        ],
        "regions": list(miss.regions),
        "price_from": miss.cheapest.price,
        "price_of": miss.cheapest.price_of,
    }
