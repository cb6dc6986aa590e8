"""Pods: what is refused at once, where they go, and how they come up and go.

Provisioning is asynchronous: PROVISIONING, STARTING, RUNNING, a step for each look that somebody takes. A
pod that was deleted is TERMINATED for one look, then gone. Source: runpod/docs
api-reference-v2/openapi.json, /v2/pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orch.rehearsal.http_service import Answer, Request, stamp
from orch.rehearsal.runpod.api.bodies import CreatePod, checked, checked_container
from orch.rehearsal.runpod.api.errors import (
    RunpodError,
    balance_too_low,
    no_pods_left,
    not_found,
    over_spend_limit,
)
from orch.rehearsal.runpod.api.routes import existing, new_id, page, route
from orch.rehearsal.runpod.data.tables import Gpu, gpus
from orch.rehearsal.store import Doc

SPEND_LIMIT = 80.0
BALANCE = 10_000.0
"""Dollars that an account has, and may spend in an hour, where nobody set it. Source:
accounts-billing/billing.mdx."""

STEPS = ("PROVISIONING", "STARTING", "RUNNING")
ACTIONS = {
    "PROVISIONING": ["terminate"],
    "STARTING": ["stop", "terminate"],
    "RUNNING": ["stop", "restart", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["terminate"],
}


# -- where there is room, and money


def free_pods(request: Request, gpu: Gpu, center: str) -> int | None:
    """How many pods of a GPU a data center has room for; None: no limit."""
    known = request.account.knobs_now().capacity
    keys = (f"{gpu.id}@{center}", gpu.id, f"*@{center}")
    total = next((known[key] for key in keys if key in known), None)
    if total is None:
        return None
    running = sum(1 for pod in request.each("pod") if pod["_gpu"] == gpu.id and _at(pod) == center)
    return max(0, total - running)


def _at(pod: Doc) -> str | None:
    return pod["_center"] if pod["status"] not in ("TERMINATED", "EXITED") else None


def place(request: Request, gpu: Gpu, count: int, centers: Iterable[str]) -> str | None:
    """The data center that has room for so many pods of one GPU together; None without."""
    wanted = tuple(centers) or gpu.data_centers
    for center in gpu.data_centers:
        left = free_pods(request, gpu, center)
        if center in wanted and (left is None or left >= count):
            return center
    return None


def spending(request: Request) -> float:
    """Dollars an hour of all that runs."""
    return float(sum(pod["cost"] for pod in request.each("pod")))


def check_money(request: Request, cost: float) -> None:
    """Raises RunpodError where the balance or the limit does not allow it."""
    balance, limit = money(request)
    if balance < cost:
        raise balance_too_low()
    if spending(request) + cost > limit:
        raise over_spend_limit(limit)


def money(request: Request) -> tuple[float, float]:
    """The balance, and the limit of dollars an hour."""
    known = request.account.knobs_now().quotas
    return known.get("clientBalance", BALANCE), known.get("spendLimit", SPEND_LIMIT)


# -- documents


def make_pod(
    request: Request, body: Any, gpu: Gpu, count: int, *, price: float, center: str, **own: Any
) -> Doc:
    """A pod that begins to be. `body`: what was asked for of the container; `price`: of one GPU an hour;
    `own`: what else it has. No SSH keys are registered in this account: `startSsh` does nothing."""
    pod_id = new_id(request, "pod")
    doc: Doc = {
        "id": pod_id,
        "name": body.name,
        "status": STEPS[0],
        "actions": ACTIONS[STEPS[0]],
        "image": body.image,
        "args": body.args,
        "disk": body.disk,
        "mounts": body.mounts.model_dump(exclude_none=True),
        "ports": list(body.ports),
        "env": dict(body.env),
        "registry": None,
        "gpu": {"id": gpu.id, "count": count, "vcpuCount": 16 * count, "memory": 128 * count},
        "cloud": "SECURE",
        "dataCenterId": center,
        "cudaVersion": None,
        "ssh": {"proxy": None, "direct": None},
        "template": None,
        "cost": round(price * count, 4),
        "locked": False,
        "runtime": None,
        "createdAt": stamp(request.account.now()),
        "startedAt": None,
        "globalNetworking": {"enabled": False},
        "_gpu": gpu.id,
        "_center": center,
        "_looks": 0,
        "_since": request.account.now(),
        **own,
    }
    put_pod(request, doc)
    for mount in doc["mounts"].get("network", ()):
        request.store.refer(pod_id, mount["volumeId"], "mount")
    return doc


def put_pod(request: Request, pod: Doc) -> None:
    request.store.put(pod["id"], "pod", "", pod, pod["name"])


def seen(request: Request, pod: Doc) -> Doc:
    """A pod, looked at once more: it takes the next step where its time has come."""
    if pod["status"] not in STEPS:
        return pod
    if request.account.now() - pod["_since"] < request.account.knobs_now().pending_s:
        return pod
    looks = pod["_looks"] + 1
    status = STEPS[min(looks, len(STEPS)) - 1]
    pod = {**pod, "_looks": looks, "status": status, "actions": ACTIONS[status]}
    if status == "STARTING" and "cluster" in pod:
        pod["cluster"] = {**pod["cluster"], "rank": pod["_rank"], "ip": f"10.65.0.{pod['_rank'] + 2}"}
    if status == "RUNNING" and pod["runtime"] is None:
        pod |= _running(request, pod)
        request.account.note("born", pod["id"])
    put_pod(request, pod)
    return pod


def _running(request: Request, pod: Doc) -> Doc:
    number = int(pod["id"][:6], 16)
    host, port = f"198.51.100.{number % 250 + 1}", 30_000 + number % 20_000  # addresses of nobody
    user = f"{pod['id']}-64411eb2"
    proxy = {"host": "ssh.runpod.io", "port": 22, "username": user, "command": f"ssh {user}@ssh.runpod.io"}
    open_ = "22/tcp" in pod["ports"]
    direct = {"host": host, "port": port, "username": "root", "command": f"ssh root@{host} -p {port}"}
    ports = [{"private": 22, "public": port, "type": "tcp", "ip": host}] if open_ else []
    return {
        "cudaVersion": "12.8",
        "ssh": {"proxy": proxy, "direct": direct if open_ else None},
        "runtime": {"uptime": 1, "ports": ports},
        "startedAt": stamp(request.account.now()),
    }


def stopped(request: Request, pod: Doc, status: str = "EXITED") -> Doc:
    """Its container has ended: it is a pod still, without its ports and at no cost."""
    pod = {**pod, "status": status, "actions": ACTIONS[status], "cost": 0.0, "runtime": None}
    pod["ssh"] = {**pod["ssh"], "direct": None}
    put_pod(request, pod)
    request.account.note("dead", pod["id"])
    return pod


def remove_pod(request: Request, pod: Doc) -> None:
    """Its GPUs and its volume are free at once; for one more look it is TERMINATED."""
    pod = {**pod, "status": "TERMINATED", "actions": [], "cost": 0.0, "runtime": None}
    request.store.remove(pod["id"])
    request.account.note("dead", pod["id"])
    request.store.put(pod["id"], "terminated-pod", "", pod)


# -- routes


@route("GET", "/v2/pods", "listPods")
def list_pods(request: Request) -> Answer:
    members = request.query.get("includeClusterPods") == "true"
    rows = [seen(request, each) for each in request.each("pod") if members or "cluster" not in each]
    return page(request, "pods", rows, sized=True)


@route("POST", "/v2/pods", "createPod")
def create_pod(request: Request) -> Answer:
    body = checked(CreatePod, request.body)
    if (body.gpu is None) == (body.cpu is None):
        raise RunpodError(400, "exactly one of gpu and cpu must be set")
    if body.gpu is None:
        raise RunpodError(400, "CPU pods are not simulated")
    if body.image is None:
        raise RunpodError(422, "Request validation failed.", errors=["$.image: required without templateId"])
    if body.gpu.allowedCudaVersions and body.gpu.minCudaVersion:
        raise RunpodError(400, "allowedCudaVersions and minCudaVersion are mutually exclusive")
    gpu = known_gpu(body.gpu.id)
    if body.gpu.count > gpu.max_count:
        raise RunpodError(400, f"at most {gpu.max_count} GPUs of {gpu.id} in a pod")
    volume = checked_container(body, lambda name: request.store.get(name, "network-volume"))
    price = gpu.secure if body.cloud == "SECURE" else gpu.community
    check_money(request, price * body.gpu.count)
    center = place(request, gpu, 1, [volume["dataCenter"]] if volume else body.dataCenterIds)
    if center is None:
        raise no_pods_left()
    return Answer(
        201, make_pod(request, body, gpu, body.gpu.count, price=price, center=center, cloud=body.cloud)
    )


def known_gpu(gpu_id: str) -> Gpu:
    gpu = gpus().get(gpu_id)
    if gpu is None:
        raise RunpodError(400, f"unknown GPU type {gpu_id}")
    return gpu


@route("GET", "/v2/pods/{id}", "getPod")
def get_pod(request: Request) -> Answer:
    gone = request.store.get(request.id, "terminated-pod")
    if gone is not None:
        if gone.get("_told"):
            raise not_found("pod")
        request.store.put(request.id, "terminated-pod", "", {**gone, "_told": True})
        return Answer(200, gone)
    return Answer(200, seen(request, existing(request, "pod")))


@route("DELETE", "/v2/pods/{id}", "deletePod")
def delete_pod(request: Request) -> Answer:
    pod = existing(request, "pod")
    if "cluster" in pod:
        raise RunpodError(409, "the pod belongs to a cluster; manage it through /v2/clusters")
    remove_pod(request, pod)
    return Answer(204)
