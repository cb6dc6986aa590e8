"""Resource policies: compact placement and workload policies.

Sources: rehearsal/README.md, "GCP: placement".
"""

from __future__ import annotations

import re

from orch.rehearsal.gcp.api.errors import GcpError, in_use, invalid, not_found, quota_exceeded, required
from orch.rehearsal.gcp.api.methods import Request, method
from orch.rehearsal.gcp.api.quotas import limit, used_in_region
from orch.rehearsal.gcp.data.tables import Type, regions
from orch.rehearsal.store import Doc

MOST_MACHINES = 1500
"""VMs that a compact placement policy allows."""

PER_MACHINE = 4
"""GPUs of one machine of the types whose GPUs form a domain."""

TOPOLOGIES = ("1x64", "1x72")
FIELDS = (
    "description",
    "groupPlacementPolicy",
    "workloadPolicy",
    "snapshotSchedulePolicy",
    "instanceSchedulePolicy",
)


@method("resourcePolicies.insert", "POST", "regions/{region}/resourcePolicies")
def insert(request: Request) -> Doc:
    region = request.words["region"]
    if region not in regions():
        raise not_found(f"projects/{request.project}/regions/{region}")
    path, doc = request.new("resource-policy", "resourcePolicies", "resourcePolicy", fields=FIELDS)
    group, workload = doc.get("groupPlacementPolicy"), doc.get("workloadPolicy")
    if group is None and workload is None:
        raise required("resource.groupPlacementPolicy")
    if group is not None and workload is not None:
        raise invalid("resource", doc["name"], "Only one kind of policy may be set.")
    if group is not None:
        _check_group(group)
    if workload is not None:
        _check_workload(workload)
    if used_in_region(request, "RESOURCE_POLICIES", region) >= limit(request, "RESOURCE_POLICIES"):
        raise quota_exceeded("RESOURCE_POLICIES", limit(request, "RESOURCE_POLICIES"), region)
    doc["status"] = "READY"
    return request.add(path, "resource-policy", doc)


def _check_group(group: Doc) -> None:
    field = "resource.groupPlacementPolicy"
    collocation = group.get("collocation")
    if collocation not in (None, "UNSPECIFIED_COLLOCATION", "COLLOCATED"):
        raise invalid(f"{field}.collocation", collocation, "Unknown collocation.")
    count = group.get("vmCount")
    if count is not None and not 1 <= int(count) <= MOST_MACHINES:
        raise invalid(f"{field}.vmCount", count, f"Must be between 1 and {MOST_MACHINES}.")
    if group.get("availabilityDomainCount") is not None and collocation == "COLLOCATED":
        raise invalid(
            f"{field}.availabilityDomainCount", group["availabilityDomainCount"], "Not with COLLOCATED."
        )
    topology = group.get("gpuTopology")
    if topology is not None and (topology not in TOPOLOGIES or collocation != "COLLOCATED"):
        raise invalid(
            f"{field}.gpuTopology", topology, f"Must be one of {', '.join(TOPOLOGIES)}, with COLLOCATED."
        )


def _check_workload(workload: Doc) -> None:
    field = "resource.workloadPolicy"
    if workload.get("type") not in {"HIGH_THROUGHPUT", "HIGH_AVAILABILITY"}:
        raise invalid(f"{field}.type", workload.get("type"), "Must be HIGH_THROUGHPUT or HIGH_AVAILABILITY.")
    topology = workload.get("acceleratorTopology")
    if topology is not None and workload["type"] != "HIGH_THROUGHPUT":
        raise invalid(f"{field}.acceleratorTopology", topology, "Allowed with HIGH_THROUGHPUT only.")
    if topology is not None and topology not in TOPOLOGIES:
        raise invalid(f"{field}.acceleratorTopology", topology, f"Must be one of {', '.join(TOPOLOGIES)}.")
    if topology is not None and workload.get("maxTopologyDistance"):
        raise invalid(
            f"{field}.maxTopologyDistance", workload["maxTopologyDistance"], "Not with acceleratorTopology."
        )


def most(policy: Doc) -> int:
    """The number of machines that a policy allows."""
    rules = policy.get("groupPlacementPolicy") or policy.get("workloadPolicy") or {}
    topology = rules.get("gpuTopology") or rules.get("acceleratorTopology")
    if topology:
        return int(re.split("x", topology)[1]) // PER_MACHINE
    return int(rules.get("vmCount") or MOST_MACHINES)


def check_room(request: Request, path: str, kind: Type, zone: str, count: int = 1) -> None:
    """Check that a policy may place `count` machines of a type in a zone. Raises the operation's error."""
    policy = request.thing("resource-policy", path)
    rules = policy.get("groupPlacementPolicy") or policy.get("workloadPolicy") or {}
    field = "resource.resourcePolicies[0]"
    if policy.get("groupPlacementPolicy") is not None and not kind.compact:
        raise GcpError("badRequest", f"Placement policy is not applicable to machine type {kind.name}.")
    if policy.get("workloadPolicy") is not None and not kind.workload:
        raise GcpError("badRequest", f"Placement policy is not applicable to machine type {kind.name}.")
    if (rules.get("gpuTopology") or rules.get("acceleratorTopology")) and not kind.domain:
        raise invalid(field, path, f"Machine type {kind.name} has no accelerator topology.")
    placed = [source for source, _ in request.store.referrers(path, "placed")]
    if any(f"/zones/{zone}/" not in source for source in placed):
        raise invalid(field, path, "Instances of a compact placement policy must be in one zone.")
    if len(placed) + count > most(policy):
        raise full(policy, kind)


def full(policy: Doc, kind: Type) -> GcpError:
    """The error of a policy that allows no more machines."""
    text = (
        f"No more than {most(policy)} instances of machine type {kind.name} can be created with this policy."
    )
    return GcpError("INVALID_USAGE", text)


@method("resourcePolicies.get", "GET", "regions/{region}/resourcePolicies/{resourcePolicy}")
def get(request: Request) -> Doc:
    return request.thing("resource-policy", request.path("resourcePolicies", request.words["resourcePolicy"]))


@method("resourcePolicies.list", "GET", "regions/{region}/resourcePolicies")
def list_policies(request: Request) -> Doc:
    return request.page([doc for _, doc in request.each("resource-policy", request.scope)], "resourcePolicy")


@method("resourcePolicies.delete", "DELETE", "regions/{region}/resourcePolicies/{resourcePolicy}")
def delete(request: Request) -> Doc:
    path = request.path("resourcePolicies", request.words["resourcePolicy"])
    doc = request.thing("resource-policy", path)
    users = request.store.referrers(path)
    if users:
        raise in_use("resource_policy", path, users[0][0])
    request.store.remove(path)
    return doc
