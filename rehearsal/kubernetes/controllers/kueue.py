"""A stand-in for Kueue (kueue.x-k8s.io/v1beta2), written from its API's documents.

Quotas of cluster queues, cohorts that lend, priorities and preemption within a queue, topologies, evictions
and the conditions of workloads, for JobSets and jobs that bear a queue's name. What it does not know is
refused by the schemas.
"""

from __future__ import annotations

import copy
import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import httpx

from orch.rehearsal.kubernetes.api import Api, ApiError, Doc
from orch.rehearsal.kubernetes.controllers import jobset
from orch.rehearsal.kubernetes.controllers.jobset import definition
from orch.rehearsal.kubernetes.kubelet.containers import quantity

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
_API = f"/apis/{GROUP}/{VERSION}"
QUEUE, PRIORITY, TIME = (
    f"{GROUP}/{each}" for each in ("queue-name", "priority-class", "max-exec-time-seconds")
)
REQUIRED, PREFERRED, FREE = (
    f"{GROUP}/podset-{each}" for each in ("required-topology", "preferred-topology", "unconstrained-topology")
)
GATE = f"{GROUP}/topology"
HOSTNAME = "kubernetes.io/hostname"

_ANY: Doc = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXT: Doc = {"type": "string"}
_TEXTS: Doc = {"type": "object", "additionalProperties": {"type": "string"}}
_AMOUNT: Doc = {"x-kubernetes-int-or-string": True}
_NUMBER: Doc = {"type": "integer"}


def _object(**fields: Doc) -> Doc:
    return {"type": "object", "properties": fields}


def _list(of: Doc) -> Doc:
    return {"type": "array", "items": of}


def _kind(kind: str, plural: str, spec: Doc, *, namespaced: bool = False, **more: Doc) -> Doc:
    schema = _object(
        apiVersion=_TEXT, kind=_TEXT, metadata={"type": "object"}, spec=spec, status=_ANY, **more
    )
    return definition(GROUP, VERSION, kind, plural, schema, namespaced=namespaced)


_STOP = {**_TEXT, "enum": ["None", "Hold", "HoldAndDrain"]}
KINDS = [
    _kind(
        "ResourceFlavor",
        "resourceflavors",
        _object(nodeLabels=_TEXTS, nodeTaints=_list(_ANY), tolerations=_list(_ANY), topologyName=_TEXT),
    ),
    _kind("Topology", "topologies", _object(levels=_list(_object(nodeLabel=_TEXT)))),
    _kind(
        "ClusterQueue",
        "clusterqueues",
        _object(
            resourceGroups=_list(
                _object(
                    coveredResources=_list(_TEXT),
                    flavors=_list(
                        _object(
                            name=_TEXT,
                            resources=_list(
                                _object(
                                    name=_TEXT,
                                    nominalQuota=_AMOUNT,
                                    borrowingLimit=_AMOUNT,
                                    lendingLimit=_AMOUNT,
                                )
                            ),
                        )
                    ),
                )
            ),
            cohortName=_TEXT,
            queueingStrategy={**_TEXT, "enum": ["StrictFIFO", "BestEffortFIFO"]},
            namespaceSelector=_ANY,
            preemption=_object(
                reclaimWithinCohort=_TEXT,
                withinClusterQueue={**_TEXT, "enum": ["Never", "LowerPriority", "LowerOrNewerEqualPriority"]},
            ),
            stopPolicy=_STOP,
        ),
    ),
    _kind("LocalQueue", "localqueues", _object(clusterQueue=_TEXT, stopPolicy=_STOP), namespaced=True),
    _kind(
        "Workload",
        "workloads",
        _object(
            active={"type": "boolean"},
            podSets=_list(_ANY),
            priority=_NUMBER,
            priorityClassRef=_ANY,
            queueName=_TEXT,
            maximumExecutionTimeSeconds=_NUMBER,
        ),
        namespaced=True,
    ),
    _kind("WorkloadPriorityClass", "workloadpriorityclasses", _ANY, value=_NUMBER, description=_TEXT),
]


