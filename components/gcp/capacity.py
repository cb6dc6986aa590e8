"""What the nodes are taken from, how close they are, and whether there is enough of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from orch.catalog.gcp.machines import Shape
from orch.components.cloud.findings import short_reservation
from orch.components.cloud.node_groups import OtherGroups
from orch.components.gcp.account.facts import Allowance, GcpFacts
from orch.components.gcp.account.lookups import WEEK_S, flex_start, options
from orch.components.gcp.candidates import CloudCandidate
from orch.components.gcp.plan import GcpPlan, ManagedGroup, Placement, Scheduling
from orch.components.idleness import IdleRule, idle_rule
from orch.components.lifetime import Lifetime
from orch.components.request import PriorState
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.grammar.values import Problem, parse_duration, render_duration
from orch.spec.models import Fleet

LEAST_RUN_S, MOST_RUN_S = 600, 120 * 86_400
# How long a request may stay in the queue where the file says nothing: as long as a single instance may be
# waited for. Source: Google Cloud "About Flex-start VMs", wait time.
MAX_WAIT_S = 7200


@dataclass(frozen=True)
class Demand:
    """How many nodes, how many of them are new, and how many networks are made."""

    nodes: int
    new: int
    networks: int


def scheduling(fleet: Fleet, candidate: CloudCandidate, facts: GcpFacts) -> Scheduling:
    """Instances that the cloud takes back are deleted: a stopped one would stay and cost its disk.

    Instances with GPUs cannot move to another host. Those of a dense reservation live as long as it does.
    Source: Google Cloud "Set VM host maintenance policy", "Spot VMs", "Flex-start VMs", "Reservation-bound
    VMs".
    """
    gpus = candidate.type.gpu is not None
    if flex_start(fleet):
        return Scheduling("FLEX_START", "TERMINATE", restart=False, ends="DELETE", run_s=run_s(fleet))
    if candidate.spot:
        return Scheduling("SPOT", "TERMINATE", restart=False, ends="DELETE")
    maintenance = "TERMINATE" if gpus else "MIGRATE"
    if facts.reservation is not None and facts.reservation.dense:
        return Scheduling("RESERVATION_BOUND", maintenance, restart=True, ends="DELETE")
    return Scheduling("STANDARD", maintenance, restart=True)


def run_s(fleet: Fleet) -> int:
    """How long members of a queue live: as written, else as long as the fleet, at most a week."""
    written = options(fleet)[1].get("run_duration")
    if isinstance(written, str):
        try:
            return parse_duration(written) or WEEK_S
        except Problem:
            return WEEK_S
    return min(fleet.ttl_s or WEEK_S, WEEK_S)


def idleness(fleet: Fleet) -> IdleRule | None:
    """When nodes end themselves. Members of a managed group do not: it may make a member that is stopped
    anew, cannot shrink, and their names do not tell who is below the minimum.

    Source: Google Cloud "About repairing VMs for high availability in a MIG".
    """
    return None if flex_start(fleet) else idle_rule(fleet)


def lifetime_findings(lifetime: Lifetime | None, facts: GcpFacts) -> Iterator[Finding]:
    """What GCP does not limit. Source: Compute Engine documentation, "Limit the run time of a VM"."""
    if lifetime is None:
        return
    if lifetime.ttl_s > MOST_RUN_S:
        yield Finding(
            "ORCH234",
            "ttl",
            f"GCP limits the time of an instance to {render_duration(MOST_RUN_S)}, not "
            f"{render_duration(lifetime.ttl_s)}",
            hint="write a shorter `ttl`, or none and remove the fleet with `orch down`",
        )
    if facts.reservation is not None and facts.reservation.dense:
        yield Finding(
            "ORCH234",
            "ttl",
            f"instances of the reservation {facts.reservation.name} live as long as that does",
            hint="take `ttl` out and remove the fleet with `orch down`",
        )


def max_wait_s(fleet: Fleet) -> int:
    """How long a request may stay in the queue before the next zone is tried."""
    written = options(fleet)[1].get("max_wait")
    if isinstance(written, str):
        try:
            return parse_duration(written) or MAX_WAIT_S
        except Problem:
            return MAX_WAIT_S
    return MAX_WAIT_S


def group(fleet: Fleet, previous: PriorState, base: str, *, live: int, nodes: int) -> ManagedGroup | None:
    """The group of nodes that come all at once; growth is one more batch."""
    if not flex_start(fleet) or not nodes:
        return None
    kept = tuple(int(each) for each in previous.pins.get("batches", "").split(",") if each) if live else ()
    more = nodes - sum(kept)
    return ManagedGroup(f"{base}-group", (*kept, more) if more > 0 else kept, run_s(fleet))


def placement(fleet: Fleet, shape: Shape, facts: GcpFacts, name: str, *, grouped: bool) -> Placement | None:
    """What keeps the nodes close; none where a reservation decides the place of its instances."""
    if fleet.placement != "cluster" or shape.placement == "none" or given_policy(facts) is not None:
        return None
    if facts.reservation is not None and shape.placement == "compact":
        return None
    if grouped and not shape.workload:
        return None
    return Placement(f"{name}-placement", "workload" if grouped else "policy", shape.topology or None)


def given_policy(facts: GcpFacts) -> str | None:
    """The placement policy of the fleet's reservation, which all instances in it must have.

    Source: Google Cloud "About reservations", placement policies.
    """
    return facts.reservation.policy if facts.reservation is not None else None


def placement_reason(fleet: Fleet, shape: Shape, facts: GcpFacts, placement: Placement | None) -> str | None:
    if (policy := given_policy(facts)) is not None:
        return f"placement: the policy of the reservation ({policy.rpartition('/')[2]})"
    if fleet.placement != "cluster":
        return None
    if placement is not None and placement.topology is not None:
        topology = placement.topology
        return f"one accelerator topology {topology}: at most {shape.domain} nodes on one NVLink domain"
    if placement is not None and placement.kind == "workload":
        return f"one workload policy ({placement.name}): members of the group are placed close together"
    if placement is not None:
        return f"one compact placement policy ({placement.name}): all nodes in one zone, close together"
    if facts.reservation is not None:
        return (
            f"no placement policy: the reservation {facts.reservation.name} decides where its instances are"
        )
    return f"no placement policy: {shape.type} takes none"


# What is found out about it


def placement_findings(fleet: Fleet, shape: Shape, demand: Demand) -> Iterator[Finding]:
    if fleet.placement != "cluster":
        return
    if shape.domain and demand.nodes > shape.domain:
        yield Finding(
            "ORCH218",
            "nodes",
            f"{demand.nodes} nodes of {shape.type} do not fit one {shape.topology} domain: "
            f"it holds {shape.domain}",
            detail=f"a domain is 72 GPUs that NVLink joins, {72 // shape.domain} a node",
            hint=f"write `nodes: {shape.domain}` or less, or several fleets",
        )
    elif shape.most and demand.nodes > shape.most:
        yield Finding(
            "ORCH218",
            "nodes",
            f"a placement policy holds {shape.most} instances, the fleet has {demand.nodes} nodes",
            hint="write `placement: any`, or several fleets",
        )


def option_findings(fleet: Fleet, candidate: CloudCandidate, shape: Shape) -> Iterator[Finding]:
    """Whether `backend_options` for gcp can be read, and the queue be used."""
    index, written = options(fleet)
    path = f"backend_options[{index}]"
    for key, value in written.items():
        if key not in ("provisioning", "run_duration", "max_wait"):
            yield Finding(
                "ORCH230",
                f"{path}.{key}",
                f"gcp has no option '{key}'",
                hint="it has `provisioning`, `run_duration` and `max_wait`",
            )
        elif key == "provisioning" and value not in ("standard", "flex-start"):
            hint = "write `standard` or `flex-start`"
            yield Finding("ORCH230", f"{path}.{key}", f"'{value}' is no way to provision on gcp", hint=hint)
        elif key == "run_duration":
            what = f"members of a queue live for {_span(LEAST_RUN_S)}"
            yield from _time_findings(f"{path}.{key}", value, LEAST_RUN_S, what)
        elif key == "max_wait":
            yield from _time_findings(f"{path}.{key}", value, 1, f"a queue is waited in for {_span(1)}")
    if not flex_start(fleet):
        for key in ("run_duration", "max_wait"):
            if key in written:
                yield Finding("ORCH230", f"{path}.{key}", f"`{key}` is of `provisioning: flex-start` only")
        return
    where = f"{path}.provisioning"
    if not shape.flex:
        yield Finding("ORCH230", where, f"{shape.type} is not sold by flex start")
    if candidate.spot:
        yield Finding("ORCH230", where, "flex start is no spot: remove `spot_policy`")
    if fleet.reservation is not None:
        yield Finding(
            "ORCH230", where, "flex start and a reservation exclude each other", hint="keep one of them"
        )
    if "idle_duration_s" in fleet.model_fields_set and idle_rule(fleet) is not None:
        yield Finding(
            "ORCH230",
            "idle_duration",
            "nodes of flex start do not end themselves when they are idle: GCP keeps its group whole",
            hint="write `idle_duration: off`; each node ends `run_duration` after it was made",
        )
    if fleet.gang != "all-or-nothing":
        yield Finding(
            "ORCH230",
            where,
            "flex start gives all nodes at once or none",
            hint="write `gang: all-or-nothing`, or remove `provisioning`",
        )


def _span(least: int) -> str:
    return f"{render_duration(least)} to {render_duration(WEEK_S)}"


def _time_findings(path: str, value: object, least: int, bounds: str) -> Iterator[Finding]:
    try:
        seconds = parse_duration(value) if isinstance(value, str) else None
    except Problem as problem:
        yield Finding("ORCH230", path, problem.summary, hint=problem.hint)
        return
    if seconds is None or not least <= seconds <= WEEK_S:
        yield Finding("ORCH230", path, bounds, hint="write `2d`")


def group_findings(group: ManagedGroup | None, demand: Demand) -> Iterator[Finding]:
    if group is None:
        return
    yield Finding(
        "ORCH216",
        "backend_options",
        f"flex start: GCP deletes each node {render_duration(group.run_s)} after it was made",
        severity=Severity.WARNING,
    )
    if demand.nodes < sum(group.batches):
        yield Finding(
            "ORCH219",
            "nodes",
            f"the group was made of {sum(group.batches)} nodes, {demand.nodes} are wanted: it cannot shrink",
            detail="a managed instance group itself chooses which of its members go",
            hint=f"write `nodes: {sum(group.batches)}`, or `orch down` and up again",
        )


def reservation_findings(fleet: Fleet, facts: GcpFacts, demand: Demand) -> Iterator[Finding]:
    """Whether the given reservation is there, and holds all nodes."""
    reservation = facts.reservation
    if fleet.reservation is None:
        return
    if reservation is None:
        yield Finding(
            "ORCH322",
            "reservation",
            f"the project {facts.project} has no reservation {fleet.reservation} in {facts.region}",
            hint="`gcloud compute reservations list` lists them",
        )
    elif not reservation.specific:
        yield Finding(
            "ORCH323",
            "reservation",
            f"the reservation {reservation.name} serves all instances that match it, and cannot be named",
            detail="only one that was made with --require-specific-reservation can",
            hint="remove the line: instances of its type and zone take from it by themselves",
        )
    elif reservation.status != "READY":
        yield Finding("ORCH322", "reservation", f"the reservation {reservation.name} is {reservation.status}")
    else:
        yield from short_reservation(reservation.total, reservation.free, nodes=demand.nodes, new=demand.new)


def quota_findings(
    candidate: CloudCandidate, facts: GcpFacts, demand: Demand, other_groups: OtherGroups[GcpPlan, GcpFacts]
) -> Iterator[Finding]:
    """Whether the project's quotas hold what is new; what was not asked does."""
    each, quota = candidate.type, facts.capacity
    if quota is not None and facts.reservation is None:
        gpus = "GPU" in quota.metric
        own_demand = _QuotaDemand(
            candidate.zone, demand.nodes, demand.new, _counted(quota, each.gpu_count, each.vcpus)
        )
        own_instances = {other.plan.zone: other.facts.own for other in other_groups.planned}
        own_instances[candidate.zone] = facts.own
        *others, own_unmade = _unmade([*_demand_of_others(other_groups, quota), own_demand], own_instances)
        new, before = own_unmade.new * own_unmade.each, sum(other.new * other.each for other in others)
        if new and quota.used + before + new > quota.limit:
            more = f" beside {before} of the fleet's other nodes" if before else ""
            words = f"{own_unmade.new} x {each.name} need {new} {'GPUs' if gpus else 'vCPUs'}{more}"
            yield _over(quota, "ORCH313" if gpus else "ORCH310", "nodes", words)
    networks = facts.network_quota
    if networks is not None and demand.networks and networks.used + demand.networks > networks.limit:
        words = f"{demand.networks} VPCs are made for the fleet"
        yield _over(networks, "ORCH313", "network", words)


