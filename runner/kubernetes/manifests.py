"""The objects of a gang: one indexed Job of N pods and what it owns. Pure.

A gang is made in three steps, so that two who make it at once make one, and one that was cut short can go on:
the Job suspended and in no queue (`held`), what it owns (`owned`), and the Job let go (`release`).
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from orch.runner.errors import BadTask
from orch.runner.kubernetes.fabric_extras import FabricPod, fabric_pod
from orch.runner.launch.variables import check_names
from orch.spec.quantities import MIB, quantity
from orch.spec.state import PodQueue

Doc = dict[str, Any]

CONTAINER = "job"
"""The container of a pod that the run's job is started in."""

MANAGED_BY = "app.kubernetes.io/managed-by"
PROJECT, FLEET, RUN, ATTEMPT, GANG = (
    f"orch.dev/{each}" for each in ("project", "fleet", "run", "attempt", "gang")
)
RUN_ID = "orch.dev/run-id"
RELEASED = "orch.dev/released"
"""The annotation of a Job that has been let go: all that it owns was there by then."""

QUEUE_NAME, QUEUE_PRIORITY, QUEUE_TIME = (
    f"kueue.x-k8s.io/{each}" for each in ("queue-name", "priority-class", "max-exec-time-seconds")
)
INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
HOSTNAME = "kubernetes.io/hostname"

KEPT_S = 24 * 3600
"""How long a gang that has ended stays where nobody deletes it."""

STARTS_WITHIN_S = 1800
"""How much longer than its run a pod may last: time for the others of its gang, whose images may take longer.
`max_duration` itself is kept by a clock in the pods, from the first command on."""

_CODE = "ORCH423"
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_JOB_LABELS = ("job-name", "controller-uid")
_RESERVED = ("kubernetes.io", "k8s.io", "x-k8s.io", "orch.dev")


@dataclass(frozen=True)
class PodResources:
    """What a task asks for of one node; None: all that the node has. `shm_mib`: the size of /dev/shm."""

    gpus: int | None = None
    cpus: float | None = None
    memory_mib: int | None = None
    cpus_limit: float | None = None
    memory_limit_mib: int | None = None
    disk_mib: int | None = None
    shm_mib: int | None = None


@dataclass(frozen=True)
class HostFolder:
    """A folder of the node at `path` of the pod. `optional`: the pod starts without it too."""

    source: str
    path: str
    read_only: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Claim:
    """A PersistentVolumeClaim of the namespace at `path` of the pod."""

    name: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class RegistryLogin:
    """Who pulls the image. `registry`: its host, None for Docker Hub."""

    username: str
    password: str = field(repr=False)
    registry: str | None = None


@dataclass(frozen=True)
class GangRequest:
    """A gang: N pods that start together, each for one rank of an attempt of a run.

    `project` is the mark of the project, `token` what tells this run from others of its name. `script` is run
    by `/bin/sh -c` as each pod's first process. `env` has no secrets: who may read pods there reads it.
    `needs_fabric`: the pods use the cluster's interconnect and do not start without. `networks`: the
    NetworkAttachmentDefinitions that go with it. `lost_after_s`: how long a node may be silent before its pod
    counts as lost, None: as long as the cluster says. `regions`, `zones`, `instance_types`: nodes with one of
    these alone. `stops_within_s`: how long the first process may take to end.
    """

    queue: PodQueue
    project: str
    fleet: str
    run: str
    token: str
    attempt: int
    pods: int
    image: str
    script: str = field(repr=False)
    resources: PodResources = PodResources()
    privileged: bool = False
    needs_fabric: bool = False
    priority: int = 0
    max_duration_s: int | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    mounts: tuple[HostFolder | Claim, ...] = ()
    registry: RegistryLogin | None = None
    service_account: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    tolerations: tuple[Mapping[str, str], ...] = ()
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    lost_after_s: int | None = None
    stops_within_s: int = 30

    @property
    def name(self) -> str:
        return gang_name(self.run, self.project, self.token, self.attempt)


