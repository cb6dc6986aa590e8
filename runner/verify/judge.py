"""What a verification found, against floors, former results, and the nodes among themselves.

Pure. A figure of a collective is held against the first of these that there is: what the command line or
the fleet's file asks for, what nodes of this type are known to reach (catalog/nccl_floors.csv), what this
fleet reached before. Cards and nodes of one type are held against their median, and against what each reached
before.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from orch.catalog.nccl_floors import KEPT, anchor
from orch.runner.verify.job import bisection
from orch.runner.verify.report import Judgement, Key, Report, Row, Shortfall, size_text
from orch.runner.verify.results import Collective, Figure, Results
from orch.spec.grammar.hosts import fold
from orch.spec.suggest import counted

STRAGGLER: Mapping[str, float] = {
    "gemm": 0.85,
    "memory": 0.85,
    "host_to_device": 0.7,
    "device_to_host": 0.7,
    "cpu": 0.7,
    "disk_write": 0.5,
    "disk_read": 0.5,
}
"""What a card or node must reach of the median of its like, and of what it reached before. Cards of a type
differ by less than a tenth; copies share the node's memory, processors of virtual machines and network disks
are shared with strangers."""

SHARED = 0.03
"""What of a former result must be reached where all nodes are containers of one machine: they and whatever
else it does share its processors."""


@dataclass(frozen=True)
class VerifiedNode:
    """A node as its fleet describes it."""

    name: str
    instance_type: str | None = None
    gpus: int = 0


@dataclass(frozen=True)
class Terms:
    """What a verification is held against.

    `nodes`: in the order of ranks. `transports`: the families (job/nccl_log.py) that count as the fleet's
    interconnect, none where that is not known; `interconnect`: its name. `min_busbw`: GB/s, and who says so.
    `former`: what was fine before. `one_machine`: all nodes are containers of one machine. `simulated`: they
    only stand for machines of their type. `slow`: see `bisection.SLOW`.
    """

    fleet: str
    nodes: tuple[VerifiedNode, ...]
    interconnect: str = "ethernet"
    transports: tuple[str, ...] = ()
    min_busbw: float | None = None
    min_busbw_by: str = ""
    former: Mapping[Key, Sequence[float]] = field(default_factory=dict[Key, Sequence[float]])
    one_machine: bool = False
    simulated: bool = False
    slow: float = bisection.SLOW

    def node(self, number: int) -> str:
        return self.nodes[number].name if number < len(self.nodes) else f"node {number}"


def judge(results: Results, terms: Terms) -> Report:
    """The report on results that ended. What was skipped is among its notes."""
    rows: list[Row] = []
    found: list[Shortfall] = []
    notes = _notes(results, terms)
    transport = _transport(results, terms, found, notes)
    for measure in dict.fromkeys(each.measure for each in results.collectives):
        of = [each for each in results.collectives if each.measure == measure]
        rows += _collective_rows(sorted(of, key=lambda each: each.size), results, terms, found)
    for measure in dict.fromkeys(each.measure for each in results.figures):
        rows += _figure_rows(
            [each for each in results.figures if each.measure == measure], results, terms, found
        )
    rows += _pair_rows(results, terms, found)
    return Report(
        terms.fleet,
        tuple(rows),
        tuple(found),
        tuple(notes),
        transport,
        _sentence(rows, found, terms, transport),
    )


UNCONNECTED = "nothing was measured: what needs all nodes would wait for these in vain"


def unmeasured(fleet: str, found: Sequence[Shortfall], why: str = UNCONNECTED) -> Report:
    """The report on a fleet that nothing could be measured of."""
    sentence = _short_of(fleet, found) if found else f"nothing is known of fleet {fleet}"
    return Report(fleet, (), tuple(found), (why,), "unknown", sentence)


def with_health(report: Report, found: Sequence[Shortfall], notes: Sequence[str]) -> Report:
    """A report with what the nodes themselves tell, which explains what was measured and comes first."""
    shortfalls = (*found, *report.shortfalls)
    sentence = _short_of(report.fleet, shortfalls) if shortfalls else report.sentence
    return replace(report, shortfalls=shortfalls, notes=(*report.notes, *notes), sentence=sentence)


def _notes(results: Results, terms: Terms) -> list[str]:
    by_why: dict[str, dict[str, None]] = {}
    for each in results.skipped:
        where = f" of {terms.node(each.node)}" if each.node is not None else ""
        by_why.setdefault(each.why, {})[f"{each.measure}{where}"] = None
    notes = [f"skipped: {', '.join(names)}: {why}" for why, names in by_why.items()]
    if terms.simulated:
        notes.append("a rehearsal: floors and interconnect of the machines are not those of their containers")
    if results.unread:
        notes.append(f"{counted(results.unread, 'line')} of the nodes' output could not be read")
    if terms.one_machine and any(each.measure in STRAGGLER for each in results.figures):
        notes.append("nodes are not compared with each other: they are containers of one machine")
    return notes


def _transport(results: Results, terms: Terms, found: list[Shortfall], notes: list[str]) -> str:
    """What carried the data, in words; whether it is the fleet's interconnect is asserted on the way."""
    start = results.start
    if start is None:
        return "unknown"
    everyone = tuple(node.name for node in terms.nodes)
    with_gpus = tuple(node.name for node in terms.nodes if node.gpus)
    if start.backend == "gloo":
        if with_gpus and not terms.simulated:
            text = f"PyTorch of the image sees no accelerators on {fold(with_gpus)}: they were not verified"
            found.append(Shortfall("ORCH445", text, with_gpus, "transport"))
        return f"{start.library} over TCP" if start.ranks > 1 else "one process, which needs no transport"
    networks = dict.fromkeys(_words(each.network, each.provider) for each in results.transports)
    devices = sorted({name for each in results.transports for name in each.devices})
    channels = sorted({name for each in results.transports for name in each.channels})
    text = f"{start.library}: {' and '.join(networks) or 'no network told'}"
    if devices:
        text += f" ({', '.join(devices[:8])}{', ...' if len(devices) > 8 else ''})"
    if channels:
        text += f"; channels {', '.join(channels)}"
    if len(terms.nodes) < 2:
        return text
    if not terms.transports:
        notes.append(f"which transport `{terms.interconnect}` is was not asserted: there is no rule for it")
        return text
    wrong: dict[str, dict[str, None]] = {}
    told = {each.rank: each for each in results.transports}
    for place in results.ranks:
        used = told.get(place.rank)
        if used is None or used.family not in terms.transports:
            words = _words(used.network, used.provider) if used is not None else None
            wrong.setdefault(words or "nothing that its log tells", {})[terms.node(place.node)] = None
    socket_alone = terms.transports == ("socket",)
    for words, names in wrong.items():
        sentence = f"{fold(list(names))} used {words}, not {terms.interconnect}"
        if socket_alone:
            notes.append(sentence)
        else:
            found.append(Shortfall("ORCH445", sentence, tuple(names), "transport"))
    if not socket_alone and any(each.gpu_direct is False for each in results.transports):
        names = dict.fromkeys(
            terms.node(place.node)
            for place in results.ranks
            if place.rank in told and told[place.rank].gpu_direct is False
        )
        notes.append(f"no channel of {fold(list(names) or list(everyone))} has GPUDirect RDMA")
    return text


