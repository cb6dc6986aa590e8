"""From a fleet to its plan on GCP: what must be asked is asked, then `plan` decides.

`candidates_of` gives the places to try; `compile_gcp` plans one of them. Whoever tries them (a gang) takes
them in order, and reads what the cloud said with `errors.read`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.catalog.load import catalog as load_catalog
from orch.components.cloud.fleet import CloudFleet, moves, regions_of, scripts
from orch.components.cloud.indices import folded, live_indices
from orch.components.deployment import SHARED, Queue, Shared
from orch.components.findings import Finding, PlanErrors
from orch.components.gcp.account import gather_facts
from orch.components.gcp.account.facts import Member, Reservation
from orch.components.gcp.account.lookups import question, shape_of
from orch.components.gcp.candidates import Candidate, candidates
from orch.components.gcp.capacity import max_wait_s
from orch.components.gcp.explain import traits
from orch.components.gcp.labels import label
from orch.components.gcp.plan import GcpPlan
from orch.components.gcp.planner import Context, node_os, plan
from orch.components.gcp.userdata import node_scratch
from orch.components.request import CloudAnswer, PriorState
from orch.spec.grammar.values import render_duration
from orch.spec.models import Fleet
from orch.spec.models.backends import GcpSettings

if TYPE_CHECKING:
    import pulumi

# Instances are listed, and where they stand is told, a little after their creation.
MEMBER_TRIES = 6
MEMBER_PAUSE_S = 5.0


PINNED_IMAGES = ("image", "image_of", "bastion_image", "bastion_image_of")


def settings_of(backends: Sequence[object]) -> GcpSettings:
    """The `gcp` entry of orch.yml, or its defaults."""
    return next((each for each in backends if isinstance(each, GcpSettings)), GcpSettings())


def candidates_of(
    fleet: Fleet,
    settings: GcpSettings,
    previous: PriorState,
    *,
    session: gather_facts.Session,
    network: PriorState = PriorState(),  # noqa: B008 - frozen
) -> tuple[Candidate, ...]:
    """Where the fleet may go, in the order to try. Asks for the fleet's reservation, if it has one.

    `network`: what the stack of the networks that it shares has decided.

    Raises PlanErrors, CloudRefused.
    """
    known = load_catalog()
    found: Reservation | None = None
    if fleet.reservation is not None:
        regions = fleet.regions or settings.regions or regions_of(fleet, "gcp")
        zones = _zones(fleet)
        found = gather_facts.reservation(session, fleet.reservation, regions, zones)
        if found is None:
            raise PlanErrors([_no_reservation(fleet, zones or regions)])
    return candidates(fleet, settings, known, previous=previous, reservation=found, network=network)


def compile_gcp(
    fleet: Fleet,
    settings: GcpSettings,
    previous: PriorState,
    scope: str,
    *,
    session: gather_facts.Session,
    candidate: Candidate,
    network: PriorState = PriorState(),  # noqa: B008 - frozen
    tags: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> CloudFleet:
    """Plan the fleet at one candidate.

    `network`: what the stack of the networks that it shares has decided. `tags` are the project's, `folder`
    is where the file's paths begin.

    Raises PlanErrors, CloudRefused.
    """
    facts = gather_facts.ask(session, question(fleet, settings, candidate, previous))
    texts = scripts(fleet, folder or Path.cwd())
    context = Context(settings, load_catalog(), scope, tags or {}, texts, network)
    final = plan(fleet, candidate, facts, previous, context)

    def ready(made: GcpPlan, *, waits: bool = False) -> CloudFleet:
        def read(group: str, count: int) -> tuple[Member, ...]:
            grouped = made.group is not None
            return members(session, made.zone, group, count, needed=grouped, hosts=made.rank_by_host)

        def register() -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str]]:
            from orch.components.gcp.resources import GcpFleet

            component = GcpFleet(made, settings, read)
            return component.state, component.identity

        local = node_scratch(fleet, shape_of(fleet, candidate), node_os(fleet, candidate))
        before: tuple[CloudFleet, ...] = ()
        there = len(live_indices(previous)) if candidate.kept else 0
        if made.group is not None and not waits and there < sum(made.group.batches):
            # Who the members are is known once they run: the group and its request come before.
            asked = with_nodes(made, [node.name for node in made.nodes[:there]], made.group.batches)
            before = (ready(asked, waits=True),)
        return CloudFleet(
            made,
            candidate,
            traits(made, local),
            register,
            lambda names, _: ready(fewer(made, names)),
            before,
            moves(candidate, previous),
            queue=_queue(fleet, session, made) if waits else None,
            makers=made.makers,
            shared=_shared(made, settings) if made.shared else None,
        )

    return ready(final)


def fewer(made: GcpPlan, names: Collection[str]) -> GcpPlan:
    """The same plan with the nodes of these names alone; of a group, whole batches."""
    batches: tuple[int, ...] = ()
    if made.group is not None:
        left = sum(node.name in names for node in made.nodes)
        batches = made.group.batches
        while sum(batches) > left:
            batches = batches[:-1]
    return with_nodes(made, names, batches)


def with_nodes(made: GcpPlan, names: Collection[str], batches: tuple[int, ...]) -> GcpPlan:
    """The same plan with these nodes and batches."""
    nodes = tuple(node for node in made.nodes if node.name in names)
    dropped = len(made.nodes) - len(nodes)
    pins = {**made.pins, "indices": folded([node.index for node in nodes])}
    group = made.group
    if group is not None:
        group = replace(group, batches=batches)
        pins["batches"] = ",".join(str(each) for each in batches)
    return replace(
        made,
        nodes=nodes,
        group=group,
        pins=pins,
        hourly=round(made.hourly - dropped * (made.price or 0.0), 6),
    )


def shared_stack(fleet: Fleet) -> str | None:
    """The stack of the networks that a fleet shares."""
    name = fleet.network.name if fleet.network is not None else None
    return f"{SHARED}{name}" if name else None


def _shared(made: GcpPlan, settings: GcpSettings) -> Shared | None:
    networks = made.shared
    if networks is None:
        return None

    def register() -> None:
        from orch.components.gcp.network_resources import GcpNetworks

        GcpNetworks(networks, made.project, made.scope, settings)

    return Shared(networks.name, networks.pins, register)


def _queue(fleet: Fleet, session: gather_facts.Session, made: GcpPlan) -> Queue | None:
    group = made.group
    if group is None:
        return None
    count, name, wait_s = sum(group.batches), label(made.base), max_wait_s(fleet)
    what = f"{group.batches[-1]} nodes in the queue of {made.zone}"
    words = f"waiting for {what}, for {render_duration(wait_s)} at most"

    def look() -> CloudAnswer | bool | None:
        request = f"{group.name}-{len(group.batches) - 1}"
        refused = gather_facts.refused_request(session, made.zone, group.name, request)
        if refused is not None:
            return refused.answer
        return len(gather_facts.members(session, made.zone, name)) >= count or None

    return Queue(words, float(wait_s), look)


def members(
    session: gather_facts.Session, zone: str, group: str, count: int, *, needed: bool, hosts: bool = True
) -> tuple[Member, ...]:
    """The fleet's instances once all are listed, or as many as there are by then.

    `hosts`: they tell where they stand by then, too. Where they are `needed` for more than ranks: raises
    CloudRefused when there are too few.
    """
    found: tuple[Member, ...] = ()
    for left in range(MEMBER_TRIES - 1, -1, -1):
        try:
            found = gather_facts.members(session, zone, group)
        except gather_facts.CloudRefused as refused:
            if needed:
                raise
            import pulumi

            pulumi.log.warn(f"ranks go by node number: {refused.summary} ({refused.detail})")
            return ()
        told = not hosts or all(each.host for each in found)
        if (len(found) >= count and told) or not left:
            break
        time.sleep(MEMBER_PAUSE_S)
    if needed and len(found) < count:
        raise gather_facts.CloudRefused(
            f"{len(found)} of {count} nodes are there",
            detail=f"instances in {zone} with the label orch-group={group}",
            hint="run `orch up` again: what is missing is made",
            code="ORCH359",
        )
    return found


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