def gang_name(run: str, project: str, token: str, attempt: int) -> str:
    """`orch-<run>-<hash>`, at most 40 characters, a DNS label: pods and claims are called after it."""
    readable = re.sub(r"[^a-z0-9]+", "-", run.lower())[:28].strip("-") or "run"
    digest = hashlib.sha256(json.dumps([project, run, token, attempt]).encode()).hexdigest()
    return f"orch-{readable}-{digest[:6]}"


def rank_name(gang: str, index: int) -> str:
    """The name of a pod of a gang in DNS, within its namespace: known before the pod is."""
    return f"{gang}-{index}.{gang}"


def gang(request: GangRequest) -> tuple[Doc, ...]:
    """All objects of a gang: the Job first, as it is once it has been let go, then what it owns.

    Raises BadTask for what the queue cannot give, and for tags that are no labels.
    """
    _check(request)
    fabric = _fabric(request)
    rows = [_job(request, fabric), _service(request)]
    if request.registry is not None:
        rows.append(_secret(request, request.registry))
    if request.queue.gang == "podgroup":
        rows.append(_pod_group(request))
    if fabric is not None and fabric.compute_domain:
        rows.append(_compute_domain(request))
    return tuple(rows)


def held(job: Doc) -> Doc:
    """The Job of a gang before it is let go: suspended, and in no queue."""
    row = copy.deepcopy(job)
    row["spec"]["suspend"] = True
    row["metadata"]["labels"].pop(QUEUE_NAME, None)
    row["metadata"]["annotations"].pop(RELEASED, None)
    return row


def release(job: Doc) -> Doc:
    """The merge patch that lets a held Job go. Where Kueue starts it, `suspend` is Kueue's from then on."""
    labels: dict[str, str] = job["metadata"]["labels"]
    patch: Doc = {"metadata": {"annotations": {RELEASED: "true"}}}
    if QUEUE_NAME in labels:
        patch["metadata"]["labels"] = {QUEUE_NAME: labels[QUEUE_NAME]}
    else:
        patch["spec"] = {"suspend": False}
    return patch


