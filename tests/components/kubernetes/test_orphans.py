"""What a killed `up` made and nobody recorded is removed by the mark of its fleet, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubeserver import Answer, Call, KubeServer, kube_server, status

from orch.components.cloud.orphans import RecordedResource, StackSnapshot
from orch.components.kubernetes.account.facts import MARK
from orch.components.kubernetes.orphans import delete_unrecorded

Doc = dict[str, Any]
API = "kueue.x-k8s.io/v1beta2"
TYPES = {"ClusterQueue": "clusterqueues", "ResourceFlavor": "resourceflavors", "Topology": "topologies"}


def document(kind: str, mark: str = "lab-abc123") -> Doc:
    meta = {"name": "orch-lab-abc123", "uid": kind, "labels": {MARK: mark}}
    return {"apiVersion": API, "kind": kind, "metadata": meta}


def resource(kind: str, id_: str | None) -> RecordedResource:
    return RecordedResource(f"kubernetes:{API}:{kind}", f"lab-{kind.lower()}", id_, document(kind))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubeServer]:
    with kube_server(tmp_path) as made:
        yield made


def answering(server: KubeServer, objects: dict[str, Doc]) -> None:
    def answer(call: Call) -> Answer:
        kind = next((kind for kind, plural in TYPES.items() if f"/{plural}/" in call.path), "")
        if kind not in objects:
            return status(404, "NotFound", "not found", name="orch-lab-abc123")
        if call.method == "DELETE":
            assert json.loads(call.body)["preconditions"] == {"uid": kind}
            return Answer(objects.pop(kind))
        return Answer(objects[kind])

    server.answer = answer


def test_what_is_not_recorded_goes_and_what_is_recorded_stays(server: KubeServer) -> None:
    objects = {kind: document(kind) for kind in TYPES}
    answering(server, objects)
    snapshot = StackSnapshot(
        recorded=(resource("Topology", "orch-lab-abc123"), resource("ResourceFlavor", None)),
        unfinished=(resource("ClusterQueue", None),),
    )
    removed = list(delete_unrecorded(snapshot, server.kubeconfig(), pause_s=0.0))
    assert removed == ["ClusterQueue orch-lab-abc123", "ResourceFlavor orch-lab-abc123"]
    assert list(objects) == ["Topology"]


def test_what_bears_another_mark_stays(server: KubeServer) -> None:
    objects = {"ClusterQueue": document("ClusterQueue", "other-000000")}
    answering(server, objects)
    snapshot = StackSnapshot(recorded=(), unfinished=(resource("ClusterQueue", None),))
    assert list(delete_unrecorded(snapshot, server.kubeconfig(), pause_s=0.0)) == []
    assert list(objects) == ["ClusterQueue"]


def test_a_stack_with_all_of_its_objects_asks_nobody(server: KubeServer) -> None:
    snapshot = StackSnapshot(recorded=(resource("Topology", "orch-lab-abc123"),), unfinished=())
    assert list(delete_unrecorded(snapshot, server.kubeconfig())) == []
    assert server.calls == []


def test_the_provider_of_the_stack_tells_the_cluster(server: KubeServer, tmp_path: Path) -> None:
    objects = {"ClusterQueue": document("ClusterQueue")}
    answering(server, objects)
    told = {"kubeconfig": str(server.kubeconfig()), "context": "lab"}
    provider = RecordedResource("pulumi:providers:kubernetes", "lab-kubernetes", "p", told)
    snapshot = StackSnapshot(recorded=(provider,), unfinished=(resource("ClusterQueue", None),))
    assert list(delete_unrecorded(snapshot, tmp_path / "nowhere", pause_s=0.0)) == [
        "ClusterQueue orch-lab-abc123"
    ]
