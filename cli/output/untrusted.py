"""`orch preview --untrusted`: what a stranger's fleets would be, without a look at anything but their files.

No project is opened: no state, no keys, no `.orch`; no engine is started, no account, host or name is asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.catalog.load import catalog as load_catalog
from orch.cli.diagnostics import backend_settings, load
from orch.cli.errors import say, tell
from orch.components.base import Candidate
from orch.components.cloud.sizing import budget_findings
from orch.components.local.facts import LocalFacts
from orch.components.local.plan import plan as plan_local
from orch.components.registry import backend, by_price
from orch.components.request import PriorState
from orch.offers.name_warnings import name_warnings
from orch.offers.query import machine_query
from orch.spec.diagnostics import Diagnostic, render_human
from orch.spec.findings import Finding, PlanError, PlanErrors, settle
from orch.spec.grammar.values import shown
from orch.spec.loader.fence import fence_around
from orch.spec.loader.text import MAX_BYTES, content
from orch.spec.loader.untrusted import Fence
from orch.spec.models import Fleet
from orch.spec.models.backends import effective, provisioned
from orch.spec.models.backends.base import BackendSettings
from orch.spec.rules.unsupported import backends_hint
from orch.spec.suggest import counted, few
from orch.stacks.errors import ProjectError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orch.spec.models.backends.base import BackendSettings

SCHEMA = 1


def preview(file: str, allowed: Sequence[str], *, as_json: bool) -> None:
    """Tells of each fleet of a file or folder. Raises InvalidConfiguration for what is wrong with any."""
    documents = load(file, untrusted=allowed)
    fleets = [(document, document.model) for document in documents if isinstance(document.model, Fleet)]
    if not fleets:
        raise ProjectError("there is no fleet in it", where=file, hint="a fleet begins with `type: fleet`")
    settings = backend_settings(file, documents, untrusted=allowed)
    fence = fence_around(file, frozenset(allowed))
    for document, fleet in fleets:
        doubtful = document.effective()
        try:
            found = outlook(fleet, settings, document.directory.absolute(), fence)
        except PlanError as error:
            raise error.placed(document) from error
        told = (*doubtful, *(finding.placed(document) for finding in found.findings))
        if as_json:
            print(json.dumps(outlook_json(found, told), indent=2, ensure_ascii=False))
            continue
        for line in outlook_lines(found):
            say(line)
        if told:
            tell(render_human(told))


def outlook_lines(found: Forecast) -> list[str]:
    cost = "its price is not known" if found.hourly is None else f"about ${found.hourly:.2f} per hour"
    nodes = f"{found.nodes} node{'' if found.nodes == 1 else 's'}"
    return [
        f"fleet {found.fleet}",
        *(f"  · {line}" for line in found.lines),
        *(f"  not looked at: {each}" for each in found.unseen),
        f"outlook: {nodes} on {found.backend}; {cost}",
    ]


def outlook_json(found: Forecast, told: Sequence[Diagnostic]) -> dict[str, Any]:
    """As a plan's JSON, with what was not looked at; nothing is known of changes."""
    return {
        "schema": SCHEMA,
        "fleet": found.fleet,
        "untrusted": True,
        "backend": found.backend,
        "nodes": found.nodes,
        "reasons": list(found.lines),
        "not_looked_at": list(found.unseen),
        "changes": None,
        "cost": {"hourly": found.hourly, "currency": "USD"},
        "diagnostics": [dict(each.as_dict()) for each in told],
    }


STATE = "the state: what is up already, and what would change"
_ANY_MACHINE = LocalFacts(cpus=1 << 20, memory_mib=1 << 40, node_image="orch/node")


@dataclass(frozen=True)
class Forecast:
    """`lines` tell what the fleet is. `hourly`: US dollars for all nodes, None where it is not known.

    `unseen`: what a plan would look at and this did not, each as a noun and why it matters.
    """

    fleet: str
    backend: str
    nodes: int
    lines: tuple[str, ...]
    hourly: float | None
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...]


def outlook(fleet: Fleet, settings: Sequence[BackendSettings], folder: Path, fence: Fence) -> Forecast:
    """The outlook of a fleet. `settings` are the backends of orch.yml, `folder` where the file's paths begin.
    Nothing outside `fence` is read, whatever its `allowed` says.

    Raises PlanError, PlanErrors.
    """
    if fleet.ssh_config is not None:
        return _hosts(fleet)
    backends = effective(fleet.written_backends, tuple(each.type for each in settings))
    if not backends:
        raise PlanError(
            "ORCH201",
            f"this version provisions {', '.join(provisioned())} only, not {', '.join(fleet.backends)}",
            path="backends",
            hint=backends_hint(each.type for each in settings),
        )
    if backends[0] == "local":
        return _local(fleet)
    return _cloud(fleet, backends, settings, _unread(fleet, folder, fence))