def owned(document: Doc, job: str, uid: str) -> Doc:
    """The same as the property of a Job: it goes with it."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid}
    row = copy.deepcopy(document)
    row["metadata"]["ownerReferences"] = [owner]
    return row


def check_labels(tags: Mapping[str, str]) -> None:
    """Raises BadTask for a tag that cannot be a label, or would change what Kubernetes or Kueue do.

    Source: Kubernetes documentation, "Labels and Selectors", syntax and character set.
    """
    for key, value in tags.items():
        prefix, slash, name = key.rpartition("/")
        good = _LABEL_NAME.fullmatch(name) and (
            not slash or (len(prefix) <= 253 and _DNS_NAME.fullmatch(prefix))
        )
        path = f"tags.{key}"
        if not good:
            raise BadTask(
                f"the tag {key!r} is no name of a label of Kubernetes",
                path=path,
                hint="letters, digits, `-`, `_` and `.`, 63 at most; `example.com/` may stand before it",
                code=_CODE,
            )
        if key in _JOB_LABELS or any(prefix == each or prefix.endswith(f".{each}") for each in _RESERVED):
            raise BadTask(
                f"the tag {key!r} is a label that Kubernetes, Kueue or orch set themselves",
                path=path,
                hint="use another prefix, or none",
                code=_CODE,
            )
        if not _LABEL_VALUE.fullmatch(value):
            raise BadTask(
                f"the tag {key!r} has a value that no label of Kubernetes can have: {value!r}",
                path=path,
                hint="letters, digits, `-`, `_` and `.`, 63 at most, letters or digits at both ends",
                code=_CODE,
            )


def asked(request: GangRequest) -> dict[str, str]:
    """What one pod requests, by Kubernetes' keys: the whole node, or the part of it that the task asks for.

    A task that asks for some of a node's GPUs gets the same part of what it says nothing of, and no more than
    its limits.
    """
    queue, wanted = request.queue, request.resources
    fabric = _fabric(request)
    share = _share(request)
    rows: dict[str, str] = {}
    for key, amount in queue.requests.items():
        if fabric is None and _is_fabric(queue, key):
            continue
        if key == queue.gpu_resource:
            if _gpus(request):
                rows[key] = str(_gpus(request))
        elif key in ("cpu", "memory") or (fabric is not None and fabric.divided and _is_fabric(queue, key)):
            rows[key] = scaled(key, amount, share)
        elif key == "ephemeral-storage":
            rows[key] = scaled("memory", amount, share)
        else:
            rows[key] = amount
    if wanted.cpus is not None:
        rows["cpu"] = _cpus(wanted.cpus)
    if wanted.memory_mib is not None:
        rows["memory"] = f"{wanted.memory_mib}Mi"
    if wanted.disk_mib is not None:
        rows["ephemeral-storage"] = f"{wanted.disk_mib}Mi"
    for key, most in _limits(wanted).items():
        if key in rows and quantity(rows[key]) > quantity(most):
            rows[key] = most
    return rows


def _limits(wanted: PodResources) -> dict[str, str]:
    rows: dict[str, str] = {}
    if wanted.cpus_limit is not None:
        rows["cpu"] = _cpus(wanted.cpus_limit)
    if wanted.memory_limit_mib is not None:
        rows["memory"] = f"{wanted.memory_limit_mib}Mi"
    return rows


def fabric_variables(queue: PodQueue, networks: Sequence[str] = ()) -> dict[str, str]:
    """What jobs need in their environment to use the interconnect of a queue's nodes: that of the pods.

    It takes the place of what fabrics.yml says for machines, whose interfaces are called otherwise.
    """
    fabric = _queue_fabric(queue, networks)
    return dict(fabric.env) if fabric is not None else {}


def scaled(key: str, amount: str, share: Fraction) -> str:
    """A part of an amount: CPUs in thousandths, memory in MiB, of all else whole pieces, one at least."""
    if share == 1:
        return amount
    part = quantity(amount) * share
    if key == "cpu":
        return f"{int(part * 1000)}m"
    if key == "memory" or key.startswith("hugepages-"):
        page = 1024 if key == "hugepages-1Gi" else 2
        return f"{int(part / MIB) // page * page}Mi"
    return str(max(int(part), 1))


# What there is of a node.


def _gpus(request: GangRequest) -> int:
    wanted = request.resources.gpus
    return request.queue.gpus.count if wanted is None else wanted


def _share(request: GangRequest) -> Fraction:
    whole, wanted = request.queue.gpus.count, request.resources.gpus
    if not whole or not wanted:
        return Fraction(1)
    return min(Fraction(wanted, whole), Fraction(1))


def _is_fabric(queue: PodQueue, key: str) -> bool:
    """Whether pods ask for this key because of the cluster's interconnect."""
    row = _queue_fabric(queue, ())
    return row is not None and (key == queue.fabric_resource or row.asks(key))


def _fabric(request: GangRequest) -> FabricPod | None:
    return _queue_fabric(request.queue, request.networks) if request.needs_fabric else None


def _queue_fabric(queue: PodQueue, networks: Sequence[str]) -> FabricPod | None:
    if queue.fabric is None:
        return None
    return fabric_pod(
        queue.fabric,
        resource=queue.fabric_resource,
        requests=queue.requests,
        networks=networks,
        instance_type=queue.node_selector.get(INSTANCE_TYPE),
    )


def _fit_on_one(request: GangRequest) -> bool:
    """Whether a node has room for two pods of the gang."""
    whole = request.queue.requests
    rows = asked(request)
    return all(
        quantity(rows[key]) * 2 <= quantity(whole[key])
        for key in ("cpu", "memory", request.queue.gpu_resource)
        if key is not None and key in whole and key in rows
    )


