"""`orch preview --untrusted`: the fleets of a stranger's files, from these files and the catalogue alone.

No project is opened: no state, no keys, no `.orch`; no engine is started, no account, host or name is asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.catalog.load import catalog as load_catalog
from orch.cli.diagnostics import backend_settings, load, read
from orch.cli.errors import say, tell, worst
from orch.components.base import Candidate
from orch.components.cloud.sizing import budget_findings
from orch.components.local.facts import LocalFacts
from orch.components.local.plan import plan as plan_local
from orch.components.registry.backends import backend
from orch.components.registry.planning import by_price
from orch.components.request import PriorState
from orch.offers.name_warnings import name_warnings
from orch.offers.query import machine_query
from orch.spec.diagnostics import Diagnostic, Severity, render_human
from orch.spec.document.fence import fence_around
from orch.spec.document.text import MAX_BYTES, content
from orch.spec.errors import ExitCode
from orch.spec.findings import Finding, PlanError, PlanErrors, settle
from orch.spec.grammar.values import shown
from orch.spec.loader.load import InvalidConfiguration
from orch.spec.loader.untrusted import Fence
from orch.spec.models import Fleet
from orch.spec.models.backends import effective, entry_of, provisioned
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.local import LocalSettings
from orch.spec.rules.unsupported import backends_hint
from orch.spec.suggest import counted, few
from orch.stacks.errors import ProjectError

if TYPE_CHECKING:
    from orch.spec.loader.load import Document

SCHEMA = 1


def preview(file: str, allowed: Sequence[str], *, as_json: bool) -> None:
    """Prints a forecast of each fleet of a file or folder. Raises InvalidConfiguration for errors."""
    documents = load(file, untrusted=allowed)
    if not any(isinstance(document.model, Fleet) for document in documents):
        raise ProjectError("there is no fleet in it", where=file, hint="a fleet begins with `type: fleet`")
    for forecast, diagnostics in _forecasts(file, documents, allowed):
        if isinstance(forecast, InvalidConfiguration):
            raise forecast
        if as_json:
            print(json.dumps(outlook_json(forecast, diagnostics), indent=2, ensure_ascii=False))
            continue
        for line in outlook_lines(forecast):
            say(line)
        if diagnostics:
            tell(render_human(diagnostics))


def comment(file: str, allowed: Sequence[str], out: str | None) -> ExitCode:
    """Writes the comment on a stranger's files: their fleets as they would be, and all that is wrong with
    them, whatever that is. Without a file it goes to stdout. The exit code is the worst that was found."""
    from orch.ci.findings import findings_comment, findings_of
    from orch.cli.diagnostics import found_in
    from orch.cli.output.files import print_or_write, refuse_overwriting

    loaded = read(file, untrusted=allowed)
    refuse_overwriting(loaded, [out])
    found = list(found_in(loaded, untrusted=True))
    codes = [ExitCode.CONFIG if any(each.severity is Severity.ERROR for each in found) else ExitCode.OK]
    objects: list[dict[str, Any]] = []
    try:
        for forecast, diagnostics in _forecasts(file, loaded.documents, allowed):
            if isinstance(forecast, InvalidConfiguration):
                codes.append(ExitCode(forecast.exit_code))
                found += forecast.diagnostics
            else:
                objects.append(outlook_json(forecast, diagnostics))
    except InvalidConfiguration as error:  # of the `orch.yml` above
        codes.append(ExitCode(error.exit_code))
        found += error.diagnostics
    objects.append({"diagnostics": [dict(each.as_dict()) for each in found]})
    print_or_write(findings_comment(findings_of(objects, file), file, fork=True), out)
    return worst(iter(codes))


def _forecasts(
    file: str, documents: Sequence[Document], allowed: Sequence[str]
) -> Iterator[tuple[Forecast | InvalidConfiguration, tuple[Diagnostic, ...]]]:
    """A forecast of each fleet with its findings, or why there is none. Raises InvalidConfiguration for the
    `orch.yml` that goes with them."""
    fleets = [(document, document.model) for document in documents if isinstance(document.model, Fleet)]
    settings = backend_settings(file, documents, untrusted=allowed)
    fence = fence_around(file, frozenset(allowed))
    for document, fleet in fleets:
        warnings = document.effective()
        try:
            forecast = outlook(fleet, settings, document.directory.absolute(), fence)
        except PlanError as error:
            placed = error.placed(document)
            if not isinstance(placed, InvalidConfiguration):
                raise placed from error
            yield placed, ()
            continue
        yield forecast, (*warnings, *(finding.placed(document) for finding in forecast.findings))


def outlook_lines(forecast: Forecast) -> list[str]:
    cost = "its price is not known" if forecast.hourly is None else f"about ${forecast.hourly:.2f} per hour"
    nodes = f"{forecast.nodes} node{'' if forecast.nodes == 1 else 's'}"
    return [
        f"fleet {forecast.fleet}",
        *(f"  · {line}" for line in forecast.lines),
        *(f"  not looked at: {each}" for each in forecast.unchecked),
        f"outlook: {nodes} on {forecast.backend}; {cost}",
    ]


def outlook_json(forecast: Forecast, diagnostics: Sequence[Diagnostic]) -> dict[str, Any]:
    """The JSON of a plan, with `not_looked_at` in addition and without changes, which are unknown."""
    return {
        "schema": SCHEMA,
        "fleet": forecast.fleet,
        "untrusted": True,
        "backend": forecast.backend,
        "nodes": forecast.nodes,
        "reasons": list(forecast.lines),
        "not_looked_at": list(forecast.unchecked),
        "changes": None,
        "cost": {"hourly": forecast.hourly, "currency": "USD"},
        "diagnostics": [dict(each.as_dict()) for each in diagnostics],
    }


STATE = "the state: what is up already, and what would change"
_ANY_MACHINE = LocalFacts(cpus=1 << 20, memory_mib=1 << 40, node_image="orch/node")


@dataclass(frozen=True)
class Forecast:
    """`lines` tell what the fleet is. `hourly`: US dollars for all nodes, None where it is not known.

    `unchecked`: what a plan would look at and this did not, each as a noun and why it matters.
    """

    fleet: str
    backend: str
    nodes: int
    lines: tuple[str, ...]
    hourly: float | None
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...]


def outlook(fleet: Fleet, settings: Sequence[BackendSettings], folder: Path, fence: Fence) -> Forecast:
    """The forecast of a fleet. `settings` are the backends of orch.yml, `folder` is where relative paths
    start. Nothing outside `fence` is read, whatever its `allowed` says.

    Raises PlanError, PlanErrors.
    """
    if fleet.ssh_config is not None:
        return _hosts(fleet, _scripts_outside(fleet, folder, fence))
    backends = effective(fleet.written_backends, tuple(each.type for each in settings))
    if not backends:
        raise PlanError(
            "ORCH201",
            f"this version provisions {', '.join(provisioned())} only, not {', '.join(fleet.backends)}",
            path="backends",
            hint=backends_hint(each.type for each in settings),
        )
    if backends[0] == "local":
        local = entry_of(settings, LocalSettings)
        return _local(fleet, local, _scripts_outside(fleet, folder, fence))
    return _cloud(fleet, backends, settings, _scripts_outside(fleet, folder, fence))


def _hosts(fleet: Fleet, scripts: tuple[str, ...]) -> Forecast:
    config = fleet.ssh_config
    hosts = tuple(name for host in (config.hosts if config else ()) for name in host.hostnames)
    names = few(hosts, 8)
    unchecked = (
        "the hosts: nobody logged in to them, nor looked up their names",
        "your SSH configuration and keys",
    )
    return Forecast(
        fleet.name, "ssh", len(hosts), (f"existing hosts: {names}",), 0.0, (), (*unchecked, *scripts, STATE)
    )


def _local(fleet: Fleet, settings: LocalSettings, scripts: tuple[str, ...]) -> Forecast:
    plan = plan_local(fleet, _ANY_MACHINE, PriorState(), "outlook", settings=settings)
    limits = [f"{each.cpus:g} CPUs" if each.cpus else "CPUs shared" for each in plan.nodes[:1]] + [
        f"{each.memory_mib} MiB" if each.memory_mib else "memory shared" for each in plan.nodes[:1]
    ]
    lines = (f"containers on the machine that brings it up: {', '.join(limits)} each",) if limits else ()
    unchecked = ("this machine: its Docker, CPUs and memory", *scripts, STATE)
    return Forecast(fleet.name, "local", len(plan.nodes), lines, 0.0, (), unchecked)


def _scripts_outside(fleet: Fleet, folder: Path, fence: Fence) -> tuple[str, ...]:
    """The scripts of `init` outside the repository. Raises PlanErrors for unreadable ones inside."""
    outside: list[str] = []
    findings: list[Finding] = []
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
            findings.append(Finding("ORCH129", f"init[{index}].file", summary, detail=reason))
    if findings:
        raise PlanErrors(findings)
    return tuple(outside)


def _cloud(
    fleet: Fleet,
    backends: Sequence[str],
    settings: Sequence[BackendSettings],
    scripts: tuple[str, ...],
) -> Forecast:
    catalog = load_catalog()
    candidates = _candidates(fleet, backends, settings)
    count = fleet.nodes.target if fleet.nodes is not None else 0
    first = candidates[0] if candidates else None
    warnings = [
        each.finding
        for each in name_warnings(machine_query(fleet, catalog), catalog)
        if each.path[0] != "backends"
    ]
    price = first.price if first else None
    price_of = getattr(first, "price_of", None)
    backend = first.backend if first else backends[0]
    findings = settle((*warnings, *budget_findings(fleet, price, 0.0, price_of, backend=backend)))
    lines = [f"{counted(count, 'node')}, first choice: {first.words}" if first else counted(count, "node")]
    if len(candidates) > 1:
        lines.append(f"{len(candidates) - 1} more places after it, the next {candidates[1].words}")
    unchecked = [
        "the account: its networks, images, quotas and prices",
        "what there is room for",
        *scripts,
    ]
    if fleet.reservation is not None:
        unchecked.append(f"the reservation {fleet.reservation}, which decides type and zone")
    hourly = None if price is None else round(price * count, 6)
    backend_name = first.backend if first else backends[0]
    return Forecast(fleet.name, backend_name, count, tuple(lines), hourly, findings, (*unchecked, STATE))


def _candidates(
    fleet: Fleet, backends: Sequence[str], settings: Sequence[BackendSettings]
) -> Sequence[Candidate]:
    """Candidates of the fleet in the order in which they would be tried. Raises PlanErrors for none."""
    candidates: list[Sequence[Candidate]] = []
    errors: list[PlanErrors] = []
    for name in backends:
        driver = backend(name)
        try:
            candidates.append(driver.listed(fleet, driver.entry(settings)))
        except PlanErrors as error:
            errors.append(error)
    if errors and not any(candidates):
        raise PlanErrors(each for error in errors for each in error.findings)
    return tuple(by_price(candidates))
