"""Fleets of Kubernetes on a real API server, by the real engine: made, changed, mended, removed; and as a
user who may do what docs/reference/kubernetes.md lists, and no more."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.kubernetes.kubelab import Cluster
from kit.kubernetes.kubeserver import Answer, Call, kube_server, status
from kit.support import Folder, Said, docker

from orch.components.kubernetes.account.gather_facts import gather_facts
from orch.images import resolve
from orch.rehearsal.kubernetes.controllers.schemas import ANY, definition, install
from orch.runner.kubernetes.client import KubernetesClient
from orch.runner.kubernetes.errors import ApiRefusal
from orch.spec.state import PodQueue

pytestmark = pytest.mark.kubernetes

RBAC = Path(__file__).parents[2] / "examples" / "kubernetes" / "rbac.yml"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
FLEET = """
type: fleet
name: NAME
backends: [kubernetes]
nodes: 0..4
placement: cluster
resources: {gpu: "H100:8"}
network: {interconnect: required}
"""
RBAC_PATHS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}


class Project(Folder):
    """A folder with fleets on the cluster."""

    def begin(self, kubeconfig: Path, namespace: str, **settings: Any) -> Project:
        backend = {
            "type": "kubernetes",
            "kubeconfig": {"filename": str(kubeconfig)},
            "namespace": namespace,
            **settings,
        }
        self.write("orch.yml", json.dumps({"project": "lab", "backends": [backend]}))
        return self

    def fleet(self, name: str = "train", **words: str) -> str:
        text = FLEET.replace("NAME", name)
        for old, new in words.items():
            text = text.replace({"nodes": "0..4"}[old], new)
        return self.write(f"{name}.yml", text)

    def up(self, file: str = "train.yml") -> Said:
        said = self.orch("up", file, "--yes")
        assert said.code == 0, said.out + said.err
        return said

    def queue(self, name: str = "train") -> PodQueue:
        said = self.orch("fleet", "show", name, "--json")
        assert said.code == 0, said.out + said.err
        stack = next((self.path / ".orch").rglob(f"{name}.json"))
        found = json.loads(stack.read_text())["checkpoint"]["latest"]["resources"]
        fleet = next(each["outputs"]["fleet"] for each in found if each["type"] == "pulumi:pulumi:Stack")
        return PodQueue.model_validate(_whole(fleet["queue"]))


def _whole(value: Any) -> Any:
    from orch.components.request import whole

    return whole(value)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("ORCH_KUBERNETES_PLUGIN", "own")
    return Project(tmp_path)


def names(cluster: Cluster, path: str) -> list[str]:
    return sorted(each["metadata"]["name"] for each in cluster.api.items(path))


def ours(cluster: Cluster, fleet: str) -> list[str]:
    """All that is of a fleet anywhere in the cluster, beside its namespace."""
    kinds = ("clusterqueues", "localqueues", "resourceflavors", "topologies")
    found = [each for kind in kinds for each in cluster.api.items(f"{KUEUE}/{kind}")]
    found += cluster.api.items("/api/v1/serviceaccounts")
    return sorted(each["metadata"]["name"] for each in found if f"orch-{fleet}-" in each["metadata"]["name"])


def quota(cluster: Cluster, queue: str) -> dict[str, str]:
    found = cluster.api.get(f"{KUEUE}/clusterqueues/{queue}")
    (group,) = found["spec"]["resourceGroups"]
    return {row["name"]: row["nominalQuota"] for row in group["flavors"][0]["resources"]}


def set_quota(cluster: Cluster, queue: str, resource: str, value: str) -> None:
    """As `kubectl edit` would."""
    path = f"{KUEUE}/clusterqueues/{queue}"
    groups = cluster.api.get(path)["spec"]["resourceGroups"]
    for row in groups[0]["flavors"][0]["resources"]:
        if row["name"] == resource:
            row["nominalQuota"] = value
    cluster.api.patch(path, {"spec": {"resourceGroups": groups}}, fieldManager="kubectl-edit")


def test_a_fleet_is_made_changed_mended_and_removed(cluster: Cluster, project: Project) -> None:
    project.begin(cluster.cluster.kubeconfig, "fleet-life").fleet("life")
    said = project.up("life.yml")
    assert "6 created" in said.out or "7 created" in said.out
    queue = project.queue("life")
    assert (queue.namespace, queue.gang, queue.fabric, queue.pods) == (
        "fleet-life",
        "kueue",
        "rdma-shared",
        4,
    )
    assert queue.local_queue is not None
    assert quota(cluster, queue.local_queue)["nvidia.com/gpu"] == "32"

    again = project.orch("preview", "life.yml", "--exit-code")
    assert (again.code, "no changes" in again.out) == (0, True), again.out + again.err

    project.fleet("life", nodes="0..2")
    changed = project.orch("preview", "life.yml")
    assert "in place on 1 resource" in changed.out
    project.up("life.yml")
    assert quota(cluster, queue.local_queue)["nvidia.com/gpu"] == "16"

    set_quota(cluster, queue.local_queue, "nvidia.com/gpu", "3")
    drift = project.orch("drift", "life.yml")
    assert drift.code == 10
    assert "nominalQuota: registered 16, found 3" in drift.out
    assert "1 to change" in project.orch("preview", "life.yml").out
    project.up("life.yml")
    assert quota(cluster, queue.local_queue)["nvidia.com/gpu"] == "16"

    down = project.orch("down", "life", "--yes")
    assert down.code == 0, down.out + down.err
    assert ours(cluster, "life") == []
    assert cluster.api.find("/api/v1/namespaces/fleet-life") is None


def test_a_given_namespace_stays_as_it_was(cluster: Cluster, project: Project) -> None:
    space = cluster.namespace("fleet-given")
    project.begin(cluster.cluster.kubeconfig, space).fleet("given")
    before = cluster.api.get(f"/api/v1/namespaces/{space}")["metadata"]
    project.up("given.yml")
    assert project.orch("down", "given", "--yes").code == 0
    after = cluster.api.get(f"/api/v1/namespaces/{space}")["metadata"]
    assert (after["uid"], after["labels"]) == (before["uid"], before["labels"])
    assert ours(cluster, "given") == []


def test_two_fleets_share_a_namespace(cluster: Cluster, project: Project) -> None:
    project.begin(cluster.cluster.kubeconfig, "fleet-pair")
    project.fleet("one")
    project.fleet("two")
    project.up("one.yml")
    project.up("two.yml")
    for name in ("one", "two"):
        assert "no changes" in project.orch("preview", f"{name}.yml").out
    first = project.orch("down", "one", "--yes")
    assert first.code == 0, first.out + first.err
    assert "namespace fleet-pair is left" in first.out + first.err
    assert ours(cluster, "one") == []
    assert "no changes" in project.orch("preview", "two.yml").out
    assert len(ours(cluster, "two")) == 5
    assert project.orch("down", "two", "--yes").code == 0
    assert ours(cluster, "two") == []


def test_without_kueue_nothing_cluster_wide_is_made(cluster: Cluster, project: Project) -> None:
    space = cluster.namespace("fleet-plain")
    before = names(cluster, f"{KUEUE}/clusterqueues")
    for gang, expected in (("none", "job"), ("podgroup", "podgroup")):
        project.begin(cluster.cluster.kubeconfig, space, gang=gang).fleet("plain")
        project.up("plain.yml")
        assert (project.queue("plain").gang, project.queue("plain").local_queue) == (expected, None)
        assert names(cluster, f"{KUEUE}/clusterqueues") == before
    assert project.orch("down", "plain", "--yes").code == 0


class Double:
    """A cluster like another one in all but who it is: what it is asked, the other one answers."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client = KubernetesClient.open(str(kubeconfig))

    def __call__(self, call: Call) -> Answer:
        if call.path == "/api/v1/namespaces/kube-system":
            return Answer({"metadata": {"name": "kube-system", "uid": "another"}})
        try:
            document = call.document if call.body else None
            kind = call.headers.get("content-type", "application/json")
            return Answer(self._client._document(call.method, call.path, call.words, document, kind))
        except ApiRefusal as error:
            return status(error.status, error.reason, error.summary)


