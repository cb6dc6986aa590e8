"""Gangs on a real API server: each form of gang whole or not at all, and why one waits or failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from kit.kubernetes.gangcases import CASES, answers, queue, request
from kit.kubernetes.kubelab import Cluster

from orch.components.kubernetes.account.rights import OF_KUEUE_RUNS, OF_POD_GROUPS, OF_RUNS
from orch.rehearsal.kubernetes.api import Doc
from orch.rehearsal.kubernetes.controllers.schemas import TEXT, definition, fields, install, one_of
from orch.runner.kubernetes.client import KubernetesClient
from orch.runner.kubernetes.errors import Forbidden
from orch.runner.kubernetes.gangs.gangs import Gangs
from orch.runner.kubernetes.gangs.look import GangLook, due_back
from orch.runner.kubernetes.gangs.names import rank_name
from orch.runner.kubernetes.gangs.request import GangRequest, PodResources, RegistryLogin

pytestmark = pytest.mark.kubernetes

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
STAYS = "trap 'exit 0' TERM; while :; do sleep 0.2; done"


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[KubernetesClient]:
    made = KubernetesClient.open(str(cluster.cluster.kubeconfig))
    yield made
    made.close()


@pytest.fixture
def ask(cluster: Cluster, client: KubernetesClient) -> Iterator[Callable[..., Asked]]:
    """Ask for a gang in a namespace; all of them are taken back at the end."""
    made: list[Asked] = []

    def one(namespace: str, *, form: str = "job", **words: Any) -> Asked:
        plain: dict[str, Any] = {
            "namespace": namespace,
            "gang": form,
            "local_queue": "main" if form == "kueue" else None,
            "requests": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "8"},
            "priority_classes": {"high": 100, "low": 1},
            **words.pop("queue", {}),
        }
        wanted = request(
            **{
                "queue": queue(**plain),
                "image": "orch/base:bookworm",
                "script": STAYS,
                "stops_within_s": 1,
                **words,
            }
        )
        made.append(Asked(cluster, Gangs(client, wanted.queue, pause=lambda _: time.sleep(0.1)), wanted))
        return made[-1]

    yield one
    for each in made:
        each.gangs.take_back(each.request.name)


class Asked:
    """One gang that a test asks for."""

    def __init__(self, cluster: Cluster, gangs: Gangs, wanted: GangRequest) -> None:
        self.cluster, self.gangs, self.request = cluster, gangs, wanted

    @property
    def name(self) -> str:
        return self.request.name

    def look(self) -> GangLook:
        return self.gangs.look(self.name)

    def until(self, state: str, reason: str = "") -> GangLook:
        """The look at which it is in this state, and says this."""

        def seen() -> GangLook | None:
            found = self.look()
            return found if found.state == state and reason in "\n".join(found.reasons) else None

        try:
            return self.cluster.until(seen)
        except AssertionError:
            raise AssertionError(f"not {state} {reason!r}: {self.look()}") from None

    def up(self) -> GangLook:
        assert self.gangs.apply(self.request)
        return self.until("running")


Ask = Callable[..., Asked]


def add_queue(cluster: Cluster, space: str, name: str) -> None:
    """A queue of Kueue for all 64 GPUs, which other gangs leave for more important ones."""
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    quotas = {"nvidia.com/gpu": 64, "cpu": 4096, "memory": "64Ti"}
    rows = [{"name": key, "nominalQuota": amount} for key, amount in quotas.items()]
    group = {"coveredResources": list(quotas), "flavors": [{"name": name, "resources": rows}]}
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    levels = [{"nodeLabel": "topology.kubernetes.io/block"}, {"nodeLabel": "kubernetes.io/hostname"}]
    documents: dict[str, Doc] = {
        "topologies": {"kind": "Topology", "spec": {"levels": levels}},
        "resourceflavors": {"kind": "ResourceFlavor", "spec": {"nodeLabels": labels, "topologyName": name}},
        "clusterqueues": {
            "kind": "ClusterQueue",
            "spec": {
                "namespaceSelector": {},
                "resourceGroups": [group],
                "preemption": {"withinClusterQueue": "LowerPriority"},
            },
        },
    }
    for plural, document in documents.items():
        cluster.api.create(f"{KUEUE}/{plural}", {**head, "metadata": {"name": name}, **document})
    for word, value in (("high", 100), ("low", 1)):
        if cluster.api.find(f"{KUEUE}/workloadpriorityclasses/{word}") is None:
            cluster.api.create(
                f"{KUEUE}/workloadpriorityclasses",
                {**head, "kind": "WorkloadPriorityClass", "metadata": {"name": word}, "value": value},
            )
    cluster.api.create(
        f"{KUEUE}/namespaces/{space}/localqueues",
        {**head, "kind": "LocalQueue", "metadata": {"name": "main"}, "spec": {"clusterQueue": name}},
    )


PLURALS = {
    "Job": "jobs",
    "Service": "services",
    "Secret": "secrets",
    "PodGroup": "podgroups",
    "ComputeDomain": "computedomains",
}


def test_manifests_that_are_written_down_are_taken_by_the_api_server(
    cluster: Cluster, client: KubernetesClient
) -> None:
    cluster.namespace("ml")
    channel = fields(
        resourceClaimTemplate=fields(name=TEXT), allocationMode=one_of("Single", "All")
    )  # as NVIDIA's driver defines it (kubernetes.md 3)
    spec = fields(numNodes={"type": "integer"}, channel=channel)
    schema = fields(apiVersion=TEXT, kind=TEXT, metadata={"type": "object"}, spec=spec)
    domain = definition(
        "resource.nvidia.com", "v1beta1", "ComputeDomain", "computedomains", schema, namespaced=True
    )
    install(cluster.api, [domain])
    for name in CASES:
        for document in answers(name):
            version = document["apiVersion"]
            root = "/api/v1" if version == "v1" else f"/apis/{version}"
            path = f"{root}/namespaces/ml/{PLURALS[document['kind']]}"
            taken = client.create(path, document, dryRun="All")
            again = client.apply(f"{path}/{document['metadata']['name']}", document, dryRun="All")
            assert taken["spec" if "spec" in document else "data"]
            for key in document.get("spec", {}):
                assert key in again["spec"], (name, key)
            if document["kind"] == "Job":
                pod, made = document["spec"]["template"]["spec"], taken["spec"]["template"]["spec"]
                assert [key for key in pod if key not in made] in ([], ["tolerations"])
                assert (pod.get("schedulingGroup") or None) == made.get("schedulingGroup")


@pytest.mark.parametrize("pods", [2, 4])
def test_pods_of_a_gang_find_each_other_by_name(cluster: Cluster, ask: Ask, pods: int) -> None:
    space = cluster.namespace(f"gang-up-{pods}")
    plain = ask(space, pods=pods)
    names = " ".join(rank_name(plain.name, index) for index in range(pods))
    script = f"for each in {names}; do until getent hosts $each; do sleep 0.1; done; done; echo all; {STAYS}"
    gang = ask(space, pods=pods, script=script)
    found = gang.up()
    assert [pod.index for pod in found.pods] == list(range(pods))
    assert len({pod.node for pod in found.pods}) == pods
    pod = cluster.pods(space, gang.name)[0]
    text = cluster.until(lambda: text if "all" in (text := cluster.log(pod)) else "")
    assert [line.split()[0] for line in text.splitlines()[:pods]] == [each.ip for each in found.pods]


def test_a_gang_that_is_asked_for_twice_or_by_two_is_one(cluster: Cluster, ask: Ask) -> None:
    gang = ask(cluster.namespace("gang-twice"))
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(gang.gangs.apply(gang.request))) for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert results == [True] * 4
    first = gang.until("running")
    assert gang.gangs.apply(gang.request)
    second = gang.look()
    assert (second.uid, [pod.uid for pod in second.pods]) == (first.uid, [pod.uid for pod in first.pods])
    listed = gang.gangs.listed(gang.request.project)
    assert [each.name for each in listed] == [gang.name]


class Killed(BaseException):
    """The process ends here."""


class KilledAfter:
    """A client whose process is killed before its call number `calls`."""

    def __init__(self, client: KubernetesClient, calls: int) -> None:
        self._client, self._calls = client, calls

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, **more: Any) -> Any:
            if self._calls == 0:
                raise Killed
            self._calls -= 1
            return getattr(self._client, name)(*words, **more)

        return call


@pytest.mark.parametrize("form", ["job", "kueue", "podgroup"])
def test_a_gang_that_is_cut_short_holds_no_node_and_is_gone_on_with(
    cluster: Cluster, client: KubernetesClient, ask: Ask, form: str
) -> None:
    space = cluster.namespace(f"gang-cut-{form}")
    if form == "kueue":
        add_queue(cluster, space, space)
    gang = ask(space, form=form)
    calls = 0
    while True:
        cut = Gangs(cast(KubernetesClient, KilledAfter(client, calls)), gang.request.queue)
        try:
            cut.apply(gang.request)
            break
        except Killed:
            calls += 1
        found = gang.look()
        assert found.state in ("gone", "waiting")
        assert found.pods == ()
    assert calls >= 3
    first = gang.until("running")
    gang.gangs.delete(gang.name, uid=first.uid)
    assert gang.gangs.take_back(gang.name) == ()
    kinds = ("services", "secrets")
    cluster.until(lambda: not any(cluster.api.items(f"/api/v1/namespaces/{space}/{each}") for each in kinds))


def test_an_image_that_is_missing_is_the_reason(cluster: Cluster, ask: Ask) -> None:
    gang = ask(cluster.namespace("gang-image"), image="localhost:1/none:1")
    gang.gangs.apply(gang.request)
    found = gang.until("starting", "image localhost:1/none:1 cannot be pulled: ")
    assert found.partial_since is None  # all pods have nodes: nobody waits for this gang's others


def test_a_quota_that_is_used_up_is_the_reason_and_the_gang_is_due_back(cluster: Cluster, ask: Ask) -> None:
    space = cluster.namespace("gang-quota")
    quota = {"hard": {"requests.nvidia.com/gpu": "8"}}
    cluster.api.create(
        f"/api/v1/namespaces/{space}/resourcequotas", {"metadata": {"name": "gpus"}, "spec": quota}
    )
    path = f"/api/v1/namespaces/{space}/resourcequotas/gpus"
    cluster.until(lambda: cluster.api.get(path).get("status", {}).get("hard"))
    gang = ask(space)
    gang.gangs.apply(gang.request)
    found = gang.until("starting", "its pods cannot be created: exceeded quota: gpus")
    assert "1 of 2 pods run" in gang.until("starting", "1 of 2 pods run").reasons
    assert found.partial_since is not None
    assert due_back(found, datetime.now(timezone.utc), 0)
    assert gang.gangs.take_back(gang.name, uid=found.uid) == ()
    assert gang.look().state == "gone"


def test_pod_security_that_refuses_is_the_reason(cluster: Cluster, ask: Ask) -> None:
    space = cluster.namespace("gang-secure")
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    cluster.api.patch(f"/api/v1/namespaces/{space}", {"metadata": {"labels": labels}})
    offered = {
        "fabric": "rdma-shared",
        "fabric_resource": "rdma/ib",
        "requests": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "8", "rdma/ib": "1"},
    }
    gang = ask(space, queue=offered, needs_fabric=True)
    gang.gangs.apply(gang.request)
    found = gang.until("waiting", "violates PodSecurity")
    assert "IPC_LOCK" in "\n".join(found.reasons)


def test_a_node_that_is_full_is_the_reason_by_pod(cluster: Cluster, ask: Ask) -> None:
    space = cluster.namespace("gang-full")
    gang = ask(space, pods=2, instance_types=("p5.48xlarge",))
    gang.gangs.apply(gang.request)
    found = gang.until("waiting", "0/8 nodes are available")
    assert found.reasons[0].startswith("pods 0-1: 0/8 nodes are available: ")
    assert "preemption" not in found.reasons[0]


def test_a_process_that_fails_ends_the_gang_and_says_which(cluster: Cluster, ask: Ask) -> None:
    space = cluster.namespace("gang-exit")
    script = f'if [ "$JOB_COMPLETION_INDEX" = 1 ]; then sleep 1; exit 7; fi; {STAYS}'
    gang = ask(space, script=script, stops_within_s=2)
    gang.gangs.apply(gang.request)
    found = gang.until("failed")
    assert found.cause == "application"
    assert found.reasons == ("pod 1: its first process ended with exit code 7",)
    cluster.until(lambda: cluster.ended(space, gang.name) == "Failed")
    assert gang.look().reasons == found.reasons


def test_a_process_without_memory_is_told(cluster: Cluster, ask: Ask) -> None:
    space = cluster.namespace("gang-memory")
    gang = ask(space, pods=1, script="tail /dev/zero", resources=PodResources(memory_limit_mib=64))
    gang.gangs.apply(gang.request)
    found = gang.until("failed")
    assert found.cause == "application"
    assert "[OOMKilled]" in found.reasons[0]


def test_an_evicted_pod_is_the_clusters_doing(cluster: Cluster, ask: Ask) -> None:
    space = cluster.namespace("gang-evicted")
    gang = ask(space)
    found = gang.up()
    cluster.cluster.ask("evict", namespace=space, pod=found.pods[1].name, message="low on memory")
    failed = gang.until("failed")
    assert failed.cause == "infrastructure"
    assert failed.reasons[0].startswith(f"pod 1: its node evicted it ({found.pods[1].node})")
    assert "low on memory" in failed.reasons[0]


@pytest.mark.parametrize("code", [0, 143])
def test_a_pod_that_somebody_deletes_ends_the_gang_however_its_process_took_it(
    cluster: Cluster, ask: Ask, code: int
) -> None:
    space = cluster.namespace(f"gang-deleted-{code}")
    gang = ask(space, script=STAYS.replace("exit 0", f"exit {code}"))
    found = gang.up()
    cluster.api.delete(f"/api/v1/namespaces/{space}/pods/{found.pods[1].name}")
    failed = gang.until("failed")
    assert failed.cause == "infrastructure"


def test_a_lost_node_is_told_before_it_comes_back(cluster: Cluster, ask: Ask) -> None:
    space = cluster.namespace("gang-lost")
    gang = ask(space, lost_after_s=1)
    found = gang.up()
    node = found.pods[0].node
    cluster.cluster.ask("lose", node=node)
    try:
        failed = gang.until("failed", "[DeletionByTaintManager]")
        assert failed.cause == "infrastructure"
        assert failed.reasons[0].startswith(f"pod 0: its node is lost, or no longer takes it ({node})")
        gang.gangs.delete(gang.name)
        cluster.until(lambda: [pod.index for pod in gang.look().pods] == [0])
        left = gang.gangs.take_back(gang.name, within_s=0)
        assert [pod.node for pod in left] == [node]  # which says nothing of it
        assert gang.look().state == "gone"
    finally:
        cluster.cluster.ask("find_again", node=node)
    assert gang.gangs.take_back(gang.name) == ()


def test_of_two_gangs_in_kueues_queue_one_runs_whole_and_the_other_waits_whole(
    cluster: Cluster, ask: Ask
) -> None:
    space = cluster.namespace("gang-kueue")
    add_queue(cluster, space, space)
    near = {"topology_key": "topology.kubernetes.io/block"}
    first, second = (ask(space, form="kueue", run=run, pods=6, queue=near) for run in ("a", "b"))
    first.up()
    second.gangs.apply(second.request)
    found = second.until("waiting", "Kueue: insufficient unused quota for nvidia.com/gpu")
    assert found.reasons == (
        f"Kueue: insufficient unused quota for nvidia.com/gpu in flavor {space}, 32 more needed",
    )
    assert found.pods == ()
    assert first.gangs.take_back(first.name) == ()
    assert len(second.until("running").pods) == 6


def test_a_gang_of_more_importance_takes_the_place_of_another_which_runs_again_later(
    cluster: Cluster, ask: Ask
) -> None:
    space = cluster.namespace("gang-priority")
    add_queue(cluster, space, space)
    low, high = (
        ask(space, form="kueue", run=word, priority=value, pods=6)
        for word, value in (("low", 1), ("high", 100))
    )
    before = low.up()
    high.gangs.apply(high.request)
    high.until("running")
    found = low.until("waiting", "[Preempted]")
    assert found.reasons[0].startswith("Kueue: evicted, and waits again: ")
    assert high.gangs.take_back(high.name) == ()
    after = low.until("running")
    assert after.uid == before.uid
    assert not {pod.uid for pod in before.pods} & {pod.uid for pod in after.pods}


def test_a_gang_without_a_queue_of_its_name_says_so(cluster: Cluster, ask: Ask) -> None:
    space = cluster.namespace("gang-noqueue")
    gang = ask(space, form="kueue")
    gang.gangs.apply(gang.request)
    gang.until("waiting", "Kueue: LocalQueue main doesn't exist")


def test_of_two_gangs_of_the_scheduler_one_runs_whole_and_the_other_has_no_node(
    cluster: Cluster, ask: Ask
) -> None:
    space = cluster.namespace("gang-group")
    first, second = (ask(space, form="podgroup", run=run, pods=6) for run in ("a", "b"))
    first.up()
    second.gangs.apply(second.request)
    found = second.until("waiting", "the gang has no place yet")
    assert [pod for pod in found.pods if pod.node is not None] == []
    assert first.gangs.take_back(first.name) == ()
    assert len(second.until("running").pods) == 6


def test_of_two_gangs_without_a_scheduler_of_gangs_a_partial_one_is_taken_back_whole(
    cluster: Cluster, ask: Ask
) -> None:
    space = cluster.namespace("gang-plain")
    both = [ask(space, run=run, pods=6) for run in ("a", "b")]
    for each in both:
        each.gangs.apply(each.request)
    taken_back: set[str] = set()

    def one_runs() -> Asked | None:
        """What the drivers of the two do; the one that runs, once the other one has been taken back."""
        running = None
        for each in both:
            found = each.look()
            if found.state == "running":
                running = each
            if due_back(found, datetime.now(timezone.utc), 2.0):
                assert each.gangs.take_back(each.name, uid=found.uid) == ()
                taken_back.add(each.name)
            elif found.state == "gone" and running is None:
                each.gangs.apply(each.request)
        return running if running is not None and taken_back else None

    running = cluster.until(one_runs)
    other = next(each for each in both if each is not running)
    assert running.look().state == "running"
    assert other.name in taken_back
    assert other.look().state == "gone"
    assert cluster.pods(space, other.name) == []
    assert running.gangs.take_back(running.name) == ()
    assert other.gangs.apply(other.request)
    assert len(other.until("running").pods) == 6


def permitted(cluster: Cluster, space: str, folder: Path) -> Path:
    """The kubeconfig of an account that may do in a namespace what runs do, and no more."""
    rules: list[Doc] = []
    for verb, name in (*OF_RUNS, *OF_KUEUE_RUNS, *OF_POD_GROUPS):
        resource, _, group = name.partition(".")
        rules.append({"apiGroups": [group], "resources": [resource], "verbs": [verb]})
    api, rbac = cluster.api, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space}"
    api.create(f"/api/v1/namespaces/{space}/serviceaccounts", {"metadata": {"name": "runs"}})
    api.create(f"{rbac}/roles", {"metadata": {"name": "runs"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "runs"}
    subject = {"kind": "ServiceAccount", "name": "runs", "namespace": space}
    api.create(
        f"{rbac}/rolebindings", {"metadata": {"name": "runs"}, "roleRef": reference, "subjects": [subject]}
    )
    token = api.create(f"/api/v1/namespaces/{space}/serviceaccounts/runs/token", {"spec": {}})["status"][
        "token"
    ]
    document = yaml.safe_load(cluster.cluster.kubeconfig.read_text("utf-8"))
    document["users"][0]["user"] = {"token": token}
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(document), "utf-8")
    return file


@pytest.mark.parametrize("form", ["kueue", "podgroup"])
def test_an_account_with_the_rights_of_runs_asks_looks_and_takes_back(
    cluster: Cluster, ask: Ask, tmp_path: Path, form: str
) -> None:
    space = cluster.namespace(f"gang-rights-{form}")
    if form == "kueue":
        add_queue(cluster, space, space)
    gang = ask(space, form=form, registry=RegistryLogin("robot", "secret", "registry.example.com"))
    client = KubernetesClient.open(str(permitted(cluster, space, tmp_path)))
    try:
        gangs = Gangs(client, gang.request.queue, pause=lambda _: time.sleep(0.1))
        Asked(cluster, gangs, gang.request).up()
        assert [each.name for each in gangs.listed(gang.request.project)] == [gang.name]
        assert gangs.take_back(gang.name) == ()
        with pytest.raises(Forbidden, match="may not list secrets"):
            client.items(f"/api/v1/namespaces/{space}/secrets")
    finally:
        client.close()


def test_an_account_without_rights_is_told_what_it_lacks(cluster: Cluster, ask: Ask, tmp_path: Path) -> None:
    space = cluster.namespace("gang-no-rights")
    gang = ask(space)
    file = permitted(cluster, space, tmp_path)
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space}/roles/runs"
    cluster.api.patch(role, {"rules": [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]}]})
    client = KubernetesClient.open(str(file))
    try:
        with pytest.raises(Forbidden, match="may not create jobs"):
            Gangs(client, gang.request.queue).apply(gang.request)
    finally:
        client.close()