def _words(network: str | None, provider: str | None) -> str:
    if network is None:
        return ""
    return f"{network}, provider {provider}" if provider else network


def _collective_rows(
    sweep: Sequence[Collective], results: Results, terms: Terms, found: list[Shortfall]
) -> list[Row]:
    rows: list[Row] = []
    everyone = tuple(node.name for node in terms.nodes)
    measured = {each.measure for each in results.collectives}
    for each in sweep:
        largest = each is sweep[-1]
        limit, basis = _limit(each, largest, results, terms, asked="all_reduce" not in measured)
        low = limit is not None and each.busbw < limit
        judgement: Judgement = "wrong" if each.wrong else "low" if low else "ok" if limit else "no floor"
        row = Row(each.measure, "", each.busbw, "GB/s", each.size, limit, basis, judgement)
        rows.append(row)
        what = f"{each.measure} of {size_text(each.size)}"
        if each.wrong:
            text = f"{what}: {counted(each.wrong, 'value')} came out wrong"
            found.append(Shortfall("ORCH444", text, everyone, "values"))
        if low:
            text = f"{what} reaches {_number(each.busbw)} GB/s of {_number(limit or 0)}: {basis}"
            found.append(Shortfall("ORCH444", text, everyone, "figure"))
    return rows


def _limit(
    each: Collective, largest: bool, results: Results, terms: Terms, *, asked: bool
) -> tuple[float | None, str]:
    """What a size of a collective must reach, and why; None where nobody says."""
    if largest and terms.min_busbw is not None and (asked or each.measure == "all_reduce"):
        return terms.min_busbw, terms.min_busbw_by
    types = {node.instance_type for node in terms.nodes}
    real = results.start is not None and results.start.backend == "nccl" and not terms.simulated
    if real and len(types) == 1 and (name := next(iter(types))) is not None:
        known = anchor(name, len(terms.nodes), each.measure, each.size)
        if known is not None:
            return known.floor, f"{KEPT} of {known.busbw:g}, {known.source}"
    former = terms.former.get((each.measure, "", each.size)) if largest else None
    if not former:
        return None, "no floor is known, and there is no former result"
    part = SHARED if terms.one_machine else KEPT
    return part * statistics.median(former), _former_words(part, former)


def _former_words(part: float, former: Sequence[float]) -> str:
    median = _number(statistics.median(former))
    return f"{part} of {median}, the median of {counted(len(former), 'former result')}"