@dataclass
class _Job:
    """A JobSet or a job with a queue. `templates`: its pod sets, name -> (pods, pod template)."""

    document: Doc
    path: str
    is_set: bool
    templates: Mapping[str, tuple[int, Doc]]

    @property
    def key(self) -> tuple[str, str]:
        meta = self.document["metadata"]
        prefix = "jobset" if self.is_set else "job"
        short = hashlib.sha256(meta["uid"].encode()).hexdigest()[:5]
        return meta["namespace"], f"{prefix}-{meta['name']}-{short}"

    @property
    def suspended(self) -> bool:
        return bool(self.document["spec"].get("suspend"))

    @property
    def finished(self) -> Doc:
        """The condition that it ended by, empty where it goes on."""
        kinds = ("Completed", "Failed") if self.is_set else ("Complete", "Failed")
        rows: list[Doc] = self.document.get("status", {}).get("conditions") or []
        return next((row for row in rows if row["type"] in kinds and row["status"] == "True"), {})

    @property
    def ready(self) -> bool:
        """Whether all its pods are."""
        status = self.document.get("status", {})
        if not self.is_set:
            return int(status.get("ready", 0)) + int(status.get("succeeded", 0)) >= sum(
                count for count, _ in self.templates.values()
            )
        rows: list[Doc] = status.get("replicatedJobsStatus") or []
        wanted = {each["name"]: each.get("replicas", 1) for each in self.document["spec"]["replicatedJobs"]}
        return bool(rows) and all(
            row["ready"] + row["succeeded"] >= wanted.get(row["name"], 1) for row in rows
        )


@dataclass(frozen=True)
class _Assignment:
    """Where a workload fits: a flavor for each resource, and nodes for its pods where topology counts."""

    flavors: Mapping[str, str]
    usage: Mapping[tuple[str, str], float]
    nodes: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