def _hosts(fleet: Fleet) -> Forecast:
    config = fleet.ssh_config
    hosts = tuple(name for host in (config.hosts if config else ()) for name in host.hostnames)
    named = few(hosts, 8)
    unseen = (
        "the hosts: nobody logged in to them, nor looked up their names",
        "your SSH configuration and keys",
    )
    return Forecast(fleet.name, "ssh", len(hosts), (f"existing hosts: {named}",), 0.0, (), (*unseen, STATE))


def _local(fleet: Fleet) -> Forecast:
    made = plan_local(fleet, _ANY_MACHINE, PriorState(), "outlook")
    limits = [f"{each.cpus:g} CPUs" if each.cpus else "CPUs shared" for each in made.nodes[:1]] + [
        f"{each.memory_mib} MiB" if each.memory_mib else "memory shared" for each in made.nodes[:1]
    ]
    lines = (f"containers on the machine that brings it up: {', '.join(limits)} each",) if limits else ()
    unseen = ("this machine: its Docker, CPUs and memory", STATE)
    return Forecast(fleet.name, "local", len(made.nodes), lines, 0.0, (), unseen)


def _unread(fleet: Fleet, folder: Path, fence: Fence) -> tuple[str, ...]:
    """The scripts of `init` outside the repository. Raises PlanErrors for those in it that cannot be read."""
    outside: list[str] = []
    found: list[Finding] = []
    for index, step in enumerate(fleet.init):
        if step.file is None:
            continue
        if step.file.startswith("~") or not fence.holds(folder / step.file):
            outside.append(f"the script {shown(step.file)}, outside the repository")
            continue
        try:
            data = content(folder / step.file)
            reason = "it is larger than 1 MiB" if len(data) > MAX_BYTES else None
            if reason is None:
                data.decode("utf-8")
        except (OSError, ValueError) as error:
            reason = str(error)
        if reason is not None:
            summary = f"the script {step.file} cannot be read"
            found.append(Finding("ORCH129", f"init[{index}].file", summary, detail=reason))
    if found:
        raise PlanErrors(found)
    return tuple(outside)


def _cloud(
    fleet: Fleet, backends: Sequence[str], settings: Sequence[BackendSettings], unread: tuple[str, ...]
) -> Forecast:
    known = load_catalog()
    places = _places(fleet, backends, settings)
    count = fleet.nodes.target if fleet.nodes is not None else 0
    first = places[0] if places else None
    doubtful = [
        each.finding
        for each in name_warnings(machine_query(fleet, known), known)
        if each.path[0] != "backends"
    ]
    price = first.price if first else None
    price_of = getattr(first, "price_of", None)
    backend = first.backend if first else backends[0]
    findings = settle((*doubtful, *budget_findings(fleet, price, 0.0, price_of, backend=backend)))
    lines = [f"{counted(count, 'node')}, first choice: {first.words}" if first else counted(count, "node")]
    if len(places) > 1:
        lines.append(f"{len(places) - 1} more places after it, the next {places[1].words}")
    unseen = ["the account: its networks, images, quotas and prices", "what there is room for", *unread]
    if fleet.reservation is not None:
        unseen.append(f"the reservation {fleet.reservation}, which decides type and zone")
    hourly = None if price is None else round(price * count, 6)
    where = first.backend if first else backends[0]
    return Forecast(fleet.name, where, count, tuple(lines), hourly, findings, (*unseen, STATE))


def _places(
    fleet: Fleet, backends: Sequence[str], settings: Sequence[BackendSettings]
) -> Sequence[Candidate]:
    """Where the fleet may go, in the order in which places would be tried. Raises PlanErrors for nowhere."""
    found: list[Sequence[Candidate]] = []
    refused: list[PlanErrors] = []
    for name in backends:
        place = backend(name)
        try:
            found.append(place.listed(fleet, place.entry(settings)))
        except PlanErrors as error:
            refused.append(error)
    if refused and not any(found):
        raise PlanErrors(each for error in refused for each in error.findings)
    return tuple(by_price(found))