def test_a_fleet_stays_with_its_cluster_whatever_the_kubeconfig_leads_to(
    cluster: Cluster, project: Project, tmp_path: Path
) -> None:
    file = tmp_path / "kubeconfig"
    real = cluster.cluster.kubeconfig.read_text("utf-8")
    file.write_text(real)
    context = yaml.safe_load(real)["current-context"]
    project.begin(file, "fleet-bound", contexts=[context]).fleet("bound")
    project.up("bound.yml")
    made = ours(cluster, "bound")
    assert len(made) == 5

    def refused(code: int, *words: str) -> str:
        said = project.orch(*words)
        assert said.code == code, said.out + said.err
        assert "as registered" not in said.out
        assert "no changes" not in said.out
        return said.out + said.err

    @contextmanager
    def elsewhere() -> Iterator[None]:
        with kube_server(tmp_path) as server:
            server.answer = Double(cluster.cluster.kubeconfig)
            other = yaml.safe_load(server.kubeconfig("other").read_text())
            other["contexts"][0]["name"] = other["current-context"] = context
            file.write_text(yaml.safe_dump(other))
            yield

    with elsewhere():
        for words in (("preview", "bound.yml"), ("up", "bound.yml", "--yes"), ("drift", "bound.yml")):
            assert "ORCH459" in refused(9, *words)
        assert "ORCH459" in refused(9, "down", "bound", "--yes")
    for words in (("preview", "bound.yml"), ("drift", "bound.yml"), ("down", "bound", "--yes")):
        assert "refuses connections" in refused(7, *words)
    assert ours(cluster, "bound") == made

    file.write_text(real)
    again = project.orch("preview", "bound.yml")
    assert "no changes" in again.out, again.out + again.err
    with elsewhere():
        gone = project.orch("down", "bound", "--yes", "--force")
    assert gone.code == 0, gone.out + gone.err
    assert ours(cluster, "bound") == made


