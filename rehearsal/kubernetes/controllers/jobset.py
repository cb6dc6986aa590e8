"""A stand-in for the JobSet controller (jobset.x-k8s.io/v1alpha2), written from its API's documents.

It does what orch asks of one: a headless service, an indexed job for each replica, suspension, completion,
failure policies, restarts, time to live. What it does not know is refused by the schema (`SCHEMA`).
"""

from __future__ import annotations

import copy
import threading
import time
from contextlib import suppress

from orch.rehearsal.kubernetes.api import Api, ApiError, Doc
from orch.rehearsal.kubernetes.controllers.conditions import age_s, condition, set_condition
from orch.rehearsal.kubernetes.controllers.jobset_kinds import (
    GROUP,
    NAME_BINDING,
    NAME_POLICY,
    PLURAL,
    SCHEMA,
    VERSION,
)
from orch.rehearsal.kubernetes.controllers.schemas import definition, install

_JOBSETS = f"/apis/{GROUP}/{VERSION}"
NAME, REPLICATED, INDEX = (
    f"jobset.sigs.k8s.io/{each}" for each in ("jobset-name", "replicatedjob-name", "job-index")
)
ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
COORDINATOR = "jobset.sigs.k8s.io/coordinator"


class JobSets:
    """The controller, until the event is set."""

    def __init__(self, api: Api, until: threading.Event) -> None:
        self._api, self._until = api, until
        self._dirty: set[tuple[str, str]] = set()
        self._guard = threading.Condition()

    def install(self) -> None:
        install(self._api, [definition(GROUP, VERSION, "JobSet", PLURAL, SCHEMA, namespaced=True)])
        path = "/apis/admissionregistration.k8s.io/v1"
        for plural, document in (
            ("validatingadmissionpolicies", NAME_POLICY),
            ("validatingadmissionpolicybindings", NAME_BINDING),
        ):
            with suppress(ApiError):
                self._api.create(f"{path}/{plural}", document)

    def watch_sets(self) -> None:
        for kind, document in self._api.watch(f"{_JOBSETS}/{PLURAL}", self._until):
            for each in document["items"] if kind == "SYNC" else [document]:
                self._mark(each["metadata"]["namespace"], each["metadata"]["name"])

    def watch_jobs(self) -> None:
        for kind, document in self._api.watch("/apis/batch/v1/jobs", self._until, labelSelector=NAME):
            for each in document["items"] if kind == "SYNC" else [document]:
                self._mark(each["metadata"]["namespace"], each["metadata"]["labels"][NAME])

    def reconcile(self) -> None:
        """Bring what changed, one after the other, where it should be."""
        while not self._until.is_set():
            with self._guard:
                while not self._dirty:
                    if self._until.is_set():
                        return
                    self._guard.wait(0.5)
                key = self._dirty.pop()
            try:
                self._one(*key)
            except ApiError as error:
                if error.status != 404:  # a conflict, or a server that is busy: once more
                    time.sleep(0.1)
                    self._mark(*key)

    def _mark(self, namespace: str, name: str) -> None:
        with self._guard:
            self._dirty.add((namespace, name))
            self._guard.notify()

    def _one(self, namespace: str, name: str) -> None:
        path = f"{_JOBSETS}/namespaces/{namespace}/{PLURAL}/{name}"
        jobset = self._api.find(path)
        if jobset is None or jobset["metadata"].get("deletionTimestamp"):
            return
        status: Doc = copy.deepcopy(jobset.get("status") or {})
        jobs = self._jobs(namespace, name)
        if condition(status, "Completed", "Failed"):
            self._expire(path, jobset, status)
            return
        attempt = int(status.get("restarts", 0))
        old = [job for job in jobs if int(job["metadata"]["labels"][ATTEMPT]) < attempt]
        current = [job for job in jobs if int(job["metadata"]["labels"][ATTEMPT]) == attempt]
        for job in old:
            if not job["metadata"].get("deletionTimestamp"):
                self._api.remove(_path(job), propagationPolicy="Foreground")
        blocking = jobset["spec"].get("failurePolicy", {}).get("restartStrategy") == "BlockingRecreate"
        if old and blocking:
            return  # its pods first; the jobs' deletions bring us back
        self._failure(jobset, current, status)
        if not condition(status, "Failed") and int(status.get("restarts", 0)) == attempt:
            self._make(jobset, current, old, attempt)
            self._suspend(jobset, current, status)
            wanted = sum(each.get("replicas", 1) for each in jobset["spec"]["replicatedJobs"])
            if len(current) == wanted and all(_job_condition(job, "Complete") for job in current):
                set_condition(status, "Completed", "AllJobsCompleted", "jobset completed successfully")
                status["terminalState"] = "Completed"
        elif not condition(status, "Failed"):
            self._mark(namespace, name)
        status["replicatedJobsStatus"] = _counts(jobset, current)
        if status != jobset.get("status"):
            jobset["status"] = status
            self._api.replace(f"{path}/status", jobset)
        if condition(status, "Failed"):
            for job in current:
                if not _job_condition(job, "Complete") and not _job_condition(job, "Failed"):
                    self._api.remove(_path(job), propagationPolicy="Foreground")
        if condition(status, "Completed", "Failed"):
            self._mark(namespace, name)

    def _jobs(self, namespace: str, name: str) -> list[Doc]:
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        return self._api.items(path, labelSelector=f"{NAME}={name}")

    def _make(self, jobset: Doc, current: list[Doc], old: list[Doc], attempt: int) -> None:
        """The service and the jobs that are not there."""
        meta, spec = jobset["metadata"], jobset["spec"]
        network = spec.get("network", {})
        subdomain = network.get("subdomain", meta["name"])
        if network.get("enableDNSHostnames", True):
            self._service(jobset, subdomain, publish=network.get("publishNotReadyAddresses", True))
        there = {job["metadata"]["name"] for job in (*current, *old)}
        for replicated in spec["replicatedJobs"]:
            for index in range(replicated.get("replicas", 1)):
                name = f"{meta['name']}-{replicated['name']}-{index}"
                if name not in there:
                    job = self._job(jobset, replicated, index, attempt, subdomain)
                    self._api.create(f"/apis/batch/v1/namespaces/{meta['namespace']}/jobs", job)

    def _service(self, jobset: Doc, subdomain: str, *, publish: bool) -> None:
        meta = jobset["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/services"
        if self._api.find(f"{path}/{subdomain}") is None:
            self._api.create(
                path,
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": {"name": subdomain, "ownerReferences": [_owner(jobset)]},
                    "spec": {
                        "clusterIP": "None",
                        "selector": {NAME: meta["name"]},
                        "publishNotReadyAddresses": publish,
                    },
                },
            )

    def _job(self, jobset: Doc, replicated: Doc, index: int, attempt: int, subdomain: str) -> Doc:
        meta = jobset["metadata"]
        template = copy.deepcopy(replicated["template"])
        spec = template["spec"]
        labels = {
            NAME: meta["name"],
            REPLICATED: replicated["name"],
            INDEX: str(index),
            ATTEMPT: str(attempt),
        }
        coordinator = jobset["spec"].get("coordinator")
        notes: dict[str, str] = {}
        if coordinator is not None:
            job = f"{meta['name']}-{coordinator['replicatedJob']}-{coordinator.get('jobIndex', 0)}"
            notes[COORDINATOR] = f"{job}-{coordinator.get('podIndex', 0)}.{subdomain}"
        spec.setdefault("completionMode", "Indexed")
        spec["suspend"] = bool(jobset["spec"].get("suspend"))
        pod = spec["template"]
        pod.setdefault("metadata", {})
        pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), **labels}
        pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), **notes}
        pod["spec"].setdefault("subdomain", subdomain)
        pod["spec"].setdefault("restartPolicy", "OnFailure")
        given = template.get("metadata", {})
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": f"{meta['name']}-{replicated['name']}-{index}",
                "labels": {**given.get("labels", {}), **labels},
                "annotations": {**given.get("annotations", {}), **notes},
                "ownerReferences": [_owner(jobset)],
            },
            "spec": spec,
        }

    def _suspend(self, jobset: Doc, jobs: list[Doc], status: Doc) -> None:
        """Jobs are suspended, or not, as their set is; what its pod templates were given goes along."""
        wanted = bool(jobset["spec"].get("suspend"))
        templates = {
            each["name"]: each["template"]["spec"]["template"] for each in jobset["spec"]["replicatedJobs"]
        }
        for job in jobs:
            if bool(job["spec"].get("suspend")) == wanted or _ended(job):
                continue
            change: Doc = {"spec": {"suspend": wanted}}
            if not wanted:
                pod = templates[job["metadata"]["labels"][REPLICATED]]
                inner = {
                    key: pod["spec"].get(key)
                    for key in ("nodeSelector", "tolerations", "affinity", "schedulingGates")
                }
                inner = {key: value for key, value in inner.items() if value}
                notes = pod.get("metadata", {}).get("annotations", {})
                change["spec"]["template"] = {"spec": inner, "metadata": {"annotations": notes}}
            self._api.patch(_path(job), change)
        if wanted:
            set_condition(status, "Suspended", "SuspendedJobs", "jobset is suspended")
        elif condition(status, "Suspended"):
            set_condition(status, "Suspended", "ResumeJobs", "jobset is resumed", true=False)

    def _failure(self, jobset: Doc, jobs: list[Doc], status: Doc) -> None:
        """What a failed job means by the failure policy: the first rule that matches, else a restart."""
        failed = [job for job in jobs if _job_condition(job, "Failed")]
        if not failed:
            return
        first = min(failed, key=lambda job: str(_job_condition(job, "Failed").get("lastTransitionTime", "")))
        reason = str(_job_condition(first, "Failed").get("reason", ""))
        policy = jobset["spec"].get("failurePolicy")
        if policy is None:
            set_condition(
                status,
                "Failed",
                "FailedJobs",
                f"jobset failed due to one or more job failures: {first['metadata']['name']}",
            )
            status["terminalState"] = "Failed"
            return
        action = "RestartJobSet"
        for rule in policy.get("rules", ()):
            reasons, targets = rule.get("onJobFailureReasons"), rule.get("targetReplicatedJobs")
            if reasons and reason not in reasons:
                continue
            if targets and first["metadata"]["labels"][REPLICATED] not in targets:
                continue
            action = rule["action"]
            break
        counted = int(status.get("restartsCountTowardsMax", 0))
        if action == "FailJobSet":
            set_condition(
                status, "Failed", "FailJobSetFailurePolicyAction", f"a rule of the failure policy: {reason}"
            )
            status["terminalState"] = "Failed"
        elif action == "RestartJobSet" and counted >= int(policy.get("maxRestarts", 0)):
            set_condition(
                status, "Failed", "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts"
            )
            status["terminalState"] = "Failed"
        else:
            status["restarts"] = int(status.get("restarts", 0)) + 1
            if action == "RestartJobSet":
                status["restartsCountTowardsMax"] = counted + 1

    def _expire(self, path: str, jobset: Doc, status: Doc) -> None:
        """Remove a set that ended once its time to live is over."""
        seconds = jobset["spec"].get("ttlSecondsAfterFinished")
        if seconds is None:
            return
        ended = condition(status, "Completed", "Failed")
        left = seconds - age_s(ended)
        if left <= 0:
            self._api.remove(path, propagationPolicy="Foreground")
        else:
            meta = jobset["metadata"]
            timer = threading.Timer(left + 0.1, self._mark, (meta["namespace"], meta["name"]))
            timer.daemon = True
            timer.start()