def _check(request: GangRequest) -> None:
    queue = request.queue
    if not 1 <= request.pods <= queue.pods:
        raise BadTask(
            f"the run has {request.pods} nodes, and fleet {request.fleet} gives {queue.pods} at most",
            path="nodes",
            hint=f"write `nodes: {queue.pods}` or less, or more nodes into the fleet",
            code=_CODE,
        )
    if _gpus(request) > queue.gpus.count:
        raise BadTask(
            f"the run asks for {_gpus(request)} GPUs a node, and nodes of fleet {request.fleet} have "
            f"{queue.gpus.count}",
            path="resources.gpu",
            code=_CODE,
        )
    if request.needs_fabric and queue.fabric is None:
        raise BadTask(
            f"the run needs an interconnect, and no node of fleet {request.fleet} offers one",
            hint="a device plugin says what nodes offer, in `status.allocatable`; after that, `orch up`",
            code=_CODE,
        )
    fabric = _fabric(request)
    lacks = queue.fabric_resource is not None and queue.fabric_resource not in queue.requests
    if fabric is not None and (lacks or (fabric.keyed and not any(map(fabric.asks, queue.requests)))):
        raise BadTask(
            f"the pods would ask for no device of their interconnect ({fabric.title})",
            hint="run `orch up`, which reads what the nodes offer",
            code=_CODE,
        )
    if request.priority and _priority_class(request) is None:
        known = ", ".join(f"{value} ({name})" for name, value in queue.priority_classes.items())
        raise BadTask(
            f"the queue of fleet {request.fleet} has no class for the priority {request.priority}",
            path="priority",
            hint=f"write one of {known}, or none"
            if known
            else "remove it: who is first is the cluster's to say",
            code=_CODE,
        )
    if (queue.gang == "kueue") != (queue.local_queue is not None):
        raise BadTask(
            f"fleet {request.fleet} names no queue of Kueue for its gangs", hint="run `orch up`", code=_CODE
        )
    wanted = request.resources
    limit = wanted.memory_limit_mib
    if limit is not None and wanted.shm_mib is not None and wanted.shm_mib > limit:
        raise BadTask(
            f"/dev/shm has {wanted.shm_mib} MiB, which count as memory, of which the run has {limit} MiB",
            path="resources.shm_size",
            code=_CODE,
        )
    check_labels(request.tags)
    for key, value in _own_labels(request).items():
        if not _LABEL_VALUE.fullmatch(value):
            raise BadTask(f"{value!r} cannot be a label of Kubernetes ({key})", code=_CODE)
    check_names(request.env)
    taken = {"/dev/shm", *(str(each["mountPath"]) for each in (fabric.mounts if fabric else ()))}
    for at, each in enumerate(request.mounts):
        path = each.path.rstrip("/") or "/"
        if path in taken:
            raise BadTask(f"there is something else at {path} already", path=f"volumes.{at}", code=_CODE)
        taken.add(path)


# Objects.


def _priority_class(request: GangRequest) -> str | None:
    """Kueue's class whose value is the run's priority."""
    classes = request.queue.priority_classes
    return next((name for name, value in classes.items() if value == request.priority), None)


def _own_labels(request: GangRequest) -> dict[str, str]:
    return {
        MANAGED_BY: "orch",
        PROJECT: request.project,
        FLEET: request.fleet,
        RUN: request.run,
        ATTEMPT: str(request.attempt),
        GANG: request.name,
    }


def _metadata(request: GangRequest) -> Doc:
    return {
        "name": request.name,
        "namespace": request.queue.namespace,
        "labels": {**request.tags, **_own_labels(request)},
        "annotations": {RUN_ID: request.token},
    }


