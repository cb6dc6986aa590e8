"""Waiting for what GCP knows of nodes only after it has made them: who they are, and their host keys."""

from __future__ import annotations

from collections.abc import Sequence

from orch.components.cloud import polling
from orch.components.cloud_errors import CloudError
from orch.components.gcp.account import gather_facts
from orch.components.gcp.account.client import Session
from orch.components.gcp.account.facts import Member
from orch.components.gcp.account.labels import label
from orch.components.gcp.plan import GcpPlan


def wait_for_host_keys(
    session: Session, plan: GcpPlan, names: Sequence[str], *, whole: bool
) -> dict[str, str]:
    """The host keys of new instances, by instance, once they have booted.

    An instance without a key after the time of a boot is left out where the fleet may be incomplete.

    Raises CloudRefused, and also when a key is missing and the `whole` fleet is needed.
    """
    zones = {f"{plan.base}-{node.index}": group.zone for group in plan.node_groups for node in group.nodes}

    def read(instances: Sequence[str]) -> dict[str, str]:
        by_zone: dict[str, list[str]] = {}
        for name in instances:
            by_zone.setdefault(zones.get(name, plan.zone), []).append(name)
        keys: dict[str, str] = {}
        for zone in sorted(by_zone):
            keys |= gather_facts.host_keys(session, zone, by_zone[zone])
        return keys

    where = "see `gcloud compute instances get-serial-port-output …`"
    return polling.wait_for_host_keys(read, names, whole=whole, where=where)


def wait_for_members(session: Session, plan: GcpPlan, group: str, count: int) -> Sequence[Member]:
    """The instances with the label `orch-group=GROUP`, with their physical hosts where ranks go by these.

    Of a managed group there are `count` at least; raises CloudRefused when fewer are there in time. Of nodes
    that are instances of their own only the hosts are needed: () where GCP refuses to list them.
    """

    def read() -> Sequence[Member]:
        return gather_facts.members(session, plan.zone, group)

    def complete(members: Sequence[Member]) -> bool:
        hosts_known = not plan.rank_by_host or all(each.host for each in members)
        return len(members) >= count and hosts_known

    if plan.group is None:
        return polling.wait_for_topology(read, complete, ())
    where = f"instances in {plan.zone} with the label orch-group={group}"
    return polling.wait_for_members(read, complete, count, where=where)


def queue_outcome(session: Session, plan: GcpPlan) -> CloudError | bool | None:
    """What became of the last resize request of the plan's managed group.

    True: all members are there; an error: GCP will never fulfil the request; None: it still waits.
    """
    group = plan.group
    if group is None:
        return True
    request = f"{group.name}-{len(group.batches) - 1}"
    refusal = gather_facts.refused_request(session, plan.zone, group.name, request)
    if refusal is not None:
        return refusal
    members = gather_facts.members(session, plan.zone, label(plan.base))
    return len(members) >= sum(group.batches) or None