def test_facts_of_the_cluster_are_as_it_is(cluster: Cluster) -> None:
    space = cluster.namespace("fleet-facts")
    client = KubernetesClient.open(str(cluster.cluster.kubeconfig))
    facts = gather_facts(client, space)
    client.close()
    assert facts.server.startswith("v1.")
    assert facts.pod_groups is True
    assert facts.version_of("kueue.x-k8s.io", "clusterqueues") == "v1beta2"
    assert facts.nodes is not None
    assert {int(node.allocatable["nvidia.com/gpu"]) for node in facts.nodes} == {8}
    assert facts.denied == frozenset()
    assert facts.unread == ()
    assert facts.namespace is not None
    assert facts.namespace.exists


# As a user with the rights of the reference page


def grant(cluster: Cluster, folder: Path, space: str, drop: dict[str, str] | None = None) -> Path:
    """The kubeconfig of the service account of examples/kubernetes/rbac.yml in a namespace of its own.

    `drop`: a verb that is left out, by resource.
    """
    for document in yaml.safe_load_all(RBAC.read_text("utf-8")):
        each = _in_namespace(copy.deepcopy(document), space)
        for rule in each.get("rules", ()):
            for resource, verb in (drop or {}).items():
                if resource in rule["resources"]:
                    rule["resources"] = [word for word in rule["resources"] if word != resource]
                    others = [word for word in rule["verbs"] if word != verb]
                    left = [{**rule, "resources": [resource], "verbs": others}] if others else []
                    each["rules"] = [*each["rules"], *left]
        each["rules"] = [rule for rule in each.get("rules", ()) if rule["resources"]]
        if each["kind"] == "ServiceAccount":
            cluster.api.create(
                f"/api/v1/namespaces/{space}/serviceaccounts", document | {"metadata": each["metadata"]}
            )
            continue
        within = f"/namespaces/{space}" if each["metadata"].get("namespace") else ""
        path = f"/apis/rbac.authorization.k8s.io/v1{within}/{RBAC_PATHS[each['kind']]}"
        if each["kind"].endswith("Binding"):
            del each["rules"]
        cluster.api.create(path, each)
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 7200},
    }
    answer = cluster.api.create(f"/api/v1/namespaces/{space}/serviceaccounts/orch/token", request)
    admin = yaml.safe_load(cluster.cluster.kubeconfig.read_text("utf-8"))
    admin["users"] = [{"name": admin["users"][0]["name"], "user": {"token": answer["status"]["token"]}}]
    file = folder / f"{space}.kubeconfig"
    file.write_text(yaml.safe_dump(admin))
    return file


def _in_namespace(document: dict[str, Any], space: str) -> dict[str, Any]:
    """A document of the example in another namespace; what is cluster-wide gets a name of its own."""
    meta = document["metadata"]
    if "namespace" in meta:
        meta["namespace"] = space
    else:
        meta["name"] = f"{meta['name']}-{space}"
    for subject in document.get("subjects", ()):
        subject["namespace"] = space
    if document.get("roleRef", {}).get("kind") == "ClusterRole":
        document["roleRef"]["name"] = f"{document['roleRef']['name']}-{space}"
    return document