def _job(request: GangRequest, fabric: FabricPod | None) -> Doc:
    queue, metadata = request.queue, _metadata(request)
    metadata["annotations"][RELEASED] = "true"
    spec: Doc = {
        "suspend": queue.gang == "kueue",
        "parallelism": request.pods,
        "completions": request.pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        # One pod that fails ends all, and the Job says which one it was.
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
            ]
        },
        "ttlSecondsAfterFinished": KEPT_S,
        "template": {"metadata": _pod_metadata(request, fabric), "spec": _pod(request, fabric)},
    }
    longest = _longest_s(request)
    if queue.gang == "kueue" and queue.local_queue is not None:
        metadata["labels"][QUEUE_NAME] = queue.local_queue
        if (priority_class := _priority_class(request)) is not None and request.priority:
            metadata["labels"][QUEUE_PRIORITY] = priority_class
        if longest is not None:
            metadata["labels"][QUEUE_TIME] = str(longest)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _longest_s(request: GangRequest) -> int | None:
    return None if request.max_duration_s is None else request.max_duration_s + STARTS_WITHIN_S


def _pod_metadata(request: GangRequest, fabric: FabricPod | None) -> Doc:
    queue = request.queue
    annotations: dict[str, str] = {**(fabric.annotations if fabric else {})}
    if queue.gang == "kueue" and queue.topology_key is not None:
        kind = "required" if queue.topology_required else "preferred"
        annotations[f"kueue.x-k8s.io/podset-{kind}-topology"] = queue.topology_key
    return {"labels": {**request.tags, **_own_labels(request)}, "annotations": annotations}


def _pod(request: GangRequest, fabric: FabricPod | None) -> Doc:
    queue = request.queue
    volumes, mounts = _volumes(request, fabric)
    spec: Doc = {
        "restartPolicy": "Never",
        "subdomain": request.name,
        "terminationGracePeriodSeconds": request.stops_within_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(request, fabric, mounts)],
        "volumes": volumes,
        "tolerations": _tolerations(request),
    }
    if fabric is not None and fabric.sidecars:
        spec["initContainers"] = list(copy.deepcopy(fabric.sidecars))
    if fabric is not None and fabric.compute_domain:
        spec["resourceClaims"] = [
            {"name": "compute-domain-channel", "resourceClaimTemplateName": _channel(request)}
        ]
    if selector := {**queue.node_selector, **request.node_selector}:
        spec["nodeSelector"] = selector
    if affinity := _affinity(request):
        spec["affinity"] = affinity
    if account := request.service_account or queue.service_account:
        spec["serviceAccountName"] = account
    if request.registry is not None:
        spec["imagePullSecrets"] = [{"name": request.name}]
    if (longest := _longest_s(request)) is not None:
        spec["activeDeadlineSeconds"] = longest  # of the pod: that of a Job counts while its pods wait
    if queue.gang == "podgroup":
        spec["schedulingGroup"] = {"podGroupName": request.name}
    return spec


def _container(request: GangRequest, fabric: FabricPod | None, mounts: list[Doc]) -> Doc:
    rows, wanted = asked(request), request.resources
    # Of devices and huge pages requests equal limits (Kubernetes, "Extended resources", "HugePages").
    divisible = ("cpu", "memory", "ephemeral-storage")
    limits = {key: amount for key, amount in rows.items() if key not in divisible}
    limits |= _limits(wanted)
    resources: Doc = {"requests": rows, "limits": limits}
    security: Doc = {"runAsUser": 0}
    if fabric is not None and fabric.capabilities:
        security["capabilities"] = {"add": list(fabric.capabilities)}
    if request.privileged:
        security["privileged"] = True
    if fabric is not None and fabric.compute_domain:
        resources["claims"] = [{"name": "compute-domain-channel"}]
    env = {**(fabric.env if fabric else {}), **request.env}
    return {
        "name": CONTAINER,
        "image": request.image,
        "command": ["/bin/sh", "-c", _literal(request.script)],
        "env": [{"name": key, "value": _literal(value)} for key, value in env.items()],
        "resources": resources,
        "securityContext": security,
        "volumeMounts": mounts,
    }


def _literal(text: str) -> str:
    """Text that Kubernetes leaves as it is: it fills in $(NAME), and makes `$$` one `$`."""
    return text.replace("$", "$$")


