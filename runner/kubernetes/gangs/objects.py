"""The objects of a gang: one indexed Job of N pods and what it owns. Pure.

A gang is made in three steps, so that two who make it at once make one, and one that was cut short can go on:
the Job suspended and in no queue (`held`), what it owns (`owned`), and the Job let go (`release`).
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Sequence
from typing import Any

from orch.runner.kubernetes.gangs.fabric import FabricPod, network_annotations
from orch.runner.kubernetes.gangs.names import (
    CONTAINER,
    GANG,
    HOSTNAME,
    INSTANCE_TYPE,
    JOB_NAME,
    QUEUE_NAME,
    QUEUE_PRIORITY,
    QUEUE_TIME,
    RELEASED,
    RUN_ID,
)
from orch.runner.kubernetes.gangs.request import (
    Claim,
    GangRequest,
    RegistryLogin,
    asked,
    check_request,
    fit_on_one,
    limits_of,
)

Doc = dict[str, Any]

KEPT_S = 24 * 3600
"""How long a gang that has ended stays where nobody deletes it."""

STARTS_WITHIN_S = 1800
"""How much longer than its run a pod may last: time for the others of its gang, whose images may take longer.
`max_duration` itself is kept by a clock in the pods, from the first command on."""


def gang(request: GangRequest) -> tuple[Doc, ...]:
    """All objects of a gang: the Job first, as it is once it has been let go, then what it owns.

    Raises BadTask for what the queue cannot give, and for tags that are no labels.
    """
    check_request(request)
    fabric = request.fabric
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


def _metadata(request: GangRequest) -> Doc:
    return {
        "name": request.name,
        "namespace": request.queue.namespace,
        "labels": {**request.tags, **request.labels},
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
        if (priority_class := request.priority_class) is not None and request.priority:
            metadata["labels"][QUEUE_PRIORITY] = priority_class
        if longest is not None:
            metadata["labels"][QUEUE_TIME] = str(longest)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _longest_s(request: GangRequest) -> int | None:
    return None if request.max_duration_s is None else request.max_duration_s + STARTS_WITHIN_S


def _pod_metadata(request: GangRequest, fabric: FabricPod | None) -> Doc:
    queue = request.queue
    annotations: dict[str, str] = {}
    if fabric is not None:
        annotations = {**fabric.annotations, **network_annotations(queue, asked(request))}
    if queue.gang == "kueue" and queue.topology_key is not None:
        kind = "required" if queue.topology_required else "preferred"
        annotations[f"kueue.x-k8s.io/podset-{kind}-topology"] = queue.topology_key
    return {"labels": {**request.tags, **request.labels}, "annotations": annotations}


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
    limits |= limits_of(wanted)
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
    if queue.gpu_resource is not None and request.gpus:
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
    if request.pods > 1 and fit_on_one(request):
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