def _figure_rows(
    figures: Sequence[Figure], results: Results, terms: Terms, found: list[Shortfall]
) -> list[Row]:
    """Cards, or nodes: each against the median of its type, then against what it reached before."""
    card_of = {each.rank: each for each in results.ranks}
    first = {
        node: min(e.rank for e in results.ranks if e.node == node) for node in {e.node for e in results.ranks}
    }
    by_type: dict[tuple[str | None, str], list[tuple[Figure, str, str]]] = {}
    for each in figures:
        place = card_of.get(each.rank) if each.rank is not None else None
        number = place.node if place is not None else each.node
        if number is None:
            continue
        name = terms.node(number)
        subject = f"{name} card {place.rank - first[place.node]}" if place is not None else name
        kind = terms.nodes[number].instance_type if number < len(terms.nodes) else None
        by_type.setdefault((kind, place.card if place else ""), []).append((each, subject, name))
    rows: list[Row] = []
    for members in by_type.values():
        part = STRAGGLER[figures[0].measure]
        median = statistics.median_high([each.value for each, _, _ in members])
        noun = "card" if members[0][0].rank is not None else "node"
        for each, subject, name in members:
            bounds: list[tuple[float, str]] = []
            if len(members) > 1 and not terms.one_machine:
                words = f"{part} of {_number(median)}, the median of {counted(len(members), noun)}"
                bounds.append((part * median, words))
            if not terms.one_machine and (former := terms.former.get((each.measure, subject, 0))):
                bounds.append((part * statistics.median(former), _former_words(part, former)))
            limit, basis = max(
                bounds, default=(None, "nothing to compare it with"), key=lambda b: b[0] or 0.0
            )
            low = limit is not None and each.value < limit
            judgement: Judgement = "low" if low else "ok" if limit is not None else "no floor"
            rows.append(Row(each.measure, subject, each.value, each.unit, 0, limit, basis, judgement))
            if low:
                reached = f"{_number(each.value)} {each.unit} of {_number(limit or 0)}"
                text = f"{subject}: {each.measure} {reached}: {basis}"
                found.append(Shortfall("ORCH444", text, (name,), "card" if noun == "card" else "node"))
    return rows


def _pair_rows(results: Results, terms: Terms, found: list[Shortfall]) -> list[Row]:
    measured = results.measured_pairs(again=False)
    if not measured:
        return []
    again = results.measured_pairs(again=True)
    verdict = bisection.verdict(measured, again, terms.slow)
    limit, basis = terms.slow * verdict.reference, f"{terms.slow} of what pairs of this fleet reach"
    nodes = {node for pair in measured for node in pair}
    size = results.pairs[0].size
    former = terms.former.get(("pairs", "", size))
    part = SHARED if terms.one_machine else KEPT
    bound = part * statistics.median(former) if former else None
    low = bound is not None and verdict.reference < bound
    words = _former_words(part, former) if former else "nothing to compare it with"
    judgement: Judgement = "low" if low else "ok" if bound is not None else "no floor"
    rows = [Row("pairs", "", verdict.reference, "GB/s", size, bound, words, judgement)]
    if low:
        ends = (
            " and ".join(sorted(terms.node(node) for node in nodes)) if len(nodes) == 2 else "pairs of nodes"
        )
        text = f"{ends}: {_number(verdict.reference)} GB/s of {_number(bound or 0)}: {words}"
        named = tuple(terms.node(node) for node in sorted(nodes))
        found.append(Shortfall("ORCH444", text, named, "link" if len(nodes) == 2 else "figure"))
    for fault in verdict.faults:
        name = terms.node(fault.node)
        reached = f"{_number(fault.bandwidth)} GB/s where others reach {_number(verdict.reference)}"
        if fault.other is None:
            subject, text, kind, named = (
                name,
                f"node {name} is slow with any partner: {reached}",
                "node",
                (name,),
            )
        else:
            other = terms.node(fault.other)
            subject, named, kind = f"{name} <-> {other}", (name, other), "link"
            text = f"the link between {name} and {other} is slow: {reached}"
        if not fault.certain:
            text += "; there was no other partner to tell the node from the link"
        rows.append(Row("pairs", subject, fault.bandwidth, "GB/s", 0, limit, basis, "low"))
        found.append(Shortfall("ORCH444", text, named, "node" if kind == "node" else "link"))
    for pair in verdict.recovered:
        subject = " <-> ".join(terms.node(node) for node in pair)
        rows.append(Row("pairs", subject, again[pair], "GB/s", 0, limit, "it was slow once only", "ok"))
    return rows


def _sentence(rows: Sequence[Row], found: Sequence[Shortfall], terms: Terms, transport: str) -> str:
    if found:
        return _short_of(terms.fleet, found)
    best = [row for row in rows if row.measure == "all_reduce"] or [row for row in rows if row.size]
    said = (
        f"; {best[-1].measure} of {size_text(best[-1].size)} {_number(best[-1].value)} GB/s" if best else ""
    )
    unproved = " (nothing known to compare it with)" if best and best[-1].judgement == "no floor" else ""
    nodes = counted(len(terms.nodes), "node")
    return f"fleet {terms.fleet} is fine: {nodes}{said}{unproved}; {transport}"


def _short_of(fleet: str, found: Sequence[Shortfall]) -> str:
    first = min(found, key=lambda each: _ORDER.index(each.kind))
    more = f", and {counted(len(found) - 1, 'more shortfall')}" if len(found) > 1 else ""
    return f"fleet {fleet} falls short: {first.text}{more}"


_ORDER = ("health", "transport", "values", "node", "link", "card", "figure")
"""What is told first: what explains the others."""


def _number(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"