def _volumes(request: GangRequest, fabric: FabricPod | None) -> tuple[list[Doc], list[Doc]]:
    shared: Doc = {"medium": "Memory"}
    if request.resources.shm_mib is not None:
        shared["sizeLimit"] = f"{request.resources.shm_mib}Mi"
    volumes: list[Doc] = [{"name": "shm", "emptyDir": shared}]
    mounts: list[Doc] = [{"name": "shm", "mountPath": "/dev/shm"}]
    if fabric is not None:
        volumes += copy.deepcopy(fabric.volumes)
        mounts += copy.deepcopy(fabric.mounts)
    for at, each in enumerate(request.mounts):
        name = f"volume-{at}"
        if isinstance(each, Claim):
            claim: Doc = {"claimName": each.name}
            if each.read_only:
                claim["readOnly"] = True
            volumes.append({"name": name, "persistentVolumeClaim": claim})
        else:
            kind = "DirectoryOrCreate" if each.optional else "Directory"
            volumes.append({"name": name, "hostPath": {"path": each.source, "type": kind}})
        mount: Doc = {"name": name, "mountPath": each.path}
        if each.read_only:
            mount["readOnly"] = True
        mounts.append(mount)
    return volumes, mounts


def _tolerations(request: GangRequest) -> list[Doc]:
    queue = request.queue
    rows: list[Doc] = []
    if queue.gpu_resource is not None and _gpus(request):
        rows.append({"key": queue.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    if request.lost_after_s is not None:
        rows += [
            {
                "key": f"node.kubernetes.io/{each}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": request.lost_after_s,
            }
            for each in ("not-ready", "unreachable")
        ]
    for each in (*queue.tolerations, *request.tolerations):
        row: Doc = dict(each)
        if "tolerationSeconds" in row:
            row["tolerationSeconds"] = int(row["tolerationSeconds"])
        if row not in rows:
            rows.append(row)
    return rows


def _affinity(request: GangRequest) -> Doc:
    """Which nodes may have its pods, and where they are to each other."""
    queue = request.queue
    places: tuple[tuple[str, Sequence[str]], ...] = (
        ("topology.kubernetes.io/region", request.regions),
        ("topology.kubernetes.io/zone", request.zones),
        (INSTANCE_TYPE, request.instance_types),
    )
    terms = [{"key": key, "operator": "In", "values": list(names)} for key, names in places if names]
    affinity: Doc = {}
    if terms:
        affinity["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": terms}]
            }
        }
    ours = {"labelSelector": {"matchLabels": {GANG: request.name}}}
    if queue.gang != "kueue" and queue.topology_key is not None and request.pods > 1:
        near = {**ours, "topologyKey": queue.topology_key}
        affinity["podAffinity"] = (
            {"requiredDuringSchedulingIgnoredDuringExecution": [near]}
            if queue.topology_required
            else {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": near}]
            }
        )
    if request.pods > 1 and _fit_on_one(request):
        affinity["podAntiAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": [{**ours, "topologyKey": HOSTNAME}]
        }
    return affinity


def _service(request: GangRequest) -> Doc:
    """Names of the pods in DNS, also before they are ready: ranks look for each other while they start."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_NAME: request.name},
        },
    }


def _secret(request: GangRequest, login: RegistryLogin) -> Doc:
    registry = login.registry or "https://index.docker.io/v1/"
    auth = base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
    entry = {"username": login.username, "password": login.password, "auth": auth}
    text = json.dumps({"auths": {registry: entry}})
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(request),
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64.b64encode(text.encode()).decode()},
    }


def _pod_group(request: GangRequest) -> Doc:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": _metadata(request),
        "spec": {"schedulingPolicy": {"gang": {"minCount": request.pods}}},
    }


def _compute_domain(request: GangRequest) -> Doc:
    """The nodes whose GPUs share memory. Its driver makes the claim template."""
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": _metadata(request),
        "spec": {
            "numNodes": request.pods,
            "channel": {"resourceClaimTemplate": {"name": _channel(request)}},
        },
    }


def _channel(request: GangRequest) -> str:
    return f"{request.name}-channel"


def _cpus(count: float) -> str:
    return f"{count:g}" if count == int(count) else f"{round(count * 1000)}m"