class Kueue:
    """The controller, until the event is set. `ready_within_s`: waitForPodsReady's timeout, None: off."""

    def __init__(self, api: Api, until: threading.Event, *, ready_within_s: float | None = None) -> None:
        self._api, self._until, self._ready_within_s = api, until, ready_within_s
        self._changed = threading.Event()

    def install(self) -> None:
        jobset.install(self._api, KINDS)

    def watch(self, path: str) -> None:
        """Have one kind of objects bring the scheduler back to work."""
        for _ in self._api.watch(path, self._until):
            self._changed.set()

    def paths(self) -> tuple[str, ...]:
        """What to watch."""
        kinds = ("resourceflavors", "clusterqueues", "localqueues", "workloads")
        return (
            *(f"{_API}/{each}" for each in kinds),
            "/apis/batch/v1/jobs",
            "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
        )

    def schedule(self) -> None:
        """Look at everything whenever something changed, and every two seconds."""
        while not self._until.is_set():
            self._changed.wait(2.0)
            self._changed.clear()
            try:
                self._pass()
            except ApiError as error:
                if error.status not in (404, 409):
                    time.sleep(0.5)
                self._changed.set()
            except httpx.HTTPError:  # a server that is going away
                if self._until.wait(0.5):
                    return

    def _pass(self) -> None:
        jobs = {job.key: job for job in self._jobs()}
        rows = {_key(row): row for row in self._api.items(f"{_API}/workloads")}
        for key, row in rows.items():
            if key not in jobs and not row["metadata"].get("deletionTimestamp"):
                self._api.remove(f"{_API}/namespaces/{key[0]}/workloads/{key[1]}")
        classes = {row["metadata"]["name"]: row for row in self._api.items(f"{_API}/workloadpriorityclasses")}
        for key, job in jobs.items():
            if key not in rows and not job.finished:
                rows[key] = self._make(job, classes)
        rows = {key: row for key, row in rows.items() if key in jobs}
        self._follow(jobs, rows)
        self._admit(jobs, rows)
        self._ungate(rows)
        self._tell_queues(rows)

    def _jobs(self) -> Iterable[_Job]:
        for document in self._api.items("/apis/jobset.x-k8s.io/v1alpha2/jobsets", labelSelector=QUEUE):
            meta = document["metadata"]
            path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{meta['namespace']}/jobsets/{meta['name']}"
            templates = {
                each["name"]: (
                    each.get("replicas", 1) * each["template"]["spec"].get("parallelism", 1),
                    each["template"]["spec"]["template"],
                )
                for each in document["spec"]["replicatedJobs"]
            }
            document |= {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
            yield _Job(document, path, True, templates)
        for document in self._api.items("/apis/batch/v1/jobs", labelSelector=QUEUE):
            meta = document["metadata"]
            if any(owner["kind"] == "JobSet" for owner in meta.get("ownerReferences", ())):
                continue
            path = f"/apis/batch/v1/namespaces/{meta['namespace']}/jobs/{meta['name']}"
            document |= {"apiVersion": "batch/v1", "kind": "Job"}
            yield _Job(
                document,
                path,
                False,
                {"main": (document["spec"].get("parallelism", 1), document["spec"]["template"])},
            )

    def _make(self, job: _Job, classes: Mapping[str, Doc]) -> Doc:
        """The workload of a job."""
        meta = job.document["metadata"]
        labels = meta.get("labels", {})
        spec: Doc = {
            "active": True,
            "queueName": labels[QUEUE],
            "podSets": [
                {"name": name, "count": count, "template": template}
                for name, (count, template) in job.templates.items()
            ],
            "priority": int(classes.get(labels.get(PRIORITY, ""), {}).get("value", 0)),
        }
        if TIME in labels:
            spec["maximumExecutionTimeSeconds"] = int(labels[TIME])
        owner = {"apiVersion": job.document["apiVersion"], "kind": job.document["kind"]}
        owner |= {"name": meta["name"], "uid": meta["uid"], "controller": True}
        namespace, name = job.key
        return self._api.create(
            f"{_API}/namespaces/{namespace}/workloads",
            {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": "Workload",
                "metadata": {"name": name, "ownerReferences": [owner]},
                "spec": spec,
            },
        )

    def _follow(self, jobs: Mapping[tuple[str, str], _Job], rows: dict[tuple[str, str], Doc]) -> None:
        """Ends, readiness, and the time that workloads may take."""
        for key, row in rows.items():
            job, status = jobs[key], row.setdefault("status", {})
            if _true(status, "Finished"):
                continue
            if job.finished:
                _set(
                    status,
                    "Finished",
                    job.finished.get("reason", "JobFinished"),
                    job.finished.get("message", ""),
                )
                self._write(row)
                continue
            admitted = bool(_true(status, "Admitted"))
            if not admitted and not job.suspended:
                self._api.patch(job.path, {"spec": {"suspend": True}})  # nobody starts past the queue
            if not row["spec"].get("active", True):
                if admitted:
                    self._evict(job, row, "Deactivated", "The workload is deactivated")
                continue
            if not admitted:
                continue
            if job.suspended:
                self._start(job, row)
            now_ready = job.ready
            if now_ready != bool(_true(status, "PodsReady")):
                _set(status, "PodsReady", "Started" if now_ready else "WaitForStart", "", true=now_ready)
                self._write(row)
            since = _age(_true(status, "Admitted"))
            limit = row["spec"].get("maximumExecutionTimeSeconds")
            if limit is not None and since > limit:
                row["spec"]["active"] = False
                self._api.patch(_path(row), {"spec": {"active": False}})
                self._evict(
                    job,
                    row,
                    "DeactivatedDueToMaximumExecutionTimeExceeded",
                    "exceeding the maximum execution time",
                )
            elif self._ready_within_s is not None and not now_ready and since > self._ready_within_s:
                self._evict(job, row, "PodsReadyTimeout", f"Exceeded the PodsReady timeout {key[0]}/{key[1]}")

    def _start(self, job: _Job, row: Doc) -> None:
        """Give the pods what the flavor says, and let them start."""
        admission = row["status"]["admission"]
        flavors = {each["metadata"]["name"]: each for each in self._api.items(f"{_API}/resourceflavors")}
        changes: dict[str, Doc] = {}
        for assigned in admission["podSetAssignments"]:
            names = sorted(set(assigned["flavors"].values()))
            spec: Doc = {"nodeSelector": {}, "tolerations": []}
            for name in names:
                spec["nodeSelector"] |= flavors[name]["spec"].get("nodeLabels", {})
                spec["tolerations"] += flavors[name]["spec"].get("tolerations", [])
            if assigned.get("topologyAssignment"):
                spec["schedulingGates"] = [{"name": GATE}]
            changes[assigned["name"]] = spec
        document = copy.deepcopy(job.document)
        document.pop("status", None)
        document["spec"]["suspend"] = False
        if job.is_set:
            for each in document["spec"]["replicatedJobs"]:
                _add(each["template"]["spec"]["template"]["spec"], changes[each["name"]])
        else:
            _add(document["spec"]["template"]["spec"], changes["main"])
        self._api.replace(job.path, document)

    def _evict(self, job: _Job, row: Doc, reason: str, message: str) -> None:
        """Take the quota back; the job is suspended, and waits again where its workload is active."""
        status = row["status"]
        status.pop("admission", None)
        _set(status, "Evicted", reason, message)
        _set(status, "QuotaReserved", "Pending", message, true=False)
        _set(status, "Admitted", "NoReservation", message, true=False)
        _set(status, "PodsReady", "WaitForStart", "", true=False)
        status["requeueState"] = {"count": status.get("requeueState", {}).get("count", 0) + 1}
        self._write(row)
        original = {each["name"]: each["template"]["spec"] for each in row["spec"]["podSets"]}
        document = copy.deepcopy(self._api.get(job.path))
        document.pop("status", None)
        document["spec"]["suspend"] = True
        if job.is_set:
            for each in document["spec"]["replicatedJobs"]:
                _put_back(each["template"]["spec"]["template"]["spec"], original[each["name"]])
        self._api.replace(job.path, document)

    def _admit(self, jobs: Mapping[tuple[str, str], _Job], rows: dict[tuple[str, str], Doc]) -> None:
        """Give quota to those that wait, by priority, then by age."""
        queues = {each["metadata"]["name"]: each for each in self._api.items(f"{_API}/clusterqueues")}
        locals_ = {_key(each): each for each in self._api.items(f"{_API}/localqueues")}
        flavors = {each["metadata"]["name"]: each for each in self._api.items(f"{_API}/resourceflavors")}
        usage = _usage(rows.values())
        waiting = [
            row
            for row in rows.values()
            if row["spec"].get("active", True)
            and not _true(row["status"], "Finished")
            and not _true(row["status"], "Admitted")
        ]
        waiting.sort(
            key=lambda row: (
                -int(row["spec"].get("priority", 0)),
                row["metadata"]["creationTimestamp"],
                row["metadata"]["name"],
            )
        )
        blocked: set[str] = set()
        for row in waiting:
            namespace, name = _key(row)
            local = locals_.get((namespace, row["spec"]["queueName"]))
            queue = queues.get(local["spec"]["clusterQueue"]) if local else None
            if local is None or queue is None:
                what = f"LocalQueue {row['spec']['queueName']}" if local is None else "ClusterQueue"
                self._pend(row, "Inadmissible", f"{what} doesn't exist")
                continue
            stops = {each["spec"].get("stopPolicy", "None") for each in (local, queue)}
            if stops - {"None"}:
                self._pend(row, "Inadmissible", f"ClusterQueue {queue['metadata']['name']} is stopped")
                continue
            if queue["metadata"]["name"] in blocked:
                continue
            found = self._fit(row, queue, queues, flavors, usage)
            if isinstance(found, str):
                if self._preempt(row, queue, rows, jobs):
                    return  # their quota is free at the next pass
                self._pend(row, "Pending", found)
                if queue["spec"].get("queueingStrategy") == "StrictFIFO":
                    blocked.add(queue["metadata"]["name"])
                continue
            self._reserve(row, queue["metadata"]["name"], found)
            for amount, used in found.usage.items():
                usage[queue["metadata"]["name"], amount[0], amount[1]] += used
            self._start(jobs[namespace, name], row)

    def _fit(
        self,
        row: Doc,
        queue: Doc,
        queues: Mapping[str, Doc],
        flavors: Mapping[str, Doc],
        usage: Mapping[tuple[str, str, str], float],
    ) -> _Assignment | str:
        """Flavors with quota for all resources of a workload, or why there are none."""
        chosen: dict[str, str] = {}
        needed: dict[tuple[str, str], float] = defaultdict(float)
        total = _requests(row)
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
                    if key in total and (short := total[key] - _free(queue, queues, name, key, usage)) > 0
                ]
                if not lacks:
                    for key in group["coveredResources"]:
                        if key in total:
                            chosen[key] = name
                            needed[name, key] += total[key]
                    break
                key, short = lacks[0]
                reason = f"insufficient unused quota for {key} in flavor {name}, {short:g} more needed"
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
        return _Assignment(chosen, dict(needed), nodes)

    def _place(
        self, pod_set: Doc, flavor: Doc, topology: str, notes: Mapping[str, str]
    ) -> Sequence[str] | str:
        """Nodes for the pods of a set, all in one domain of the level where one has room."""
        document = self._api.find(f"{_API}/topologies/{topology}")
        levels = [each["nodeLabel"] for each in document["spec"]["levels"]] if document else []
        needs = _pod_requests(pod_set["template"]["spec"])
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
                for key, amount in _pod_requests(pod["spec"]).items():
                    used[node][key] += amount
                used[node]["pods"] += 1
        for row in self._api.items(f"{_API}/workloads"):  # admitted, their pods not there yet
            if not _true(row.get("status", {}), "Admitted") or _true(row["status"], "Finished"):
                continue
            if _true(row["status"], "PodsReady"):
                continue
            for assigned in row["status"].get("admission", {}).get("podSetAssignments", ()):
                pod_set = next(each for each in row["spec"]["podSets"] if each["name"] == assigned["name"])
                for name in (assigned.get("topologyAssignment") or {}).get("nodes", ()):
                    for key, amount in _pod_requests(pod_set["template"]["spec"]).items():
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

    def _preempt(
        self, row: Doc, queue: Doc, rows: Mapping[tuple[str, str], Doc], jobs: Mapping[tuple[str, str], _Job]
    ) -> bool:
        """Evict the newest of the least important, one at a time, as far as the queue allows that."""
        policy = queue["spec"].get("preemption", {}).get("withinClusterQueue", "Never")
        if policy == "Never":
            return False
        mine = int(row["spec"].get("priority", 0))
        victims = [
            each
            for each in rows.values()
            if _true(each["status"], "Admitted")
            and not _true(each["status"], "Finished")
            and each["status"].get("admission", {}).get("clusterQueue") == queue["metadata"]["name"]
            and int(each["spec"].get("priority", 0)) < mine
        ]
        if not victims:
            return False
        asked = _requests(row)
        freed: dict[str, float] = defaultdict(float)
        for each in victims:
            for key, amount in _requests(each).items():
                freed[key] += amount
        if any(freed[key] < amount for key, amount in asked.items() if "/" in key):
            return False  # even all of them would not be enough
        least = min(int(each["spec"].get("priority", 0)) for each in victims)
        victim = max(
            (each for each in victims if int(each["spec"].get("priority", 0)) == least),
            key=lambda each: str(_true(each["status"], "Admitted").get("lastTransitionTime")),
        )
        self._evict(
            jobs[_key(victim)],
            victim,
            "Preempted",
            f"Preempted to accommodate a workload ({row['metadata']['name']})",
        )
        return True

    def _reserve(self, row: Doc, queue: str, found: _Assignment) -> None:
        status = row["status"]
        status["admission"] = {
            "clusterQueue": queue,
            "podSetAssignments": [
                {
                    "name": each["name"],
                    "count": each["count"],
                    "flavors": dict(found.flavors),
                    "resourceUsage": {
                        key: f"{amount * each['count']:g}"
                        for key, amount in _pod_requests(each["template"]["spec"]).items()
                    },
                    **(
                        {"topologyAssignment": {"nodes": list(found.nodes[each["name"]])}}
                        if each["name"] in found.nodes
                        else {}
                    ),
                }
                for each in row["spec"]["podSets"]
            ],
        }
        _set(status, "QuotaReserved", "QuotaReserved", f"Quota reserved in ClusterQueue {queue}")
        _set(status, "Admitted", "Admitted", "The workload is admitted")
        _set(status, "PodsReady", "WaitForStart", "Not all pods are ready", true=False)
        if _true(status, "Evicted"):
            _set(status, "Evicted", "QuotaReserved", "Previously evicted", true=False)
        self._write(row)

    def _pend(self, row: Doc, reason: str, message: str) -> None:
        before = copy.deepcopy(row["status"])
        _set(row["status"], "QuotaReserved", reason, message, true=False)
        if row["status"] != before:
            self._write(row)

    def _ungate(self, rows: Mapping[tuple[str, str], Doc]) -> None:
        """Bind gated pods to the nodes that their workload was given."""
        for (namespace, _), row in rows.items():
            for assigned in row["status"].get("admission", {}).get("podSetAssignments", ()):
                nodes = list((assigned.get("topologyAssignment") or {}).get("nodes", ()))
                if not nodes or _true(row["status"], "Finished"):
                    continue
                owner = row["metadata"]["ownerReferences"][0]
                label = jobset.NAME if owner["kind"] == "JobSet" else "batch.kubernetes.io/job-name"
                pods = self._api.items(
                    f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"{label}={owner['name']}"
                )
                alive = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
                left = list(nodes)
                for pod in alive:
                    node = pod["spec"].get("nodeSelector", {}).get(HOSTNAME)
                    if node in left:
                        left.remove(node)
                for pod in sorted(
                    alive,
                    key=lambda each: int(
                        each["metadata"].get("labels", {}).get("batch.kubernetes.io/job-completion-index", 0)
                    ),
                ):
                    gates = pod["spec"].get("schedulingGates") or []
                    if (
                        not left
                        or not any(gate["name"] == GATE for gate in gates)
                        or pod["metadata"].get("deletionTimestamp")
                    ):
                        continue
                    pod["spec"]["schedulingGates"] = [gate for gate in gates if gate["name"] != GATE]
                    pod["spec"]["nodeSelector"] = {
                        **pod["spec"].get("nodeSelector", {}),
                        HOSTNAME: left.pop(0),
                    }
                    with suppress(ApiError):
                        self._api.replace(
                            f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}", pod
                        )

    def _tell_queues(self, rows: Mapping[tuple[str, str], Doc]) -> None:
        """How many wait and run, in the status of queues."""
        usage = _usage(rows.values())
        locals_ = self._api.items(f"{_API}/localqueues")
        of = {
            (each["metadata"]["namespace"], each["metadata"]["name"]): each["spec"]["clusterQueue"]
            for each in locals_
        }
        for queue in self._api.items(f"{_API}/clusterqueues"):
            name = queue["metadata"]["name"]
            own = [row for key, row in rows.items() if of.get((key[0], row["spec"]["queueName"])) == name]
            open_ones = [row for row in own if not _true(row["status"], "Finished")]
            admitted = sum(1 for row in open_ones if _true(row["status"], "Admitted"))
            status = {
                "admittedWorkloads": admitted,
                "reservingWorkloads": admitted,
                "pendingWorkloads": len(open_ones) - admitted,
                "flavorsUsage": [
                    {"name": flavor, "resources": [{"name": key, "total": f"{amount:g}"}]}
                    for (at, flavor, key), amount in sorted(usage.items())
                    if at == name
                ],
                "conditions": [
                    {
                        "type": "Active",
                        "status": "True",
                        "reason": "Ready",
                        "message": "",
                        "lastTransitionTime": queue["metadata"]["creationTimestamp"],
                    }
                ],
            }
            if queue.get("status") != status:
                self._api.patch(f"{_API}/clusterqueues/{name}/status", {"status": status})
        for each in locals_:
            meta = each["metadata"]
            own = [
                row
                for key, row in rows.items()
                if key[0] == meta["namespace"] and row["spec"]["queueName"] == meta["name"]
            ]
            open_ones = [row for row in own if not _true(row["status"], "Finished")]
            admitted = sum(1 for row in open_ones if _true(row["status"], "Admitted"))
            status = {
                "admittedWorkloads": admitted,
                "reservingWorkloads": admitted,
                "pendingWorkloads": len(open_ones) - admitted,
            }
            if each.get("status") != status:
                self._api.patch(
                    f"{_API}/namespaces/{meta['namespace']}/localqueues/{meta['name']}/status",
                    {"status": status},
                )

    def _write(self, row: Doc) -> None:
        written = self._api.patch(
            f"{_path(row)}/status", {"status": {"admission": None, "conditions": None, **row["status"]}}
        )
        row["metadata"], row["status"] = written["metadata"], written.get("status", {})


