"""From a fleet to its plan on AWS: what must be asked is asked, then `plan` decides.

`candidates_of` gives the places to try; `compile_aws` plans one of them. Whoever tries them (a gang) takes
them in order, and reads what the cloud said with `errors.read`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.catalog.load import catalog as load_catalog
from orch.components.aws.account import gather_facts
from orch.components.aws.account.facts import Zone
from orch.components.aws.account.lookups import question
from orch.components.aws.candidates import Candidate, candidates, in_written_zones
from orch.components.aws.explain import traits
from orch.components.aws.plan import AwsPlan
from orch.components.aws.planner import Context, plan
from orch.components.aws.zones import settled
from orch.components.cloud.fleet import CloudFleet, moves, regions_of, scripts
from orch.components.cloud.indices import folded, live_indices
from orch.components.findings import Finding, PlanErrors
from orch.components.request import PriorState
from orch.offers.match import aws_zone_name
from orch.spec.models import Fleet
from orch.spec.models.backends import AwsSettings

if TYPE_CHECKING:
    import pulumi

# Where instances are is told a little after their launch.
TOPOLOGY_TRIES = 6
TOPOLOGY_PAUSE_S = 5.0

PINNED_IMAGES = tuple(
    f"{image}{part}" for image in ("image", "bastion_image") for part in ("", "_name", "_of", "_region")
)


def settings_of(backends: Sequence[object]) -> AwsSettings:
    """The `aws` entry of orch.yml, or its defaults."""
    return next((each for each in backends if isinstance(each, AwsSettings)), AwsSettings())


def candidates_of(
    fleet: Fleet, settings: AwsSettings, previous: PriorState, *, session: gather_facts.Session
) -> tuple[Candidate, ...]:
    """Where the fleet may go, in the order to try. Asks for what names and ids mean in this account.

    Raises PlanErrors, CloudRefused.
    """
    known = load_catalog()
    zones, found = _named_zones(fleet, settings, session), None
    if fleet.reservation is not None:
        regions = fleet.regions or settings.regions or regions_of(fleet, "aws")
        found = gather_facts.reservation(session, fleet.reservation, regions, settings.endpoint_url)
        if found is None:
            raise PlanErrors([_no_reservation(fleet, regions)])
    return candidates(fleet, settings, known, previous=previous, zones=zones, reservation=found)


def settler(
    fleet: Fleet, settings: AwsSettings, *, session: gather_facts.Session
) -> Callable[[Sequence[Candidate]], tuple[Candidate, ...]]:
    """What finds the zone of the first of some places, by asking the account: each region once.

    It raises PlanErrors when the account has none of them, and CloudRefused.
    """

    @cache
    def of_region(region: str, types: frozenset[str]) -> Mapping[str, Sequence[str]]:
        return gather_facts.offered(session, region, types, settings.endpoint_url)

    def settle(places: Sequence[Candidate]) -> tuple[Candidate, ...]:
        if places[0].listed:
            return tuple(places)
        fits = in_written_zones(fleet, settings, load_catalog(), _named_zones(fleet, settings, session))
        return settled(fleet, places, lambda region, types: of_region(region, frozenset(types)), fits)

    return settle


def _named_zones(
    fleet: Fleet, settings: AwsSettings, session: gather_facts.Session
) -> Mapping[str, Sequence[Zone]]:
    """The zones of those regions that the file names zones of by their names."""
    named = [place[0] for zone in fleet.availability_zones if (place := aws_zone_name(zone)) is not None]
    if not named:
        return {}
    regions = fleet.regions or settings.regions or regions_of(fleet, "aws")
    asked = [region for region in dict.fromkeys(named) if region in regions or not regions]
    return gather_facts.zones(session, asked, settings.endpoint_url)


def compile_aws(
    fleet: Fleet,
    settings: AwsSettings,
    previous: PriorState,
    scope: str,
    *,
    session: gather_facts.Session,
    candidate: Candidate,
    tags: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> CloudFleet:
    """Plan the fleet at one candidate. `tags` are the project's, `folder` is where the file's paths begin.

    Raises PlanErrors, CloudRefused.
    """
    asked = question(fleet, settings, candidate, previous, scope)
    facts = gather_facts.ask(session, asked, settings.endpoint_url)
    texts = scripts(fleet, folder or Path.cwd())
    context = Context(settings, load_catalog(), scope, tags or {}, texts)
    final = plan(fleet, candidate, facts, previous, context)

    def ready(made: AwsPlan, before: tuple[CloudFleet, ...] = ()) -> CloudFleet:
        def register() -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str]]:
            from orch.components.aws.resources import AwsFleet

            component = AwsFleet(made, settings, lambda ids: _topology(session, made.region, ids, settings))
            return component.state, component.identity

        words = traits(fleet, made)
        return CloudFleet(made, candidate, words, register, only, before, moves(candidate, previous))

    def held(made: AwsPlan, running: int) -> CloudFleet:
        """EC2 shrinks a reservation no further than to what runs in it, and the engine deletes instances
        last."""
        if made.capacity.made is None or running <= made.capacity.made:
            return ready(made)
        larger = replace(made, capacity=replace(made.capacity, made=running))
        return ready(made, (ready(larger),))

    def only(names: Collection[str], running: int) -> CloudFleet:
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


def _no_reservation(fleet: Fleet, regions: Sequence[str]) -> Finding:
    return Finding(
        "ORCH322",
        "reservation",
        f"the account has no reservation {fleet.reservation} in {', '.join(regions)}",
        hint="name its region in `regions`; ids are listed by `aws ec2 describe-capacity-reservations`",
    )


def _topology(
    session: gather_facts.Session, region: str, ids: Sequence[str], settings: AwsSettings
) -> Mapping[str, tuple[str, ...]]:
    """Where the instances are. Those that AWS tells nothing of, or a refusal, leave ranks by number."""
    found: dict[str, tuple[str, ...]] = {}
    for left in range(TOPOLOGY_TRIES - 1, -1, -1):
        try:
            found = gather_facts.topology(session, region, ids, settings.endpoint_url)
        except gather_facts.CloudRefused as refused:
            import pulumi

            pulumi.log.warn(f"ranks go by node number: {refused.summary} ({refused.detail})")
            return {}
        if len(found) == len(ids) or not left:
            break
        time.sleep(TOPOLOGY_PAUSE_S)
    return found
