"""From a fleet to its plan on GCP: what must be asked is asked, then `plan` decides.

`candidates_of` gives the places to try; `compile_gcp` plans one of them. Whoever tries them (a gang) takes
them in order, and reads what the cloud said with `errors.read`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.catalog.load import catalog as load_catalog
from orch.components.findings import Finding, PlanErrors
from orch.components.gcp import ask
from orch.components.gcp.candidates import Candidate, candidates
from orch.components.gcp.facts import Member, Reservation
from orch.components.gcp.plan import Context, plan
from orch.components.gcp.planned import GcpPlan, NetworkStack
from orch.components.gcp.wanted import question
from orch.components.plan import Previous
from orch.components.wanted import wanted_of
from orch.spec.models import Fleet
from orch.spec.models.backends import GcpBackend

if TYPE_CHECKING:
    import pulumi

# Instances are listed, and where they stand is told, a little after their creation.
MEMBER_TRIES = 6
MEMBER_PAUSE_S = 5.0


@dataclass(frozen=True)
class CompiledGcp:
    """A planned fleet, as `components.backends.Compiled`, with what only clouds have.

    `unpriced`: what costs money and has no price here. `network`: networks that a stack of their own must
    have made before, and `register_network` makes them.
    """

    plan: GcpPlan
    candidate: Candidate
    register: Callable[[], tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str]]]
    register_network: Callable[[], None]
    images: tuple[str, ...] = ()
    starts: str | None = None
    ends: str | None = None

    @property
    def network(self) -> NetworkStack | None:
        return self.plan.shared

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.plan.reasons

    @property
    def pins(self) -> dict[str, str]:
        return dict(self.plan.pins)

    @property
    def hourly(self) -> float:
        return self.plan.hourly

    @property
    def unpriced(self) -> tuple[str, ...]:
        return self.plan.unpriced

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return self.plan.warnings


def settings_of(backends: Sequence[object]) -> GcpBackend:
    """The `gcp` entry of orch.yml, or its defaults."""
    return next((each for each in backends if isinstance(each, GcpBackend)), GcpBackend())


def candidates_of(
    fleet: Fleet,
    settings: GcpBackend,
    previous: Previous,
    *,
    session: ask.Session,
    network: Previous = Previous(),  # noqa: B008 - frozen
) -> tuple[Candidate, ...]:
    """Where the fleet may go, in the order to try. Asks for the fleet's reservation, if it has one.

    `network`: what the stack of the networks that it shares has decided.

    Raises PlanErrors, CloudRefused.
    """
    known = load_catalog()
    found: Reservation | None = None
    if fleet.reservation is not None:
        regions = fleet.regions or settings.regions or _regions(fleet)
        zones = _zones(fleet)
        found = ask.reservation(session, fleet.reservation, regions, zones)
        if found is None:
            raise PlanErrors([_no_reservation(fleet, zones or regions)])
    return candidates(fleet, settings, known, previous=previous, reservation=found, network=network)


def compile_gcp(
    fleet: Fleet,
    settings: GcpBackend,
    previous: Previous,
    scope: str,
    *,
    session: ask.Session,
    candidate: Candidate,
    network: Previous = Previous(),  # noqa: B008 - frozen
    tags: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> CompiledGcp:
    """Plan the fleet at one candidate.

    `network`: what the stack of the networks that it shares has decided. `tags` are the project's, `folder`
    is where the file's paths begin.

    Raises PlanErrors, CloudRefused.
    """
    facts = ask.ask(session, question(fleet, settings, candidate, previous))
    scripts = _scripts(fleet, folder or Path.cwd())
    context = Context(settings, load_catalog(), scope, tags or {}, scripts, network)
    made = plan(fleet, candidate, facts, previous, context)

    def read(group: str, count: int) -> tuple[Member, ...]:
        return members(session, made.zone, group, count, needed=made.group is not None)

    def register() -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str]]:
        from orch.components.gcp.resources import GcpFleet

        component = GcpFleet(made, settings, read)
        return component.state, component.identity

    def register_network() -> None:
        from orch.components.gcp.ground import GcpNetworks

        if made.shared is not None:
            GcpNetworks(made.shared, made.project, context.scope, settings)

    return CompiledGcp(made, candidate, register, register_network)


def members(session: ask.Session, zone: str, group: str, count: int, *, needed: bool) -> tuple[Member, ...]:
    """The fleet's instances once all are listed and tell where they stand, or as many as there are by then.

    Where they are `needed` for more than the order of ranks: raises CloudRefused when there are too few.
    """
    found: tuple[Member, ...] = ()
    for left in range(MEMBER_TRIES - 1, -1, -1):
        try:
            found = ask.members(session, zone, group)
        except ask.CloudRefused as refused:
            if needed:
                raise
            import pulumi

            pulumi.log.warn(f"ranks go by node number: {refused.summary} ({refused.detail})")
            return ()
        if (len(found) >= count and all(each.host for each in found)) or not left:
            break
        time.sleep(MEMBER_PAUSE_S)
    if needed and len(found) < count:
        raise ask.CloudRefused(
            f"{len(found)} of {count} nodes are there",
            detail=f"instances in {zone} with the label orch-group={group}",
            hint="run `orch up` again: what is missing is made",
            code="ORCH359",
        )
    return found


def _regions(fleet: Fleet) -> tuple[str, ...]:
    """All regions that have an offer for the fleet's resources, for looking up its reservation."""
    known = load_catalog()
    patterns = wanted_of(fleet, known).instance_types
    lists = known.lists["gcp"].offers
    names = {
        offer.region for offer in lists if offer.region and (not patterns or offer.type.name in patterns)
    }
    return tuple(sorted(names))


def _zones(fleet: Fleet) -> tuple[str, ...]:
    """The zone in a reservation's full path, else those of the file."""
    parts = (fleet.reservation or "").split("/")
    if "zones" in parts[:-1]:
        return (parts[parts.index("zones") + 1],)
    return fleet.availability_zones


def _no_reservation(fleet: Fleet, where: Sequence[str]) -> Finding:
    return Finding(
        "ORCH322",
        "reservation",
        f"there is no reservation {fleet.reservation} in {', '.join(where)}",
        hint="name its zone in `availability_zones`; `gcloud compute reservations list` lists them",
    )


def _scripts(fleet: Fleet, folder: Path) -> dict[str, str]:
    """The text of `init[].file`."""
    found: dict[str, str] = {}
    missing: list[Finding] = []
    for index, step in enumerate(fleet.init):
        if step.file is None:
            continue
        path = folder / Path(step.file).expanduser()
        try:
            found[step.file] = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            summary = f"the script {step.file} cannot be read"
            missing.append(Finding("ORCH129", f"init[{index}].file", summary, detail=str(error)))
    if missing:
        raise PlanErrors(missing)
    return found
