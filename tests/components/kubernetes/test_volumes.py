"""Volumes on Kubernetes: claims, and the namespace that a volume makes where it is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulumi.runtime
import pytest
from kit.engine.registering import registered
from kit.kubernetes.kubeserver import Answer, Call, KubeServer, kube_server, status

from orch.components.kubernetes.account.facts import MARK
from orch.components.kubernetes.plan import STACK
from orch.components.kubernetes.volumes import KubernetesVolumes, plan_new
from orch.components.volumes import Account, VolumePlan, VolumeRequest
from orch.spec.findings import PlanError
from orch.spec.models import Volume
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.volume_state import VolumeState

Doc = dict[str, Any]
CLASSES: list[Doc] = [
    {
        "metadata": {
            "name": "fast",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "allowVolumeExpansion": True,
    }
]
MADE_BY_DATA = "volume.data-abc123"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubeServer]:
    with kube_server(tmp_path) as made:
        yield made


def cluster(server: KubeServer, space: Doc | None, *, may: bool = True, claims: tuple[Doc, ...] = ()) -> None:
    """`space`: the metadata of the namespace `lab`; `may`: whether namespaces may be made."""

    def answer(call: Call) -> Answer:
        name = call.path.rpartition("/")[2]
        if call.path.endswith("selfsubjectaccessreviews"):
            asked = call.document["spec"]["resourceAttributes"]
            assert (asked["verb"], asked["resource"]) == ("create", "namespaces")
            return Answer({"status": {"allowed": may}})
        if call.path == "/api/v1/namespaces/lab" and space is not None:
            return Answer({"metadata": {"name": "lab", **space}})
        if call.path.endswith("/storageclasses"):
            return Answer({"items": CLASSES})
        found = [each for each in claims if each["metadata"]["name"] == name]
        return Answer(found[0]) if found else status(404, "NotFound", "not found", name=name)

    server.answer = answer


def request_of(server: KubeServer, previous: VolumeState | None = None, **written: Any) -> VolumeRequest:
    given = {"name": "data", "backend": "kubernetes", **({"size": "100GB"} | written)}
    settings = KubernetesSettings.model_validate(
        {"type": "kubernetes", "kubeconfig": {"filename": str(server.kubeconfig())}, "namespace": "lab"}
    )
    volume = Volume.model_validate({key: value for key, value in given.items() if value is not None})
    return VolumeRequest(volume, Account((settings,)), previous, "abc123", {"team": "nlp"})


class Recorder(pulumi.runtime.Mocks):
    def __init__(self) -> None:
        self.made: list[tuple[str, Doc]] = []

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, Doc]:
        self.made.append((args.typ.rpartition(":")[2], dict(args.inputs)))
        return args.name, dict(args.inputs)

    def call(self, args: pulumi.runtime.MockCallArgs) -> Doc:
        return {}


def made_of(plan: VolumePlan) -> list[tuple[str, Doc]]:
    recorder = Recorder()
    registered(recorder, plan.register, stack="volume.data")
    return [each for each in recorder.made if each[0] in ("Namespace", "PersistentVolumeClaim")]


def test_a_volume_makes_its_namespace_where_it_is_not_there(server: KubeServer) -> None:
    cluster(server, None)
    plan = KubernetesVolumes().plan(request_of(server))
    assert plan.reasons[0] == "the namespace lab is made with the volume"
    (first, space), (second, claim) = made_of(plan)
    assert (first, second) == ("Namespace", "PersistentVolumeClaim")
    assert space["metadata"]["name"] == claim["metadata"]["namespace"] == "lab"
    labels = space["metadata"]["labels"]
    # Not the mark of a fleet that has the volume's name.
    assert (labels[MARK], labels["team"]) == (MADE_BY_DATA, "nlp")
    assert claim["metadata"]["labels"][MARK] == "data-abc123"
    assert space["metadata"]["annotations"][STACK] == "tests/volume.data/abc123"


def test_a_namespace_that_the_volume_made_stays_its_own(server: KubeServer) -> None:
    cluster(server, {"labels": {MARK: MADE_BY_DATA}})
    assert [kind for kind, _ in made_of(KubernetesVolumes().plan(request_of(server)))] == [
        "Namespace",
        "PersistentVolumeClaim",
    ]


@pytest.mark.parametrize("labels", [{}, {MARK: "train-abc123"}, {MARK: "data-abc123"}])
def test_a_namespace_of_others_is_not_made(server: KubeServer, labels: Doc) -> None:
    cluster(server, {"labels": labels})
    assert [kind for kind, _ in made_of(KubernetesVolumes().plan(request_of(server)))] == [
        "PersistentVolumeClaim"
    ]


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (None, "the cluster has no namespace lab, and you may not make one"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, "the namespace lab is being deleted"),
    ],
)
def test_a_namespace_that_cannot_be_had_is_told(server: KubeServer, space: Doc | None, told: str) -> None:
    cluster(server, space, may=False)
    with pytest.raises(PlanError) as caught:
        KubernetesVolumes().plan(request_of(server))
    assert (caught.value.code, caught.value.summary) == ("ORCH455", told)


def test_a_registered_claim_makes_no_namespace(server: KubeServer) -> None:
    cluster(server, None)
    with pytest.raises(PlanError) as caught:
        KubernetesVolumes().plan(request_of(server, size=None, claim_name="theirs"))
    assert caught.value.code == "ORCH268"
    theirs = {"metadata": {"name": "theirs"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    cluster(server, {}, claims=(theirs,))
    assert made_of(KubernetesVolumes().plan(request_of(server, size=None, claim_name="theirs"))) == []


def test_a_claim_keeps_its_name_in_another_clone_of_the_project(server: KubeServer) -> None:
    before = plan_new(request_of(server), {}, "lab", CLASSES).state
    assert before.volume_id == "orch-data-abc123"
    asked = request_of(server, before)
    elsewhere = VolumeRequest(asked.volume, asked.account, before, "ffffff")
    assert plan_new(elsewhere, {}, "lab", CLASSES).state.volume_id == "orch-data-abc123"


@pytest.mark.parametrize("claim", [None, "theirs"])
def test_a_plan_tells_which_cluster_it_is_for(server: KubeServer, claim: str | None) -> None:
    theirs = {"metadata": {"name": "theirs"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    cluster(server, {}, claims=(theirs, {"metadata": {"name": "kube-system", "uid": "8d3f"}}))
    account = KubernetesVolumes().plan(request_of(server, claim_name=claim)).account
    assert account is not None
    assert account.words == f"the Kubernetes cluster at 127.0.0.1:{server.port}"
    assert account.selected_by == f"context lab of {server.kubeconfig()}"
    assert account.has("8d3f")
    assert not account.has("aaaa")


def test_a_rehearsal_asks_its_own_cluster(server: KubeServer, tmp_path: Path) -> None:
    cluster(server, {})
    settings = KubernetesSettings.model_validate(
        {"type": "kubernetes", "kubeconfig": {"filename": str(tmp_path / "nowhere")}, "namespace": "lab"}
    )
    account = Account((settings,), session=lambda backend: str(server.kubeconfig()))
    asked = request_of(server)
    plan = KubernetesVolumes().plan(VolumeRequest(asked.volume, account, None, "abc123"))
    assert (plan.state.disk_type, plan.account) == ("fast", None)
