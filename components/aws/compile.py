"""From a fleet to its plan on AWS: what must be asked is asked, then `plan` decides.

`candidates_of` gives the places to try; `compile_aws` plans one of them. Whoever tries them (a gang) takes
them in order, and reads what the cloud said with `errors.read`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.catalog.load import catalog as load_catalog
from orch.components.aws import ask
from orch.components.aws.candidates import Candidate, candidates
from orch.components.aws.facts import Reservation, Zone
from orch.components.aws.plan import Context, plan
from orch.components.aws.planned import AwsPlan
from orch.components.aws.reasons import moves
from orch.components.aws.wanted import question
from orch.components.findings import Finding, PlanErrors
from orch.components.indices import folded, live_indices
from orch.components.offers import aws_zone_name
from orch.components.plan import Previous
from orch.components.wanted import wanted_of
from orch.spec.models import Fleet
from orch.spec.models.backends import AwsBackend

if TYPE_CHECKING:
    import pulumi

# Where instances are is told a little after their launch.
TOPOLOGY_TRIES = 6
TOPOLOGY_PAUSE_S = 5.0


@dataclass(frozen=True)
class CompiledAws:
    """A planned fleet, as `components.backends.Compiled`, with what only clouds have.

    `unpriced`: what costs money and has no price here. `starts` and `ends`: of a reservation, UTC. `before`:
    what has to be brought up first, a fleet that shrinks goes in two steps. `moves`: the stack is where the
    file now excludes it, and has to be removed before. `only`: the same plan with the nodes of these names
    alone, while so many are running.
    """

    plan: AwsPlan
    candidate: Candidate
    register: Callable[[], tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str]]]
    only: Callable[[Collection[str], int], CompiledAws]
    before: tuple[CompiledAws, ...] = ()
    moves: bool = False
    images: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[CompiledAws, ...]:
        """What `up` brings up one after the other; a preview shows the last."""
        return (*self.before, self)

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

    @property
    def starts(self) -> str | None:
        return self.plan.starts

    @property
    def ends(self) -> str | None:
        return self.plan.ends


# What says where a fleet is and what it is made from, apart from how far it got.
PLACE = ("backend", "scope", "region", "zone", "instance_type", "spot")
PINNED_IMAGES = tuple(
    f"{image}{part}" for image in ("image", "bastion_image") for part in ("", "_name", "_of")
)


def recovered(recorded: Mapping[str, str]) -> Previous:
    """What a stack that has no outputs yet decided, from the pins recorded at its component `orch:fleet:Aws`.

    They are there as soon as an `up` begins, so one that was killed goes on in the same zone.
    """
    return Previous({key: recorded[key] for key in (*PLACE, *PINNED_IMAGES) if key in recorded})


def settings_of(backends: Sequence[object]) -> AwsBackend:
    """The `aws` entry of orch.yml, or its defaults."""
    return next((each for each in backends if isinstance(each, AwsBackend)), AwsBackend())


def candidates_of(
    fleet: Fleet, settings: AwsBackend, previous: Previous, *, session: ask.Session
) -> tuple[Candidate, ...]:
    """Where the fleet may go, in the order to try. Asks for what names and ids mean in this account.

    Raises PlanErrors, CloudRefused.
    """
    known = load_catalog()
    regions = fleet.regions or settings.regions or _regions(fleet, settings)
    zones: Mapping[str, Sequence[Zone]] = {}
    named = [place[0] for zone in fleet.availability_zones if (place := aws_zone_name(zone)) is not None]
    if named:
        asked = [region for region in dict.fromkeys(named) if region in regions or not regions]
        zones = ask.zones(session, asked, settings.endpoint_url)
    found: Reservation | None = None
    if fleet.reservation is not None:
        found = ask.reservation(session, fleet.reservation, regions, settings.endpoint_url)
        if found is None:
            raise PlanErrors([_no_reservation(fleet, regions)])
    return candidates(fleet, settings, known, previous=previous, zones=zones, reservation=found)


def compile_aws(
    fleet: Fleet,
    settings: AwsBackend,
    previous: Previous,
    scope: str,
    *,
    session: ask.Session,
    candidate: Candidate,
    tags: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> CompiledAws:
    """Plan the fleet at one candidate. `tags` are the project's, `folder` is where the file's paths begin.

    Raises PlanErrors, CloudRefused.
    """
    facts = ask.ask(session, question(fleet, settings, candidate, previous), settings.endpoint_url)
    scripts = _scripts(fleet, folder or Path.cwd())
    context = Context(settings, load_catalog(), scope, tags or {}, scripts)
    final = plan(fleet, candidate, facts, previous, context)

    def ready(made: AwsPlan, before: tuple[CompiledAws, ...] = ()) -> CompiledAws:
        def register() -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str]]:
            from orch.components.aws.resources import AwsFleet

            component = AwsFleet(made, settings, lambda ids: _topology(session, made.region, ids, settings))
            return component.state, component.identity

        return CompiledAws(made, candidate, register, only, before, moves(candidate, previous))

    def held(made: AwsPlan, running: int) -> CompiledAws:
        """EC2 shrinks a reservation no further than to what runs in it, and the engine deletes instances
        last."""
        if made.capacity.made is None or running <= made.capacity.made:
            return ready(made)
        larger = replace(made, capacity=replace(made.capacity, made=running))
        return ready(made, (ready(larger),))

    def only(names: Collection[str], running: int) -> CompiledAws:
        return held(fewer(final, names), running)

    return held(final, len(live_indices(previous)) if candidate.kept else 0)


def fewer(made: AwsPlan, names: Collection[str]) -> AwsPlan:
    """The same plan with the nodes of these names alone."""
    nodes = tuple(node for node in made.nodes if node.name in names)
    capacity = made.capacity
    if capacity.made is not None:
        capacity = replace(capacity, made=len(nodes) or None)
    dropped = len(made.nodes) - len(nodes)
    return replace(
        made,
        nodes=nodes,
        capacity=capacity,
        pins={**made.pins, "indices": folded([node.index for node in nodes])},
        hourly=round(made.hourly - dropped * (made.price or 0.0), 6),
    )


def _regions(fleet: Fleet, settings: AwsBackend) -> tuple[str, ...]:
    """All regions that have an offer for the fleet's resources, for looking up its reservation."""
    known = load_catalog()
    patterns = wanted_of(fleet, known).instance_types
    lists = known.lists["aws"].offers
    names = {
        offer.region for offer in lists if offer.region and (not patterns or offer.type.name in patterns)
    }
    return tuple(sorted(names))


def _no_reservation(fleet: Fleet, regions: Sequence[str]) -> Finding:
    return Finding(
        "ORCH322",
        "reservation",
        f"the account has no reservation {fleet.reservation} in {', '.join(regions)}",
        hint="name its region in `regions`; ids are listed by `aws ec2 describe-capacity-reservations`",
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


def _topology(
    session: ask.Session, region: str, ids: Sequence[str], settings: AwsBackend
) -> Mapping[str, tuple[str, ...]]:
    """Where the instances are. Those that AWS tells nothing of, or a refusal, leave ranks by number."""
    found: dict[str, tuple[str, ...]] = {}
    for left in range(TOPOLOGY_TRIES - 1, -1, -1):
        try:
            found = ask.topology(session, region, ids, settings.endpoint_url)
        except ask.CloudRefused as refused:
            import pulumi

            pulumi.log.warn(f"ranks go by node number: {refused.summary} ({refused.detail})")
            return {}
        if len(found) == len(ids) or not left:
            break
        time.sleep(TOPOLOGY_PAUSE_S)
    return found