def _owner(document: Doc) -> Doc:
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "name": document["metadata"]["name"],
        "uid": document["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _path(job: Doc) -> str:
    return f"/apis/batch/v1/namespaces/{job['metadata']['namespace']}/jobs/{job['metadata']['name']}"


def _job_condition(job: Doc, *kinds: str) -> Doc:
    return condition(job.get("status", {}), *kinds)


def _ended(job: Doc) -> bool:
    return bool(_job_condition(job, "Complete") or _job_condition(job, "Failed"))


def _counts(jobset: Doc, jobs: list[Doc]) -> list[Doc]:
    """How the jobs of each replicated job are."""
    rows: list[Doc] = []
    for replicated in jobset["spec"]["replicatedJobs"]:
        own = [job for job in jobs if job["metadata"]["labels"][REPLICATED] == replicated["name"]]
        pods = [(job["spec"].get("parallelism", 1), job.get("status", {})) for job in own]
        rows.append(
            {
                "name": replicated["name"],
                "ready": sum(
                    1 for count, each in pods if each.get("ready", 0) + each.get("succeeded", 0) >= count
                ),
                "succeeded": sum(1 for job in own if _job_condition(job, "Complete")),
                "failed": sum(1 for job in own if _job_condition(job, "Failed")),
                "active": sum(1 for _, each in pods if each.get("active", 0) > 0),
                "suspended": sum(1 for job in own if job["spec"].get("suspend")),
            }
        )
    return rows