def test_the_rights_of_the_reference_page_are_enough(cluster: Cluster, project: Project) -> None:
    space = cluster.namespace("fleet-least")
    kubeconfig = grant(cluster, project.path, space)
    project.begin(kubeconfig, space).fleet("least")
    said = project.up("least.yml")
    assert "not checked" not in said.out + said.err
    again = project.orch("preview", "least.yml")
    assert "no changes" in again.out, again.out + again.err
    assert not [word for word in ("ORCH453", "ORCH456") if word in again.out + again.err]
    queue = project.queue("least")
    assert (queue.gang, queue.fabric) == ("kueue", "rdma-shared")
    project.fleet("least", nodes="0..2")
    project.up("least.yml")
    assert queue.local_queue is not None
    set_quota(cluster, queue.local_queue, "nvidia.com/gpu", "3")
    project.up("least.yml")
    assert quota(cluster, queue.local_queue)["nvidia.com/gpu"] == "16"
    down = project.orch("down", "least", "--yes")
    assert down.code == 0, down.out + down.err
    assert ours(cluster, "least") == []


def test_networks_that_pods_may_join_are_read_with_these_rights(cluster: Cluster, project: Project) -> None:
    group, plural = "k8s.cni.cncf.io", "network-attachment-definitions"
    kind = "NetworkAttachmentDefinition"
    install(cluster.api, [definition(group, "v1", kind, plural, ANY, namespaced=True)])
    try:
        space = cluster.namespace("fleet-networks")
        metadata = {"name": "ib-net", "annotations": {"k8s.v1.cni.cncf.io/resourceName": "rdma/ib"}}
        network = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "spec": {"config": "{}"}}
        cluster.api.create(f"/apis/{group}/v1/namespaces/{space}/{plural}", network)
        kubeconfig = grant(cluster, project.path, space)
        project.begin(kubeconfig, space).fleet("joined")
        said = project.up("joined.yml")
        assert "ORCH456" not in said.out + said.err
        assert project.queue("joined").networks == ("ib-net",)
        project.begin(kubeconfig, space, rdma_networks=["ib-nett"])
        said = project.orch("preview", "joined.yml")
        assert f"the namespace {space} has no NetworkAttachmentDefinition ib-nett" in said.out + said.err
        project.begin(kubeconfig, space)
        down = project.orch("down", "joined", "--yes")
        assert down.code == 0, down.out + down.err
    finally:
        cluster.api.delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{group}")


def test_a_run_needs_no_more_rights_either(cluster: Cluster, project: Project) -> None:
    space = cluster.namespace("fleet-run")
    # As if it had been pulled: the cluster's nodes are this machine's Docker.
    image = "registry.example/orch/job:rights"
    docker("tag", resolve("orch/job"), image)
    project.begin(grant(cluster, project.path, space), space).fleet("least")
    project.up("least.yml")
    task = {
        "type": "task",
        "name": "hello",
        "nodes": 2,
        "fleets": ["least"],
        "image": image,
        "shell": "sh",
        "commands": ['echo "rank $NODE_RANK of $DSTACK_NODES_NUM"'],
    }
    project.write("hello.yml", json.dumps(task))
    said = project.orch("run", "hello.yml", "--yes")
    assert said.code == 0, said.out + said.err
    assert "rank 0 of 2" in said.out
    assert "rank 1 of 2" in said.out
    jobs = f"/apis/batch/v1/namespaces/{space}/jobs"
    cluster.until(lambda: not cluster.pods(space) and not cluster.api.items(jobs))
    docker("image", "rm", image)
    down = project.orch("down", "least", "--yes")
    assert down.code == 0, down.out + down.err


@pytest.mark.parametrize(
    ("resource", "verb", "expected"),
    [
        ("jobs", "create", "you may not create jobs.batch in the namespace"),
        ("pods/exec", "create", "you may not create pods/exec in the namespace"),
        ("pods/portforward", "create", "you may not create pods/portforward in the namespace"),
        ("clusterqueues", "patch", "you may not patch clusterqueues.kueue.x-k8s.io"),
        ("localqueues", "create", "you may not create localqueues.kueue.x-k8s.io"),
        ("nodes", "list", "you may not list nodes"),
    ],
)
def test_a_verb_that_is_refused_is_told(
    cluster: Cluster, project: Project, resource: str, verb: str, expected: str
) -> None:
    space = cluster.namespace(f"fleet-no-{verb}-{resource.replace('/', '-')}")
    kubeconfig = grant(cluster, project.path, space, {resource: verb})
    project.begin(kubeconfig, space).fleet("refused")
    said = project.orch("preview", "refused.yml")
    assert expected in said.out + said.err
    assert "Traceback" not in said.err