@dataclass(frozen=True)
class _QuotaDemand:
    """Nodes of a zone, `new` of them not recorded, which count as `each` against a quota."""

    zone: str
    nodes: int
    new: int
    each: int


def _counted(quota: Allowance, gpus: int, vcpus: int | None) -> int:
    return gpus if "GPU" in quota.metric else vcpus or 0


def _demand_of_others(
    other_groups: OtherGroups[GcpPlan, GcpFacts], quota: Allowance
) -> Iterator[_QuotaDemand]:
    for other in other_groups.planned:
        plan, quota_there = other.plan, other.facts.capacity
        same = quota_there is not None and quota_there.metric == quota.metric
        each = _counted(quota, int(plan.gpus.get("count") or 0), plan.cpus) if same else 0
        yield _QuotaDemand(plan.zone, len(plan.nodes), other.new, each)


def _unmade(demands: Iterable[_QuotaDemand], own_instances: Mapping[str, int]) -> list[_QuotaDemand]:
    """The same without nodes that a killed call made: they are there, count already, and no node is recorded
    for them. `own_instances`: how many instances of the fleet each zone has."""
    demands = list(demands)
    spare = {
        zone: max(0, instances - sum(each.nodes - each.new for each in demands if each.zone == zone))
        for zone, instances in own_instances.items()
    }
    unmade: list[_QuotaDemand] = []
    for each in demands:
        already_made = min(each.new, spare[each.zone])
        spare[each.zone] -= already_made
        unmade.append(replace(each, new=each.new - already_made))
    return unmade


def _over(quota: Allowance, code: str, path: str, needed: str) -> Finding:
    used = f", {quota.used:g} in use" if quota.used else ""
    return Finding(
        code,
        path,
        f"{needed}, the project's quota is {quota.limit:g}{used}",
        detail=f"quota {quota.metric}, {quota.name}",
        hint="ask for more at IAM & Admin > Quotas, or ask for less here",
    )