def _key(document: Doc) -> tuple[str, str]:
    return document["metadata"]["namespace"], document["metadata"]["name"]


def _path(row: Doc) -> str:
    namespace, name = _key(row)
    return f"{_API}/namespaces/{namespace}/workloads/{name}"


def _pod_requests(spec: Doc) -> dict[str, float]:
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


def _requests(row: Doc) -> dict[str, float]:
    """What all pods of a workload request."""
    total: dict[str, float] = defaultdict(float)
    for pod_set in row["spec"]["podSets"]:
        for key, amount in _pod_requests(pod_set["template"]["spec"]).items():
            total[key] += amount * pod_set["count"]
    return dict(total)


def _usage(rows: Iterable[Doc]) -> dict[tuple[str, str, str], float]:
    """What admitted workloads have: queue, flavor, resource -> amount."""
    usage: dict[tuple[str, str, str], float] = defaultdict(float)
    for row in rows:
        status = row.get("status", {})
        if not _true(status, "Admitted") or _true(status, "Finished"):
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


def _add(spec: Doc, change: Doc) -> None:
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **change["nodeSelector"]}
    spec["tolerations"] = [*spec.get("tolerations", ()), *change["tolerations"]]
    if "schedulingGates" in change:
        spec["schedulingGates"] = [*spec.get("schedulingGates", ()), *change["schedulingGates"]]


def _put_back(spec: Doc, original: Doc) -> None:
    for key in ("nodeSelector", "tolerations", "schedulingGates"):
        if key in original:
            spec[key] = original[key]
        else:
            spec.pop(key, None)


def _true(status: Doc, kind: str) -> Doc:
    """A condition that is true, empty where it is not."""
    rows: list[Any] = status.get("conditions") or []
    return next((row for row in rows if row["type"] == kind and row["status"] == "True"), {})


def _age(condition: Doc) -> float:
    """Seconds since a condition became true."""
    if not condition:
        return 0.0
    since = datetime.fromisoformat(str(condition["lastTransitionTime"]).replace("Z", "+00:00"))
    return (datetime.now(timezone.utc) - since).total_seconds()


def _set(status: Doc, kind: str, reason: str, message: str, *, true: bool = True) -> None:
    rows: list[Doc] = status.get("conditions") or []
    former = next((row for row in rows if row["type"] == kind), None)
    text = "True" if true else "False"
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    since = former["lastTransitionTime"] if former is not None and former["status"] == text else now
    row = {"type": kind, "status": text, "reason": reason, "message": message, "lastTransitionTime": since}
    status["conditions"] = [*(each for each in rows if each["type"] != kind), row]