def test_a_queue_of_the_cluster_serves_who_may_make_none(cluster: Cluster, project: Project) -> None:
    space = cluster.namespace("fleet-shared")
    shared = {"name": "shared-lab"}
    api = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    flavor = {**api, "kind": "ResourceFlavor", "metadata": shared, "spec": {}}
    rows = {"cpu": "640", "memory": "6000Gi", "nvidia.com/gpu": "64", "rdma/ib": "64"}
    resources = [{"name": key, "nominalQuota": value} for key, value in rows.items()]
    groups = [{"coveredResources": list(rows), "flavors": [{"name": "shared-lab", "resources": resources}]}]
    spec = {"namespaceSelector": {}, "resourceGroups": groups}
    queue = {**api, "kind": "ClusterQueue", "metadata": shared, "spec": spec}
    local = {
        **api,
        "kind": "LocalQueue",
        "metadata": {"name": "team"},
        "spec": {"clusterQueue": "shared-lab"},
    }
    cluster.api.create(f"{KUEUE}/resourceflavors", flavor)
    cluster.api.create(f"{KUEUE}/clusterqueues", queue)
    cluster.api.create(f"{KUEUE}/namespaces/{space}/localqueues", local)
    kubeconfig = grant(cluster, project.path, space, {"clusterqueues": "create"})
    project.begin(kubeconfig, space, queue="team").fleet("team")
    project.up("team.yml")
    assert project.queue("team").local_queue == "team"
    assert [
        each for each in ours(cluster, "team") if each not in (project.queue("team").service_account,)
    ] == []
    assert project.orch("down", "team", "--yes").code == 0
    assert "team" in names(cluster, f"{KUEUE}/namespaces/{space}/localqueues")


def empty_spaces(project: Project, name: str) -> list[dict[str, Any]]:
    """What `orch gc` finds of a namespace. Other tests' projects have the same name, and leave some."""
    return [each for each in project.orch("gc", "--json", "--yes").json["unknown"] if each["id"] == name]


def test_a_volume_and_its_fleet_come_up_in_a_namespace_that_is_not_there(
    cluster: Cluster, project: Project
) -> None:
    project.begin(cluster.cluster.kubeconfig, "new-space")
    (project.path / "both").mkdir()
    text = FLEET.replace("NAME", "lodger")
    project.write("both/fleet.yml", text)
    volume = "type: volume\nname: shelf\nbackend: kubernetes\nsize: 1GB\nstorage_class_name: plain\n"
    project.write("both/volume.yml", volume)
    plain = {"metadata": {"name": "plain"}, "provisioner": "example.com/none"}
    cluster.api.create("/apis/storage.k8s.io/v1/storageclasses", plain)
    path = "/api/v1/namespaces/new-space"
    for _ in range(2):
        said = project.orch("up", "both", "--yes")
        assert said.code == 0, said.out + said.err
    again = project.orch("preview", "both", "--exit-code")
    assert again.code == 0, again.out + again.err
    labels = cluster.api.get(path)["metadata"]["labels"]
    assert labels["orch.dev/mark"].startswith("volume.shelf-")
    # The fleet goes, and the namespace is the volume's; the volume goes, and the namespace with it.
    assert project.orch("down", "lodger", "--yes").code == 0
    assert "deletionTimestamp" not in cluster.api.get(path)["metadata"]
    said = project.orch("volume", "delete", "shelf", "--confirm", "shelf")
    assert said.code == 0, said.out + said.err
    assert cluster.api.find(path) is None, said.out + said.err

    # The other way round it stays, and `orch gc` finds it.
    project.up("both/fleet.yml")
    project.up("both/volume.yml")
    left = project.orch("down", "lodger", "--yes")
    assert "the namespace new-space is left" in left.err + left.out
    assert empty_spaces(project, "new-space") == []
    assert project.orch("volume", "delete", "shelf", "--confirm", "shelf").code == 0
    assert "deletionTimestamp" not in cluster.api.get(path)["metadata"]
    (found,) = empty_spaces(project, "new-space")
    assert (found["kind"], found["mark"].startswith("lab/lodger/")) == ("namespace", True)
    done = project.orch("gc", "--stack", found["mark"], "--yes")
    assert (done.code, "Namespace new-space" in done.out) == (0, True), done.out + done.err
    assert cluster.api.find(path) is None
