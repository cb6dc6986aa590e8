"""The backend `gcp`: Compute Engine clusters with GPUDirect over TCPX, TCPXO and RoCE.

`gather_facts.py` asks the project, `planner.py` decides (pure).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from orch.catalog.load import catalog as load_catalog
from orch.components.accounts import Account, selected_in_rehearsal
from orch.components.cloud.backend import CloudBackend, regions_of
from orch.components.cloud.candidates import CloudCandidate
from orch.components.cloud.node_groups import may_spread
from orch.components.cloud.planner import AnyPlanner, PlanContext
from orch.components.cloud_errors import CloudError
from orch.components.deployment import SHARED, Queue, SharedNetworks
from orch.components.explain import Explained, Traits
from orch.components.gcp.account import errors, gather_facts, marked, new_nodes, orphans
from orch.components.gcp.account.facts import GcpFacts, Reservation
from orch.components.gcp.account.labels import label
from orch.components.gcp.account.lookups import needed_lookups, shape_of
from orch.components.gcp.candidates import candidates
from orch.components.gcp.capacity import flex_start, max_wait_s
from orch.components.gcp.explain import EXPLAINED, traits
from orch.components.gcp.plan import GcpPlan, base_name
from orch.components.gcp.planner import GcpPlanner, node_os
from orch.components.gcp.userdata import node_scratch
from orch.components.lifetime import is_over
from orch.components.marks.marked import MarkedResource, Survey
from orch.components.marks.orphans import StackSnapshot
from orch.components.node_count import live_indices
from orch.components.request import CloudAnswer, PlanRequest, PriorState
from orch.spec.findings import Finding, PlanErrors
from orch.spec.grammar.values import render_duration
from orch.spec.models import Fleet
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.gcp import GcpSettings

if TYPE_CHECKING:
    from orch.components.volumes import VolumeBackend

PINNED_IMAGES = ("image", "image_of", "bastion_image", "bastion_image_of")

_PROVIDER = "pulumi:providers:gcp"


class GcpBackend(CloudBackend[GcpFacts, GcpPlan]):
    name: ClassVar[str] = "gcp"
    settings: ClassVar[type[BackendSettings]] = GcpSettings
    packages: ClassVar[tuple[str, ...]] = ("gcp:",)
    key_variables: ClassVar[tuple[str, ...]] = ("GOOGLE_APPLICATION_CREDENTIALS",)
    explained: ClassVar[Explained] = EXPLAINED
    planner: ClassVar[type[AnyPlanner] | None] = GcpPlanner
    node_type: ClassVar[str] = "gcp:compute/instanceFromTemplate:InstanceFromTemplate"
    image_pins: ClassVar[tuple[str, ...]] = PINNED_IMAGES

    def open_session(self, settings: GcpSettings) -> gather_facts.Session:
        return gather_facts.open_session(settings)

    def volumes(self) -> VolumeBackend:
        from orch.components.gcp.volumes import GcpVolumes

        return GcpVolumes()

    def candidates(self, request: PlanRequest) -> Sequence[CloudCandidate]:
        """Asks for the fleet's reservation, if it has one."""
        return candidates(
            request.fleet,
            self.settings_of(request),
            load_catalog(),
            previous=self.placed(request),
            reservation=self._reservation(request),
            other_backends=request.backends,
            network=self._shared_networks(request),
        )

    def listed(self, fleet: Fleet, settings: GcpSettings) -> Sequence[CloudCandidate]:
        return candidates(fleet, settings, load_catalog())

    def facts(self, request: PlanRequest, candidate: CloudCandidate) -> GcpFacts:
        settings, prior = self.settings_of(request), self.prior(request)
        lookups = needed_lookups(request.fleet, settings, candidate, prior, indices=request.indices)
        return gather_facts.ask(self.session(request), lookups)

    def plan_context(self, request: PlanRequest) -> PlanContext[GcpSettings]:
        return replace(super().plan_context(request), network=self._shared_networks(request))

    def group_with(self, group: GcpPlan, names: Collection[str]) -> GcpPlan:
        """Of a managed group, whole batches."""
        return fewer(group, names)

    def spreads(self, request: PlanRequest, kept: CloudCandidate) -> bool:
        """Zones have the subnets of their region in common, but for networks of a zone alone; members of a
        managed group are in its zone."""
        fleet = request.fleet
        return may_spread(fleet) and not flex_start(fleet) and not shape_of(fleet, kept).profile

    def zone_names(self, request: PlanRequest, region: str) -> Mapping[str, str]:
        zones = {offer.zone for offer in load_catalog().lists["gcp"].offers if offer.region == region}
        return {zone.lower(): zone for zone in zones if zone}

    def stages(
        self, request: PlanRequest, candidate: CloudCandidate, plan: GcpPlan, running: Mapping[int, int]
    ) -> Iterator[tuple[GcpPlan, Queue | None]]:
        """The members of a group are known once they run, so the group and its request are a stage before."""
        existing = len(live_indices(self.prior(request))) if candidate.kept else 0
        if plan.group is not None and existing < sum(plan.group.batches):
            names = [node.name for node in plan.nodes[:existing]]
            stage = self.join([with_nodes(plan, names, plan.group.batches)])
            yield stage, _queue(request.fleet, self.session(request), stage)

    def shared(self, request: PlanRequest, plan: GcpPlan) -> SharedNetworks | None:
        return _shared(plan, self.settings_of(request))

    def makers(self, plan: GcpPlan) -> Mapping[str, str]:
        return plan.makers

    def new_node(self, plan: GcpPlan) -> Mapping[str, Any]:
        return {**super().new_node(plan), "reservation": plan.node_groups[-1].reservation}

    def traits(self, request: PlanRequest, candidate: CloudCandidate, plan: GcpPlan) -> Traits:
        fleet = request.fleet
        return traits(plan, node_scratch(fleet, shape_of(fleet, candidate), node_os(fleet, candidate)))

    def cloud_error(self, text: str) -> CloudError | None:
        return errors.read(text)

    def account(self, settings: Iterable[BackendSettings], session: Callable[[str], Any]) -> Account:
        own: GcpSettings = self.entry(settings)
        given = session(self.name)
        project = given or self.open_session(own)
        caller = project.email() or "a login of which Google tells no e-mail"
        selected = gather_facts.selected_by(own) if given is None else selected_in_rehearsal()
        words = f"GCP project {project.project} as {caller}"
        return Account(words, gather_facts.number(project), selected)

    def tunnel_environment(self, settings: BackendSettings) -> Mapping[str, str]:
        from orch.components.gcp.fleet_state import tunnel_environment

        return tunnel_environment(settings) if isinstance(settings, GcpSettings) else {}

    def survey(self, project: str, state: StackSnapshot) -> Survey:
        """In the project that orch.yml names, and those of the state."""
        session = self.asked_by(state)
        projects = {str(each.inputs["project"]) for each in state.recorded if each.type == _PROVIDER}
        if not state.narrow and any(isinstance(each, GcpSettings) for each in state.settings):
            projects |= {session.project}
        return marked.survey(session, projects, project, state.marks, self.price, data=not state.narrow)

    def delete_orphans(self, snapshot: StackSnapshot) -> Iterable[str]:
        return orphans.delete_orphans(snapshot)

    def delete_data(self, resources: Sequence[MarkedResource], state: StackSnapshot) -> Iterable[str]:
        return marked.delete_data(self.asked_by(state), resources)

    def ended_nodes(
        self, previous: PriorState, settings: Iterable[BackendSettings], session: Callable[[str], Any]
    ) -> frozenset[str]:
        account = session(self.name) or self.open_session(self.entry(settings))
        pins = previous.pins
        if pins.get("project") != account.project:
            return frozenset()
        base = base_name(previous.nodes[0].name.rpartition("-")[0], pins.get("scope", ""))
        nodes = {node.machine: node for node in previous.nodes if node.machine and node.zone}
        over, ended = is_over(pins, time.time()), set[str]()
        for zone in sorted({node.zone or "" for node in nodes.values()}):
            # Members of a managed group have names that GCP chose, and labels that it gives them.
            instances = {
                number: f"{base}-{node.index}" for number, node in nodes.items() if node.zone == zone
            }
            ended |= gather_facts.ended_by_themselves(account, zone, label(base), instances, over=over)
        return frozenset(nodes[each].name for each in ended)

    def _shared_networks(self, request: PlanRequest) -> PriorState:
        """What the stack of the networks that the fleet shares has decided.

        Read for each candidate anew: networks that were made for another one are gone by then.
        """
        name = shared_stack(request.fleet)
        return request.stack(name) if name else PriorState()

    def _reservation(self, request: PlanRequest) -> Reservation | None:
        fleet, settings = request.fleet, self.settings_of(request)
        if fleet.reservation is None:
            return None
        regions = fleet.regions or settings.regions or regions_of(fleet, self.name)
        zones = _zones(fleet)
        reservation = gather_facts.reservation(self.session(request), fleet.reservation, regions, zones)
        if reservation is None:
            raise PlanErrors([_no_reservation(fleet, zones or regions)])
        return reservation


