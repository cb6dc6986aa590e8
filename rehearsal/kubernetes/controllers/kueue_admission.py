"""Whether a workload of Kueue fits: by the quota of its queue, and by its topology."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orch.rehearsal.kubernetes.api import Api, Doc
from orch.rehearsal.kubernetes.controllers.conditions import condition
from orch.rehearsal.kubernetes.controllers.kueue_kinds import API, GROUP
from orch.rehearsal.kubernetes.kubelet.containers import quantity

REQUIRED, PREFERRED, FREE = (
    f"{GROUP}/podset-{each}" for each in ("required-topology", "preferred-topology", "unconstrained-topology")
)
HOSTNAME = "kubernetes.io/hostname"
SLACK = 1e-6
"""Below this amounts are equal: thousandths of a CPU are no whole numbers here."""

_UNITS = ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))


def told(resource: str, amount: float) -> str:
    """An amount as Kueue writes it: bytes in the largest unit of which it is a multiple, CPUs in thousandths
    where it has some, else a whole number.

    Source: k8s.io/apimachinery, resource.Quantity's canonical form.
    """
    if resource == "cpu":
        thousandths = round(amount * 1000)
        return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)
    whole = round(amount)
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        for size, unit in _UNITS:
            if whole and whole % size == 0:
                return f"{whole // size}{unit}"
    return str(whole)


@dataclass(frozen=True)
class Assignment:
    """Where a workload fits: a flavor for each resource, and nodes for its pods where topology counts."""

    flavors: Mapping[str, str]
    usage: Mapping[tuple[str, str], float]
    nodes: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


class Admission:
    """What fits: quotas of queues and of what their cohorts lend, nodes near each other."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def fit(
        self,
        row: Doc,
        queue: Doc,
        queues: Mapping[str, Doc],
        flavors: Mapping[str, Doc],
        usage: Mapping[tuple[str, str, str], float],
    ) -> Assignment | str:
        """Flavors with quota for all resources of a workload, or why there are none."""
        chosen: dict[str, str] = {}
        needed: dict[tuple[str, str], float] = defaultdict(float)
        total = requests(row)
        for resource, amount in total.items():
            group = next(
                (g for g in queue["spec"].get("resourceGroups", ()) if resource in g["coveredResources"]),
                None,
            )
            if group is None:
                return f"couldn't assign flavors to pod set: resource {resource} unavailable in ClusterQueue"
            if resource in chosen:
                continue
            reason = ""
            for option in group["flavors"]:
                name = option["name"]
                if name not in flavors:
                    reason = f"flavor {name} not found"
                    continue
                lacks = [
                    (key, short)
                    for key in group["coveredResources"]
                    if key in total and (short := total[key] - _free(queue, queues, name, key, usage)) > SLACK
                ]
                if not lacks:
                    for key in group["coveredResources"]:
                        if key in total:
                            chosen[key] = name
                            needed[name, key] += total[key]
                    break
                key, short = lacks[0]
                reason = (
                    f"insufficient unused quota for {key} in flavor {name}, {told(key, short)} more needed"
                )
            if resource not in chosen:
                return f"couldn't assign flavors to pod set {row['spec']['podSets'][0]['name']}: {reason}"
            del amount
        nodes: dict[str, Sequence[str]] = {}
        for pod_set in row["spec"]["podSets"]:
            topology = next((flavors[name]["spec"].get("topologyName") for name in chosen.values()), None)
            notes = pod_set["template"].get("metadata", {}).get("annotations", {})
            if topology is None or not {REQUIRED, PREFERRED, FREE} & set(notes):
                continue
            placed = self._place(pod_set, flavors[next(iter(chosen.values()))], topology, notes)
            if isinstance(placed, str):
                return placed
            nodes[pod_set["name"]] = placed
        return Assignment(chosen, dict(needed), nodes)

    def _place(
        self, pod_set: Doc, flavor: Doc, topology: str, notes: Mapping[str, str]
    ) -> Sequence[str] | str:
        """Nodes for the pods of a set, all in one domain of the level where one has room."""
        document = self._api.find(f"{API}/topologies/{topology}")
        levels = [each["nodeLabel"] for each in document["spec"]["levels"]] if document else []
        needs = pod_requests(pod_set["template"]["spec"])
        free = self._free_nodes(flavor, needs)
        level = notes.get(REQUIRED) or notes.get(PREFERRED)
        if level is not None and level not in levels:
            return f"no requested topology level: {level}"
        wanted = levels[: levels.index(level) + 1] if level is not None else []
        while True:
            domains: dict[tuple[str, ...], list[str]] = defaultdict(list)
            for labels, name, slots in free:
                if all(each in labels for each in wanted):
                    domains[tuple(labels[each] for each in wanted)] += [name] * slots
            fitting = [rows for rows in domains.values() if len(rows) >= pod_set["count"]]
            if fitting:
                return sorted(min(fitting, key=len)[: pod_set["count"]])
            if REQUIRED in notes or not wanted:
                most = max((len(rows) for rows in domains.values()), default=0)
                return f'topology "{topology}" allows to fit only {most} out of {pod_set["count"]} pod(s)'
            wanted = wanted[:-1]

    def _free_nodes(
        self, flavor: Doc, needs: Mapping[str, float]
    ) -> list[tuple[Mapping[str, str], str, int]]:
        """Ready nodes of a flavor with how many of the pods each has room for."""
        used: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for pod in self._api.items("/api/v1/pods"):
            if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                continue
            node = pod["spec"].get("nodeName") or pod["spec"].get("nodeSelector", {}).get(HOSTNAME)
            if node:
                for key, amount in pod_requests(pod["spec"]).items():
                    used[node][key] += amount
                used[node]["pods"] += 1
        for row in self._api.items(f"{API}/workloads"):  # admitted, their pods not there yet
            if not condition(row.get("status", {}), "Admitted") or condition(row["status"], "Finished"):
                continue
            if condition(row["status"], "PodsReady"):
                continue
            for assigned in row["status"].get("admission", {}).get("podSetAssignments", ()):
                pod_set = next(each for each in row["spec"]["podSets"] if each["name"] == assigned["name"])
                for name in (assigned.get("topologyAssignment") or {}).get("nodes", ()):
                    for key, amount in pod_requests(pod_set["template"]["spec"]).items():
                        used[name][key] = max(used[name][key], amount)
        rows: list[tuple[Mapping[str, str], str, int]] = []
        for node in self._api.items("/api/v1/nodes"):
            labels, name = node["metadata"].get("labels", {}), node["metadata"]["name"]
            ready = any(
                c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ())
            )
            if not ready or node["spec"].get("unschedulable"):
                continue
            if any(labels.get(key) != text for key, text in flavor["spec"].get("nodeLabels", {}).items()):
                continue
            has = {key: quantity(text) for key, text in node["status"]["allocatable"].items()}
            slots = [
                int((has.get(key, 0.0) - used[name][key]) // amount)
                for key, amount in needs.items()
                if amount > 0
            ]
            slots.append(int(has.get("pods", 110.0) - used[name]["pods"]))
            if min(slots) > 0:
                rows.append((labels, name, min(slots)))
        return sorted(rows, key=lambda each: each[1])


def pod_requests(spec: Doc) -> dict[str, float]:
    """What a pod requests: of its containers together, or of its largest first one."""
    total: dict[str, float] = defaultdict(float)

    def of(container: Doc) -> dict[str, float]:
        resources = container.get("resources", {})
        named = {**resources.get("limits", {}), **resources.get("requests", {})}
        return {key: quantity(text) for key, text in named.items()}

    for container in spec["containers"]:
        for key, amount in of(container).items():
            total[key] += amount
    for container in spec.get("initContainers", ()):
        always = container.get("restartPolicy") == "Always"
        for key, amount in of(container).items():
            total[key] = total[key] + amount if always else max(total[key], amount)
    return dict(total)


def requests(row: Doc) -> dict[str, float]:
    """What all pods of a workload request."""
    total: dict[str, float] = defaultdict(float)
    for pod_set in row["spec"]["podSets"]:
        for key, amount in pod_requests(pod_set["template"]["spec"]).items():
            total[key] += amount * pod_set["count"]
    return dict(total)


def usage_of(rows: Iterable[Doc]) -> dict[tuple[str, str, str], float]:
    """What admitted workloads have: queue, flavor, resource -> amount."""
    usage: dict[tuple[str, str, str], float] = defaultdict(float)
    for row in rows:
        status = row.get("status", {})
        if not condition(status, "Admitted") or condition(status, "Finished"):
            continue
        admission = status["admission"]
        for each in admission["podSetAssignments"]:
            for key, text in each["resourceUsage"].items():
                usage[admission["clusterQueue"], each["flavors"][key], key] += quantity(text)
    return usage


def _quota(queue: Doc, flavor: str, resource: str) -> Doc:
    for group in queue["spec"].get("resourceGroups", ()):
        for option in group["flavors"]:
            if option["name"] == flavor:
                return next((each for each in option["resources"] if each["name"] == resource), {})
    return {}


def _free(
    queue: Doc,
    queues: Mapping[str, Doc],
    flavor: str,
    resource: str,
    usage: Mapping[tuple[str, str, str], float],
) -> float:
    """What a queue has left of a resource, with what its cohort lends."""
    quota = _quota(queue, flavor, resource)
    own = quantity(quota.get("nominalQuota", 0)) - usage.get(
        (queue["metadata"]["name"], flavor, resource), 0.0
    )
    cohort = queue["spec"].get("cohortName")
    if not cohort:
        return own
    lent = 0.0
    for name, other in queues.items():
        if other["spec"].get("cohortName") == cohort and name != queue["metadata"]["name"]:
            theirs = _quota(other, flavor, resource)
            spare = quantity(theirs.get("nominalQuota", 0)) - usage.get((name, flavor, resource), 0.0)
            lent += min(spare, quantity(theirs["lendingLimit"])) if "lendingLimit" in theirs else spare
    borrowed = (
        max(lent, 0.0)
        if "borrowingLimit" not in quota
        else min(max(lent, 0.0), quantity(quota["borrowingLimit"]))
    )
    return own + borrowed
