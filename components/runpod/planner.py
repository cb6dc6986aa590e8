"""What a fleet becomes on RunPod: the pods that runs have, and what the next run makes. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from orch.catalog.fabrics import fabric
from orch.components.cloud.quotas import unread_findings
from orch.components.cloud.sizing import budget_findings, disk_gb, gpus
from orch.components.node_count import folded, live_indices, no_node, node_indices
from orch.components.request import NodeVolume, PriorState
from orch.components.runpod import explain as told
from orch.components.runpod.account.facts import RunpodFacts
from orch.components.runpod.candidates import RunpodCandidate
from orch.components.runpod.plan import GROUP_PIN, MOST_PODS, PodGroup, RunpodPlan
from orch.offers.match import money
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, settle
from orch.spec.models import Fleet
from orch.spec.suggest import counted

INTERCONNECT = "instant-cluster"
"""Of pods in one Instant Cluster, in `catalog/fabrics.yml`."""


@dataclass(frozen=True)
class Context:
    """What a plan is made of besides the fleet.

    `image`, `made_for`: of the run that nodes are made for, None where none are; `volumes`: of which they get
    the one that is where they go. `scope`: of a new stack.
    """

    scope: str
    image: str | None = None
    made_for: str | None = None
    volumes: tuple[NodeVolume, ...] = ()


def recorded_groups(previous: PriorState) -> tuple[PodGroup, ...]:
    """The groups that the stack records, whose nodes exist."""
    live = live_indices(previous)
    known = [PodGroup.recorded(text) for key, text in previous.pins.items() if key.startswith(GROUP_PIN)]
    return tuple(sorted((each for each in known if set(each.indices) <= live), key=lambda each: each.number))


def plan(
    fleet: Fleet, candidate: RunpodCandidate, facts: RunpodFacts, previous: PriorState, context: Context
) -> RunpodPlan:
    """The whole fleet: what is there stays, and a run's pods come to it at the candidate.

    Raises PlanErrors with all that is wrong: ORCH236, 281, 313.
    """
    scope = previous.pins.get("scope", context.scope)
    recorded = recorded_groups(previous)
    kept = [
        each for each in recorded if any(name.startswith(f"{each.name(fleet.name)}-") for name in facts.there)
    ]
    gone = [each for each in recorded if each not in kept]
    new = _new_group(fleet, candidate, previous, context)
    groups = (*kept, *([new] if new is not None else []))
    most = min(MOST_PODS, fleet.nodes.max or MOST_PODS) if fleet.nodes is not None else 1
    cluster = fleet.placement == "cluster"
    findings = [
        *_money_findings(fleet, candidate, facts, new, most),
        *unread_findings(facts.unread),
        *budget_findings(
            fleet,
            candidate.price,
            0.0,
            backend="runpod",
            nodes=len(new.indices) if new is not None else 0,
            other_nodes=[(len(each.indices), each.price) for each in kept],
        ),
    ]
    interconnect = INTERCONNECT if cluster else "ethernet"
    fast = fabric(interconnect, candidate.type.name) if cluster else None
    indices = sorted(index for each in groups for index in each.indices)
    hourly = sum((each.price or 0.0) * len(each.indices) for each in groups)
    reasons = [
        *([no_node(fleet)] if not groups else []),
        *(told.group_reason(fleet.name, each, new=each is new) for each in groups),
        *(f"gone: RunPod has no {each.name(fleet.name)} any more" for each in gone),
        *([told.next_reason(most, candidate, cluster=cluster)] if new is None else []),
        *told.stock_reasons(candidate),
        *([told.money_reason(facts.money)] if facts.money is not None else []),
        *(fast.words() if fast else ()),
    ]
    return RunpodPlan(
        fleet=fleet.name,
        scope=scope,
        placement=fleet.placement,
        interconnect=interconnect,
        fabric=fast,
        groups=groups,
        new=new is not None,
        instance_type=candidate.type.name,
        center=candidate.zone,
        price=candidate.price,
        gpus=gpus(candidate.type),
        cpus=candidate.type.vcpus,
        memory_mib=candidate.type.memory_mib,
        disk_gb=disk_gb(fleet),
        job_image=fleet.image,
        env={key: value for key, value in fleet.env.items() if value is not None},
        authorized_keys=fleet.authorized_keys,
        protect=fleet.protect,
        hourly=round(hourly, 6),
        unpriced=("nodes",) if any(each.price is None for each in groups) else (),
        pins={
            "backend": "runpod",
            "scope": scope,
            "indices": folded(indices),
            **{f"{GROUP_PIN}{each.number}": each.pin for each in groups},
        },
        reasons=tuple(reasons),
        warnings=settle(findings),
    )


def _new_group(
    fleet: Fleet, candidate: RunpodCandidate, previous: PriorState, context: Context
) -> PodGroup | None:
    """The pods that a run is given, None where none are made: without a run there is no image."""
    if context.made_for is None or context.image is None:
        return None
    indices = sorted(set(node_indices(fleet, previous)) - live_indices(previous))
    if not indices:
        return None
    disk = disk_gb(fleet)
    volume = next((each for each in context.volumes if each.place == candidate.zone), None)
    network = [{"volumeId": volume.id, "path": volume.path}] if volume is not None else []
    container = {
        "image": context.image,
        "ports": ["22/tcp"],
        "disk": disk,
        **({"dataCenterIds": [candidate.zone]} if candidate.zone else {}),
        **({"mounts": {"network": network}} if network else {}),
    }
    count = candidate.type.gpu_count
    if len(indices) > 1:
        compute = {"gpuTypeId": candidate.gpu, "gpuCountPerPod": count, "podCount": len(indices)}
        spec = {"type": "TRAINING", "compute": compute, **container}
    else:
        spec = {"gpu": {"id": candidate.gpu, "count": count}, "cloud": "SECURE", **container}
    return PodGroup(
        indices[0],
        tuple(indices),
        context.made_for,
        spec,
        candidate.type.name,
        candidate.zone,
        candidate.price,
        candidate.type.vcpus,
        candidate.type.memory_mib,
        disk,
        gpus(candidate.type),
    )


def _money_findings(
    fleet: Fleet, candidate: RunpodCandidate, facts: RunpodFacts, new: PodGroup | None, most: int
) -> Iterator[Finding]:
    """Whether the account may spend it: an error for pods that are to be made, a warning for later ones."""
    known, price = facts.money, candidate.price
    if known is None or price is None:
        return
    hint = "raise the limit, or the balance, in RunPod's console: Billing; or ask for fewer nodes"
    if new is not None:
        short = known.shortfall(price * len(new.indices))
        if short is not None:
            yield Finding(
                "ORCH313",
                "nodes",
                f"RunPod would refuse {counted(len(new.indices), 'node')}: {short}",
                hint=hint,
            )
        return
    short = known.shortfall(price * most)
    if short is None:
        return
    enough = next((count for count in range(most - 1, 0, -1) if known.shortfall(price * count) is None), 0)
    yield Finding(
        "ORCH313",
        "nodes",
        f"RunPod would refuse a run on {most} of these nodes now, {money(price * most)} an hour: {short}",
        detail=f"a run on {enough} can be had" if enough else "no run can be had",
        hint=hint,
        severity=Severity.WARNING,
    )


def only(plan: RunpodPlan, names: frozenset[str]) -> RunpodPlan:
    """The same plan with the groups alone whose nodes have these names."""
    groups = tuple(each for each in plan.groups if {node.name for node in each.nodes(plan.fleet)} <= names)
    indices = sorted(index for each in groups for index in each.indices)
    pins: Mapping[str, str] = {
        **{key: value for key, value in plan.pins.items() if not key.startswith(GROUP_PIN)},
        "indices": folded(indices),
        **{f"{GROUP_PIN}{each.number}": each.pin for each in groups},
    }
    hourly = sum((each.price or 0.0) * len(each.indices) for each in groups)
    return replace(
        plan, groups=groups, new=plan.new and plan.groups[-1] in groups, pins=pins, hourly=round(hourly, 6)
    )
