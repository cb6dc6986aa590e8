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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import httpx

from orch.rehearsal.kubernetes.api import Api, ApiError, Doc
from orch.rehearsal.kubernetes.controllers import jobset
from orch.rehearsal.kubernetes.controllers.conditions import age_s, condition, set_condition
from orch.rehearsal.kubernetes.controllers.kueue_admission import (
    HOSTNAME,
    Admission,
    Assignment,
    pod_requests,
    requests,
    told,
    usage_of,
)
from orch.rehearsal.kubernetes.controllers.kueue_kinds import API, GROUP, KINDS, VERSION
from orch.rehearsal.kubernetes.controllers.schemas import install

QUEUE, PRIORITY, TIME = (
    f"{GROUP}/{each}" for each in ("queue-name", "priority-class", "max-exec-time-seconds")
)
GATE = f"{GROUP}/topology"
JOB_UID = f"{GROUP}/job-uid"


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
        return condition(self.document.get("status", {}), *kinds)

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


class Kueue:
    """The controller, until the event is set. `ready_within_s`: waitForPodsReady's timeout, None: off."""

    def __init__(self, api: Api, until: threading.Event, *, ready_within_s: float | None = None) -> None:
        self._api, self._until, self._ready_within_s = api, until, ready_within_s
        self._admission = Admission(api)
        self._changed = threading.Event()

    def install(self) -> None:
        install(self._api, KINDS)

    def watch(self, path: str) -> None:
        """Have one kind of objects bring the scheduler back to work."""
        for _ in self._api.watch(path, self._until):
            self._changed.set()

    def paths(self) -> tuple[str, ...]:
        """What to watch."""
        kinds = ("resourceflavors", "clusterqueues", "localqueues", "workloads")
        return (
            *(f"{API}/{each}" for each in kinds),
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
        rows = {_key(row): row for row in self._api.items(f"{API}/workloads")}
        for key, row in rows.items():
            if key not in jobs and not row["metadata"].get("deletionTimestamp"):
                self._api.remove(f"{API}/namespaces/{key[0]}/workloads/{key[1]}")
        classes = {row["metadata"]["name"]: row for row in self._api.items(f"{API}/workloadpriorityclasses")}
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
            f"{API}/namespaces/{namespace}/workloads",
            {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": "Workload",
                "metadata": {"name": name, "labels": {JOB_UID: meta["uid"]}, "ownerReferences": [owner]},
                "spec": spec,
            },
        )

    def _follow(self, jobs: Mapping[tuple[str, str], _Job], rows: dict[tuple[str, str], Doc]) -> None:
        """Ends, readiness, and the time that workloads may take."""
        for key, row in rows.items():
            job, status = jobs[key], row.setdefault("status", {})
            if condition(status, "Finished"):
                continue
            if job.finished:
                set_condition(
                    status,
                    "Finished",
                    job.finished.get("reason", "JobFinished"),
                    job.finished.get("message", ""),
                )
                self._write(row)
                continue
            admitted = bool(condition(status, "Admitted"))
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
            if now_ready != bool(condition(status, "PodsReady")):
                set_condition(
                    status, "PodsReady", "Started" if now_ready else "WaitForStart", "", true=now_ready
                )
                self._write(row)
            since = age_s(condition(status, "Admitted"))
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
        flavors = {each["metadata"]["name"]: each for each in self._api.items(f"{API}/resourceflavors")}
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
        document = self._as_submitted(job, row)
        document["spec"]["suspend"] = False
        for name, spec in _pod_specs(document, is_set=job.is_set):
            _add(spec, changes[name])
        self._api.replace(job.path, document)

    def _as_submitted(self, job: _Job, row: Doc) -> Doc:
        """A suspended job with the pods of its workload, without what an admission gave them."""
        original = {each["name"]: each["template"]["spec"] for each in row["spec"]["podSets"]}
        document = copy.deepcopy(self._api.get(job.path))
        if not job.is_set and document.get("status", {}).get("startTime"):
            # A job that has started keeps its pods' places; Kueue takes its start back, as the API allows.
            self._api.patch(f"{job.path}/status", {"status": {"startTime": None}})
            document = copy.deepcopy(self._api.get(job.path))
        document.pop("status", None)
        for name, spec in _pod_specs(document, is_set=job.is_set):
            _put_back(spec, original[name])
        return document

    def _evict(self, job: _Job, row: Doc, reason: str, message: str) -> None:
        """Take the quota back; the job is suspended, and waits again where its workload is active."""
        status = row["status"]
        status.pop("admission", None)
        set_condition(status, "Evicted", reason, message)
        set_condition(status, "QuotaReserved", "Pending", message, true=False)
        set_condition(status, "Admitted", "NoReservation", message, true=False)
        set_condition(status, "PodsReady", "WaitForStart", "", true=False)
        status["requeueState"] = {"count": status.get("requeueState", {}).get("count", 0) + 1}
        self._write(row)
        self._api.patch(job.path, {"spec": {"suspend": True}})
        self._api.replace(job.path, self._as_submitted(job, row))

    def _admit(self, jobs: Mapping[tuple[str, str], _Job], rows: dict[tuple[str, str], Doc]) -> None:
        """Give quota to those that wait, by priority, then by age."""
        queues = {each["metadata"]["name"]: each for each in self._api.items(f"{API}/clusterqueues")}
        locals_ = {_key(each): each for each in self._api.items(f"{API}/localqueues")}
        flavors = {each["metadata"]["name"]: each for each in self._api.items(f"{API}/resourceflavors")}
        usage = usage_of(rows.values())
        waiting = [
            row
            for row in rows.values()
            if row["spec"].get("active", True)
            and not condition(row["status"], "Finished")
            and not condition(row["status"], "Admitted")
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
            found = self._admission.fit(row, queue, queues, flavors, usage)
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
            if condition(each["status"], "Admitted")
            and not condition(each["status"], "Finished")
            and each["status"].get("admission", {}).get("clusterQueue") == queue["metadata"]["name"]
            and int(each["spec"].get("priority", 0)) < mine
        ]
        if not victims:
            return False
        asked = requests(row)
        freed: dict[str, float] = defaultdict(float)
        for each in victims:
            for key, amount in requests(each).items():
                freed[key] += amount
        if any(freed[key] < amount for key, amount in asked.items() if "/" in key):
            return False  # even all of them would not be enough
        least = min(int(each["spec"].get("priority", 0)) for each in victims)
        victim = max(
            (each for each in victims if int(each["spec"].get("priority", 0)) == least),
            key=lambda each: str(condition(each["status"], "Admitted").get("lastTransitionTime")),
        )
        self._evict(
            jobs[_key(victim)],
            victim,
            "Preempted",
            f"Preempted to accommodate a workload ({row['metadata']['name']})",
        )
        return True

    def _reserve(self, row: Doc, queue: str, found: Assignment) -> None:
        status = row["status"]
        status["admission"] = {
            "clusterQueue": queue,
            "podSetAssignments": [
                {
                    "name": each["name"],
                    "count": each["count"],
                    "flavors": dict(found.flavors),
                    "resourceUsage": {
                        key: told(key, amount * each["count"])
                        for key, amount in pod_requests(each["template"]["spec"]).items()
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
        set_condition(status, "QuotaReserved", "QuotaReserved", f"Quota reserved in ClusterQueue {queue}")
        set_condition(status, "Admitted", "Admitted", "The workload is admitted")
        set_condition(status, "PodsReady", "WaitForStart", "Not all pods are ready", true=False)
        if condition(status, "Evicted"):
            set_condition(status, "Evicted", "QuotaReserved", "Previously evicted", true=False)
        self._write(row)

    def _pend(self, row: Doc, reason: str, message: str) -> None:
        before = copy.deepcopy(row["status"])
        set_condition(row["status"], "QuotaReserved", reason, message, true=False)
        if row["status"] != before:
            self._write(row)

    def _ungate(self, rows: Mapping[tuple[str, str], Doc]) -> None:
        """Bind gated pods to the nodes that their workload was given."""
        for (namespace, _), row in rows.items():
            for assigned in row["status"].get("admission", {}).get("podSetAssignments", ()):
                nodes = list((assigned.get("topologyAssignment") or {}).get("nodes", ()))
                if not nodes or condition(row["status"], "Finished"):
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
        usage = usage_of(rows.values())
        locals_ = self._api.items(f"{API}/localqueues")
        of = {
            (each["metadata"]["namespace"], each["metadata"]["name"]): each["spec"]["clusterQueue"]
            for each in locals_
        }
        for queue in self._api.items(f"{API}/clusterqueues"):
            name = queue["metadata"]["name"]
            own = [row for key, row in rows.items() if of.get((key[0], row["spec"]["queueName"])) == name]
            open_ones = [row for row in own if not condition(row["status"], "Finished")]
            admitted = sum(1 for row in open_ones if condition(row["status"], "Admitted"))
            status = {
                "admittedWorkloads": admitted,
                "reservingWorkloads": admitted,
                "pendingWorkloads": len(open_ones) - admitted,
                "flavorsUsage": [
                    {"name": flavor, "resources": [{"name": key, "total": told(key, amount)}]}
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
                self._api.patch(f"{API}/clusterqueues/{name}/status", {"status": status})
        for each in locals_:
            meta = each["metadata"]
            own = [
                row
                for key, row in rows.items()
                if key[0] == meta["namespace"] and row["spec"]["queueName"] == meta["name"]
            ]
            open_ones = [row for row in own if not condition(row["status"], "Finished")]
            admitted = sum(1 for row in open_ones if condition(row["status"], "Admitted"))
            status = {
                "admittedWorkloads": admitted,
                "reservingWorkloads": admitted,
                "pendingWorkloads": len(open_ones) - admitted,
            }
            if each.get("status") != status:
                self._api.patch(
                    f"{API}/namespaces/{meta['namespace']}/localqueues/{meta['name']}/status",
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
    return f"{API}/namespaces/{namespace}/workloads/{name}"


def _pod_specs(document: Doc, *, is_set: bool) -> Iterable[tuple[str, Doc]]:
    """The specs of the pods of a job by the names of their pod sets."""
    if not is_set:
        return [("main", document["spec"]["template"]["spec"])]
    return [
        (each["name"], each["template"]["spec"]["template"]["spec"])
        for each in document["spec"]["replicatedJobs"]
    ]


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
