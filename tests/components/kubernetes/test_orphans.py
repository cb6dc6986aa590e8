"""What a killed `up` made and nobody recorded is removed by the mark of its fleet, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.kubernetes.kubeserver import Answer, Call, KubeServer, kube_server, status

from orch.components.kubernetes.account.facts import MANAGED_BY, MARK
from orch.components.kubernetes.objects.orphans import delete_unrecorded, survey
from orch.components.kubernetes.plan import STACK
from orch.components.kubernetes.volumes import KubernetesVolumes
from orch.components.marks.orphans import RecordedResource, StackSnapshot
from orch.components.volumes import Account
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.volume_state import VolumeState

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


# Namespaces that were left


def spaces(server: KubeServer, names: dict[str, str | None], held: dict[str, Doc]) -> list[str]:
    """Namespaces by name, each with the stack that made it; `held`: what is in one, by `NAME/PLURAL`. The
    names of those that are deleted."""
    deleted = list[str]()
    everywhere = {
        "serviceaccounts": {"metadata": {"name": "default"}},
        "configmaps": {"metadata": {"name": "kube-root-ca.crt"}},
    }

    def space(name: str) -> Doc:
        meta = {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        whose = names[name]
        annotations = {STACK: whose} if whose is not None else {}
        labels = {MARK: "m-abc123", MANAGED_BY: "orch"}
        return {"metadata": {**meta, "labels": labels, "annotations": annotations}}

    def answer(call: Call) -> Answer:
        words = (
            call.path.split("/namespaces", 1)[1].strip("/").split("/") if "namespaces" in call.path else []
        )
        if words == [""]:
            assert call.words["labelSelector"] == "app.kubernetes.io/managed-by=orch"
            return Answer({"items": [space(each) for each in names if each not in deleted]})
        if len(words) == 1:
            if words[0] not in names or words[0] in deleted:
                return status(404, "NotFound", "not found", name=words[0])
            if call.method == "DELETE":
                deleted.append(words[0])
            return Answer(space(words[0]))
        rows = [row for row in (everywhere.get(words[1]), held.get("/".join(words))) if row is not None]
        return Answer({"items": rows})

    server.answer = answer
    return deleted


def test_gc_finds_namespaces_of_the_project_that_nothing_is_in(server: KubeServer) -> None:
    names = {
        "left": "lab/train/abc123",
        "data": "lab/volume.data/abc123",
        "claimed": "lab/old/abc123",
        "served": "lab/other/abc123",
        "theirs": "else/train/0a1b2c",
        "unmarked": None,
        "known": "lab/known/abc123",
    }
    held = {
        "claimed/persistentvolumeclaims": {"metadata": {"name": "d", "labels": {MARK: "m-abc123"}}},
        "served/serviceaccounts": {"metadata": {"name": "orch-other-abc123", "labels": {MARK: "m-abc123"}}},
    }
    deleted = spaces(server, names, held)
    recorded = RecordedResource("kubernetes:core/v1:Namespace", "known-namespace", "known", {})
    snapshot = StackSnapshot(recorded=(recorded,), unfinished=())
    found = survey("lab", snapshot, server.kubeconfig(), ["lab"])
    told = [(each.kind, each.id, each.mark, each.region) for each in found.resources]
    assert told == [
        ("namespace", "left", "lab/train/abc123", "lab"),
        ("namespace", "data", "lab/volume.data/abc123", "lab"),
    ]
    assert (found.foreign, found.unseen, found.closed) == (1, (), ())
    # What was shown is what goes, and nothing of another mark.
    chosen = replace(
        snapshot, marks=frozenset({"lab/train/abc123"}), places=frozenset({("kubernetes", "lab")})
    )
    assert list(delete_unrecorded(chosen, server.kubeconfig(), pause_s=0.0)) == ["Namespace left"]
    assert deleted == ["left"]


def test_a_look_for_an_interrupted_call_looks_for_no_namespaces(server: KubeServer) -> None:
    deleted = spaces(server, {"left": "lab/train/abc123"}, {})
    marks = frozenset({"lab/train/abc123"})
    elsewhere = StackSnapshot((), (), marks=marks, places=frozenset({("aws", "eu-west-1")}))
    assert list(delete_unrecorded(elsewhere, server.kubeconfig(), pause_s=0.0)) == []
    assert (deleted, server.calls) == ([], [])


def test_who_may_list_no_namespaces_is_told_so_and_gc_goes_on(server: KubeServer) -> None:
    server.answer = lambda call: status(403, "Forbidden", "namespaces is forbidden")
    found = survey("lab", StackSnapshot((), ()), server.kubeconfig(), [])
    assert (found.resources, found.unseen) == ((), ())
    assert len(found.closed) == 1


def test_a_context_that_is_not_there_hides_no_other_one(server: KubeServer) -> None:
    spaces(server, {"left": "lab/train/abc123"}, {})
    found = survey("lab", StackSnapshot((), ()), server.kubeconfig(), ["nowhere", "lab"])
    assert [each.id for each in found.resources] == ["left"]
    assert len(found.unseen) == 1


def test_who_may_list_no_namespaces_has_the_one_of_the_settings_looked_at(server: KubeServer) -> None:
    spaces(server, {"left": "lab/train/abc123", "other": "lab/other/abc123"}, {})
    answer = server.answer

    def refusing(call: Call) -> Answer:
        if call.path == "/api/v1/namespaces":
            return status(403, "Forbidden", "namespaces is forbidden")
        return answer(call)

    server.answer = refusing
    found = survey("lab", StackSnapshot((), ()), server.kubeconfig(), [], "left")
    assert ([each.id for each in found.resources], found.closed) == (["left"], ())


@pytest.mark.parametrize("more", [None, "left/pods", "left/persistentvolumeclaims"])
def test_a_namespace_that_a_volume_made_goes_with_it_while_nothing_else_is_in_it(
    server: KubeServer, more: str | None
) -> None:
    names: dict[str, str | None] = {"left": "lab/volume.data/abc123", "other": "lab/train/abc123"}
    deleted = spaces(server, names, {more: {"metadata": {"name": "p"}}} if more else {})
    settings = KubernetesSettings.model_validate(
        {"type": "kubernetes", "kubeconfig": {"filename": str(server.kubeconfig())}}
    )
    volume = VolumeState(name="data", backend="kubernetes", volume_id="orch-data-abc123", region="lab")
    removed = KubernetesVolumes().clear(Account((settings,)), volume, "lab/volume.data")
    assert list(removed) == ([] if more else ["Namespace left"])
    assert deleted == ([] if more else ["left"])
