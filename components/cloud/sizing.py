"""What the machines of any cloud are to a fleet: their GPUs, blocks, root disk, what they cost. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from orch.catalog.records import InstanceType
from orch.components.request import Spent
from orch.offers.match import gpu_memory_mib, money
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, PlanErrors
from orch.spec.grammar.blocks import blocks_of
from orch.spec.grammar.values import Problem
from orch.spec.models import Fleet
from orch.spec.models.blocks import Budget

MIB_PER_GB = 1024


def nvidia(each: InstanceType) -> int:
    """NVIDIA GPUs of a type."""
    return each.gpu_count if each.gpu is not None and each.gpu.vendor == "nvidia" else 0


def gpus(each: InstanceType) -> dict[str, str | int | None]:
    """What a node's state tells of its accelerators."""
    if each.gpu is None:
        return {"count": 0}
    memory = gpu_memory_mib(each)
    return {"count": each.gpu_count, "vendor": each.gpu.vendor, "name": each.gpu.name, "memory_mib": memory}


def blocks(fleet: Fleet, each: InstanceType) -> int:
    """Into how many parts a node of this type is cut. Raises PlanErrors when its GPUs do not divide."""
    try:
        return blocks_of(fleet.blocks, each.gpu_count, each.vcpus or 1)
    except Problem as problem:
        summary = f"{each.name}: {problem.summary}"
        raise PlanErrors([Finding(problem.code, "blocks", summary, hint=problem.hint)]) from problem


def disk_gb(fleet: Fleet) -> int:
    """The root disk that is asked for."""
    size = fleet.resources.disk_mib
    return math.ceil((size.min or size.max or 100 * MIB_PER_GB) / MIB_PER_GB)


def disk_findings(fleet: Fleet, image_gb: int | None) -> Iterator[Finding]:
    """Whether it holds the image."""
    if image_gb is not None and disk_gb(fleet) < image_gb:
        yield Finding(
            "ORCH229",
            "resources.disk",
            f"a root disk of {disk_gb(fleet)} GB does not hold the image of {image_gb} GB",
            hint=f"write `disk: {image_gb}GB` or more",
        )


def user_data_findings(cloud: str, size: int, most: int) -> Iterator[Finding]:
    if size > most:
        yield Finding(
            "ORCH228",
            "init",
            f"the scripts make user data of {size} bytes, {cloud} takes {most}",
            hint="fetch large files from within a step",
        )


def key_findings(
    refusal: str | None, new: int, permission: str, severity: Severity = Severity.ERROR
) -> Iterator[Finding]:
    """Whether `up` may read the host keys of `new` nodes. `refusal`: why not, as the cloud tells it."""
    if refusal is not None and new:
        yield Finding(
            "ORCH304",
            "nodes",
            f"nobody could log in to the {new} new nodes: the host keys that they show may not be read",
            detail=refusal,
            hint=f"these credentials need `{permission}`",
            severity=severity,
        )


def fingerprint(*parts: object) -> str:
    """A mark that changes with its parts."""
    text = json.dumps(parts, default=_plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _plain(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    return dump() if dump is not None else asdict(value)  # type: ignore[call-overload]


def budget_findings(
    fleet: Fleet,
    price: float | None,
    fixed: float,
    price_of: str | None = None,
    *,
    backend: str,
    nodes: int | None = None,
    other_nodes: Sequence[tuple[int, float | None]] = (),
    later: int = 0,
) -> Iterator[Finding]:
    """Whether the fleet at its largest is within the hourly budget. `fixed`: what it costs without nodes;
    `price_of`: the region whose price it is, where its own is not known; `backend`: whose price.

    `nodes` are of this price, None: all of them. `other_nodes`: how many others there are, at which prices;
    `later`: how many more are judged after this. Nodes that nobody has asked for yet count as the dearest.
    """
    from orch.catalog.refresh import refreshable

    if fleet.budget is None or fleet.budget.hourly is None or fleet.nodes is None:
        return
    most = fleet.nodes.target if fleet.nodes.max is None else fleet.nodes.max
    bound = float(fleet.budget.hourly)
    counts = Counter[float | None]()
    for count, each in (*other_nodes, (most if nodes is None else nodes, price)):
        counts[each] += count
    dearest = max(counts, key=lambda each: each or 0.0)
    counts[dearest] += 0 if later else max(0, most - counts.total())
    priced = {each: count for each, count in counts.items() if each is not None and count}
    hourly = sum(each * count for each, count in priced.items()) + fixed
    fetched = f"`orch offers refresh {backend}` fetches it" if backend in refreshable() else None
    if hourly > bound and priced:
        each_costs = (f"{n} node{'s' * (n != 1)} at {money(each)} an hour" for each, n in priced.items())
        more = f" and {money(fixed)} beside them" if fixed else ""
        yield Finding(
            "ORCH281",
            "budget.hourly",
            f"{', '.join(each_costs)}{more} make {money(hourly)}, over the budget of {money(bound)}",
            hint="raise `budget.hourly`, or ask for fewer or cheaper nodes",
        )
    elif counts[None]:
        yield Finding(
            "ORCH282",
            "budget.hourly",
            "the price of the nodes is not known: the budget cannot be checked",
            hint=fetched,
            severity=Severity.WARNING,
        )
    elif price_of is not None:
        yield Finding(
            "ORCH282",
            "budget.hourly",
            f"the nodes' price there is not known: the budget was checked with that of {price_of}",
            hint=fetched,
            severity=Severity.WARNING,
        )


WARN_AT = 0.8
"""The part of `budget.total` from which on a plan warns."""


def total_budget_findings(budget: Budget, spent: Spent, new: int) -> Iterator[Finding]:
    """Whether a fleet may get `new` nodes, by what it has cost so far. It may lose nodes in any case."""
    if budget.total is None:
        return
    bound, path = float(budget.total), "budget.total"
    if spent.dollars is None:
        yield Finding(
            "ORCH282",
            path,
            "what the fleet has cost is not known: the budget cannot be checked",
            detail=spent.problem,
            severity=Severity.WARNING,
        )
        return
    if spent.unpriced_hours:
        yield Finding(
            "ORCH282",
            path,
            f"{spent.unpriced_hours:.1f} node-hours of the fleet have no known price: the budget was checked "
            "without them",
            severity=Severity.WARNING,
        )
    so_far = f"the fleet has cost {money(spent.dollars)} so far"
    if spent.dollars >= bound and new:
        nodes = f"{new} new node{'s' * (new != 1)}"
        yield Finding(
            "ORCH281",
            path,
            f"{so_far}, its budget is {money(bound)}: {nodes} would add to it",
            hint="raise `budget.total`, or bring it up with the nodes that it has; `orch cost` tells of what",
        )
    elif spent.dollars >= bound * WARN_AT:
        yield Finding(
            "ORCH289",
            path,
            f"{so_far}, {int(spent.dollars / bound * 100)}% of its budget of {money(bound)}",
            hint="once all of it is spent, the fleet gets no new node; those that it has go on costing",
            severity=Severity.WARNING,
        )
