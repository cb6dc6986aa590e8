"""What the properties of RunPod's resources say of a fleet, and why a plan is as it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch.components.explain import ChangeRow, Explained
from orch.components.runpod.account.client import Money
from orch.components.runpod.candidates import RunpodCandidate
from orch.components.runpod.plan import PodGroup, RunpodPlan
from orch.offers.match import money
from orch.spec.suggest import counted

PACKAGE = "orch-runpod"
POD = f"{PACKAGE}:index:Pod"
CLUSTER = f"{PACKAGE}:index:Cluster"
READY = f"{PACKAGE}:index:Ready"

EXPLAINED = Explained(
    traits={
        "instance_type": "type",
        "region": "data center",
        "image": "image",
        "disk": "container disk",
        "placement": "placement",
    },
    new_nodes=frozenset({"instance_type", "region", "image", "disk", "placement"}),
    rows=(ChangeRow(r".*", r"spec.*|args|made_for|nodes.*|pods.*|cluster|name|mark|status", None),),
    noun="pod",
    lost="all that their jobs did not save elsewhere",
)


def traits(plan: RunpodPlan) -> dict[str, str]:
    """What the pods of a plan are."""
    return {
        "instance_type": plan.instance_type,
        "region": plan.center or "any",
        "image": "each run's own",
        "disk": f"{plan.disk_gb} GB",
        "placement": plan.placement,
    }


def group_reason(fleet: str, group: PodGroup, *, new: bool) -> str:
    """What one run has, or gets."""
    what = f"one Instant Cluster of {len(group.indices)} pods" if group.cluster else "one pod"
    where = f"{group.instance_type} in {group.center or 'a data center that RunPod chooses'}"
    nodes = ", ".join(node.name for node in group.nodes(fleet))
    cost = "" if group.price is None else f", {money(group.price * len(group.indices))} an hour"
    mounts = group.spec.get("mounts", {}).get("network", ())
    volumes = "".join(f", the volume {each['volumeId']} at {each['path']}" for each in mounts)
    whose = "made for this run" if new else "there for a run"
    return f"{whose}: {what} ({nodes}), {where}{cost}, of {group.image}{volumes}"


def next_reason(most: int, place: RunpodCandidate, *, cluster: bool) -> str:
    """What a run will make, and what that costs."""
    each = "price not known" if place.price is None else f"{money(place.price)} an hour each"
    whole = ""
    if place.price is not None and cluster:
        whole = f", {money(place.price * most)} for {counted(most, 'node')}"
    what = "an Instant Cluster (2 nodes or more), or a single pod," if cluster else "a pod"
    where = f"{place.type.name} in {place.place}"
    return f"a run makes {what} of its own image: {where}, {each}{whole}; it goes with the run"


def stock_reasons(place: RunpodCandidate) -> Iterator[str]:
    if place.level:
        yield f"stock: RunPod tells {place.level.lower()} for {place.gpu} in {place.zone}, no promise"
    else:
        yield f"stock: RunPod tells none of {place.gpu} now; a run tries all the same"


def money_reason(known: Money) -> str:
    limit = (
        "no spend limit"
        if known.limit == float("inf")
        else f"the spend limit is {money(known.limit)} an hour"
    )
    return f"account: {limit}, {money(known.hourly)} are spent now; the balance is {money(known.balance)}"
