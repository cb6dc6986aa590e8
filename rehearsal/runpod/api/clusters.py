"""Instant Clusters: one call makes all pods in one data center, or none. Nothing of a cluster changes later
but its name.

Source: runpod/docs api-reference-v2/openapi.json, /v2/clusters; instant-clusters.mdx (2 to 8 pods without
asking sales).
"""

from __future__ import annotations

from collections import Counter

from orch.rehearsal.http_service import Answer, Request, stamp
from orch.rehearsal.runpod.api.bodies import CreateCluster, Rename, checked, checked_container
from orch.rehearsal.runpod.api.errors import RunpodError, no_cluster
from orch.rehearsal.runpod.api.pods import (
    check_money,
    known_gpu,
    make_pod,
    place,
    remove_pod,
    seen,
)
from orch.rehearsal.runpod.api.routes import existing, new_id, page, route
from orch.rehearsal.store import Doc

MOST_PODS = 8


@route("POST", "/v2/clusters", "createCluster")
def create(request: Request) -> Answer:
    """Missing capacity, and what no cluster is sold with, are the same 400 without a code."""
    body = checked(CreateCluster, request.body)
    if body.image is None:
        raise RunpodError(422, "Request validation failed.", errors=["$.image: required"])
    compute = body.compute
    gpu = known_gpu(compute.gpuTypeId)
    volume = checked_container(body, lambda name: request.store.get(name, "network-volume"))
    if not gpu.cluster or compute.gpuCountPerPod > gpu.max_count or compute.podCount > MOST_PODS:
        raise no_cluster()
    price, count = gpu.cluster_price, compute.gpuCountPerPod
    check_money(request, price * count * compute.podCount)
    center = place(request, gpu, compute.podCount, [volume["dataCenter"]] if volume else body.dataCenterIds)
    if center is None:
        raise no_cluster()
    cluster_id = new_id(request, "cluster")
    for rank in range(compute.podCount):
        member = {"id": cluster_id, "rank": None}
        make_pod(
            request,
            body,
            gpu,
            count,
            price=price,
            center=center,
            cluster=member,
            _rank=rank,
            _count=compute.podCount,
        )
    doc = {
        "id": cluster_id,
        "name": body.name,
        "type": body.type,
        "compute": compute.model_dump(),
        "createdAt": stamp(request.account.now()),
    }
    request.store.put(cluster_id, "cluster", "", doc, body.name)
    return Answer(201, _shown(request, doc))


def _members(request: Request, cluster_id: str) -> list[Doc]:
    return [pod for pod in request.each("pod") if pod.get("cluster", {}).get("id") == cluster_id]


def _shown(request: Request, cluster: Doc) -> Doc:
    """A cluster has no state of its own: it counts its pods by theirs."""
    members = _members(request, cluster["id"])
    pods = {"total": len(members), "byStatus": dict(Counter(pod["status"] for pod in members))}
    shown = {**cluster, "pods": pods}
    if not members:
        return shown
    first = min(members, key=lambda pod: pod["_rank"])
    primary: Doc = {"podId": first["id"], "status": first["status"]}
    if direct := first["ssh"]["direct"]:
        primary["sshEndpoint"] = f"{direct['host']}:{direct['port']}"
    network = {"cidr": "10.65.0.0/16", "vxlanId": 42, "vxlanPort": 4789}
    return {**shown, "dataCenterId": first["dataCenterId"], "network": network, "primary": primary}


@route("GET", "/v2/clusters", "listClusters")
def list_clusters(request: Request) -> Answer:
    return page(request, "clusters", [_shown(request, each) for each in request.each("cluster")])


@route("GET", "/v2/clusters/{id}", "getCluster")
def get(request: Request) -> Answer:
    return Answer(200, _shown(request, existing(request, "cluster")))


@route("PATCH", "/v2/clusters/{id}", "updateCluster")
def rename(request: Request) -> Answer:
    cluster = {**existing(request, "cluster"), "name": checked(Rename, request.body).name}
    request.store.put(cluster["id"], "cluster", "", cluster, cluster["name"])
    return Answer(200, _shown(request, cluster))


@route("GET", "/v2/clusters/{id}/pods", "listClusterPods")
def list_members(request: Request) -> Answer:
    cluster = existing(request, "cluster")
    return page(request, "pods", [seen(request, pod) for pod in _members(request, cluster["id"])])


@route("DELETE", "/v2/clusters/{id}", "deleteCluster")
def delete(request: Request) -> Answer:
    cluster = existing(request, "cluster")
    for pod in _members(request, cluster["id"]):
        remove_pod(request, pod)
    request.store.remove(cluster["id"])
    return Answer(204)