def fewer(plan: GcpPlan, names: Collection[str]) -> GcpPlan:
    """The same plan with the nodes of these names alone; of a group, whole batches."""
    batches: tuple[int, ...] = ()
    if plan.group is not None:
        count = sum(node.name in names for node in plan.nodes)
        batches = plan.group.batches
        while sum(batches) > count:
            batches = batches[:-1]
    return with_nodes(plan, names, batches)


def with_nodes(plan: GcpPlan, names: Collection[str], batches: tuple[int, ...]) -> GcpPlan:
    """The same plan with these nodes and batches."""
    nodes = tuple(node for node in plan.nodes if node.name in names)
    pins = dict(plan.pins)
    group = plan.group
    if group is not None:
        group = replace(group, batches=batches)
        pins["batches"] = ",".join(str(each) for each in batches)
    return replace(plan, nodes=nodes, group=group, pins=pins)


def shared_stack(fleet: Fleet) -> str | None:
    """The stack of the networks that a fleet shares."""
    name = fleet.network.name if fleet.network is not None else None
    return f"{SHARED}{name}" if name else None


def _shared(plan: GcpPlan, settings: GcpSettings) -> SharedNetworks | None:
    networks = plan.shared
    if networks is None:
        return None

    def register() -> None:
        from orch.components.gcp.network_resources import GcpNetworks

        GcpNetworks(networks, plan.project, plan.scope, settings)

    return SharedNetworks(networks.name, networks.pins, register)


def _queue(fleet: Fleet, session: gather_facts.Session, plan: GcpPlan) -> Queue | None:
    group = plan.group
    if group is None:
        return None
    wait_s = max_wait_s(fleet)
    nodes = f"{group.batches[-1]} nodes in the queue of {plan.zone}"
    message = f"waiting for {nodes}, for {render_duration(wait_s)} at most"

    def look() -> CloudAnswer | bool | None:
        outcome = new_nodes.queue_outcome(session, plan)
        return outcome.answer if isinstance(outcome, CloudError) else outcome

    return Queue(message, float(wait_s), look)


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
