"""A stand-in for the JobSet controller (jobset.x-k8s.io/v1alpha2), written from its API's documents.

It does what orch asks of one: a headless service, an indexed job for each replica, suspension, completion,
failure policies, restarts, time to live. What it does not know is refused by the schema (`SCHEMA`).
"""

from __future__ import annotations

import copy
import threading
import time
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from orch.rehearsal.kubernetes.api import Api, ApiError, Doc

GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
_JOBSETS = f"/apis/{GROUP}/{VERSION}"
NAME, REPLICATED, INDEX = (
    f"jobset.sigs.k8s.io/{each}" for each in ("jobset-name", "replicatedjob-name", "job-index")
)
ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
COORDINATOR = "jobset.sigs.k8s.io/coordinator"

_ANY: Doc = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXT: Doc = {"type": "string"}
_NUMBER: Doc = {"type": "integer", "format": "int32"}
_FLAG: Doc = {"type": "boolean"}


def _object(**fields: Doc) -> Doc:
    return {"type": "object", "properties": fields}


def _list(of: Doc) -> Doc:
    return {"type": "array", "items": of}


_SAME = {"rule": "self == oldSelf", "message": "field is immutable"}
SCHEMA: Doc = _object(
    apiVersion=_TEXT,
    kind=_TEXT,
    metadata={"type": "object"},
    status=_ANY,
    spec=_object(
        replicatedJobs=_list(
            {
                **_object(
                    name=_TEXT,
                    groupName=_TEXT,
                    replicas=_NUMBER,
                    template=_ANY,
                    dependsOn=_list(_object(name=_TEXT, status=_TEXT)),
                ),
                "required": ["name", "template"],
            }
        ),
        network={
            **_object(enableDNSHostnames=_FLAG, subdomain=_TEXT, publishNotReadyAddresses=_FLAG),
            "x-kubernetes-validations": [_SAME],
        },
        successPolicy=_object(operator=_TEXT, targetReplicatedJobs=_list(_TEXT)),
        failurePolicy={
            **_object(
                maxRestarts=_NUMBER,
                restartStrategy={**_TEXT, "enum": ["Recreate", "BlockingRecreate"]},
                rules=_list(
                    _object(
                        name=_TEXT,
                        action={
                            **_TEXT,
                            "enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"],
                        },
                        onJobFailureReasons=_list(_TEXT),
                        targetReplicatedJobs=_list(_TEXT),
                    )
                ),
            ),
            "x-kubernetes-validations": [_SAME],
        },
        coordinator=_object(replicatedJob=_TEXT, jobIndex=_NUMBER, podIndex=_NUMBER),
        suspend=_FLAG,
        ttlSecondsAfterFinished=_NUMBER,
        managedBy=_TEXT,
    ),
)


def definition(group: str, version: str, kind: str, plural: str, schema: Doc, *, namespaced: bool) -> Doc:
    """A CustomResourceDefinition with a status."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def install(api: Api, definitions: list[Doc]) -> None:
    """Make kinds of objects, and wait until they are served."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for each in definitions:
        with suppress(ApiError):
            api.create(path, each)
    for each in definitions:
        while True:
            established = api.get(f"{path}/{each['metadata']['name']}").get("status", {})
            if any(
                row["type"] == "Established" and row["status"] == "True"
                for row in established.get("conditions") or []
            ):
                break
            time.sleep(0.1)


# Names of jobs and pods must fit a label; the controller's webhook refuses what would not.
NAME_POLICY: Doc = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "jobset-names"},
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [GROUP],
                    "apiVersions": [VERSION],
                    "resources": [PLURAL],
                    "operations": ["CREATE"],
                }
            ]
        },
        "validations": [
            {
                "expression": "object.spec.replicatedJobs.all(j, "
                "size(object.metadata.name) + size(j.name) + 7 <= 63)",
                "message": "pod names generated by this JobSet would exceed 63 characters",
            }
        ],
    },
}
NAME_BINDING: Doc = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "jobset-names"},
    "spec": {"policyName": "jobset-names", "validationActions": ["Deny"]},
}


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
        if _condition(status, "Completed") or _condition(status, "Failed"):
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
        if not _condition(status, "Failed") and int(status.get("restarts", 0)) == attempt:
            self._make(jobset, current, old, attempt)
            self._suspend(jobset, current, status)
            wanted = sum(each.get("replicas", 1) for each in jobset["spec"]["replicatedJobs"])
            if len(current) == wanted and all(_job_condition(job, "Complete") for job in current):
                _set(status, "Completed", "AllJobsCompleted", "jobset completed successfully")
                status["terminalState"] = "Completed"
        elif not _condition(status, "Failed"):
            self._mark(namespace, name)
        status["replicatedJobsStatus"] = _counts(jobset, current)
        if status != jobset.get("status"):
            jobset["status"] = status
            self._api.replace(f"{path}/status", jobset)
        if _condition(status, "Failed"):
            for job in current:
                if not _job_condition(job, "Complete") and not _job_condition(job, "Failed"):
                    self._api.remove(_path(job), propagationPolicy="Foreground")
        if _condition(status, "Completed") or _condition(status, "Failed"):
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
            _set(status, "Suspended", "SuspendedJobs", "jobset is suspended")
        elif _condition(status, "Suspended"):
            _set(status, "Suspended", "ResumeJobs", "jobset is resumed", true=False)

    def _failure(self, jobset: Doc, jobs: list[Doc], status: Doc) -> None:
        """What a failed job means by the failure policy: the first rule that matches, else a restart."""
        failed = [job for job in jobs if _job_condition(job, "Failed")]
        if not failed:
            return
        first = min(failed, key=lambda job: str(_job_condition(job, "Failed").get("lastTransitionTime", "")))
        reason = str(_job_condition(first, "Failed").get("reason", ""))
        policy = jobset["spec"].get("failurePolicy")
        if policy is None:
            _set(
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
            _set(status, "Failed", "FailJobSetFailurePolicyAction", f"a rule of the failure policy: {reason}")
            status["terminalState"] = "Failed"
        elif action == "RestartJobSet" and counted >= int(policy.get("maxRestarts", 0)):
            _set(
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
        ended = _condition(status, "Completed") or _condition(status, "Failed")
        since = datetime.fromisoformat(str(ended["lastTransitionTime"]).replace("Z", "+00:00"))
        left = seconds - (datetime.now(timezone.utc) - since).total_seconds()
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


def _job_condition(job: Doc, kind: str) -> Doc:
    return _condition(job.get("status", {}), kind)


def _ended(job: Doc) -> bool:
    return bool(_job_condition(job, "Complete") or _job_condition(job, "Failed"))


def _condition(status: Doc, kind: str) -> Doc:
    """A condition that is true, empty where it is not."""
    rows: list[Any] = status.get("conditions") or []
    return next((row for row in rows if row["type"] == kind and row["status"] == "True"), {})


def _set(status: Doc, kind: str, reason: str, message: str, *, true: bool = True) -> None:
    rows: list[Doc] = [row for row in status.get("conditions") or [] if row["type"] != kind]
    former = next((row for row in status.get("conditions") or [] if row["type"] == kind), None)
    text = "True" if true else "False"
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    since = former["lastTransitionTime"] if former is not None and former["status"] == text else now
    row = {"type": kind, "status": text, "reason": reason, "message": message, "lastTransitionTime": since}
    status["conditions"] = [*rows, row]


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
