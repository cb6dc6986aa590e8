"""What a gang becomes: golden manifests, names and labels, and what is refused.

`ORCHCTL_REWRITE_GOLDEN=1 pytest tests/runner/kubernetes` rewrites the manifests; review their diff.
The tests of tests/kubernetes have a real API server check each of them.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.kubernetes.gangcases import CASES, GOLDENS, answers, manifests, queue, request, written

from orch.catalog.errors import BadCatalogFile
from orch.runner.errors import BadTask
from orch.runner.kubernetes.gangs.fabric import fabric_pod, fabric_variables
from orch.runner.kubernetes.gangs.names import RELEASED, check_labels, gang_name, rank_name
from orch.runner.kubernetes.gangs.objects import gang, held, owned, release
from orch.runner.kubernetes.gangs.request import Claim, HostFolder, PodResources, RegistryLogin, asked

FABRICS = ("efa", "tcpx", "tcpxo", "gke-roce", "rdma-shared", "rdma-hostdev", "compute-domain")
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def container(documents: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return documents[0]["spec"]["template"]["spec"]["containers"][0]


def env_of(documents: tuple[dict[str, Any], ...]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(documents)["env"]}


@pytest.mark.parametrize("name", CASES)
def test_a_gang_is_as_written_down(name: str) -> None:
    assert manifests(name) == answers(name)


def test_every_answer_belongs_to_a_case_and_every_fabric_has_one() -> None:
    assert sorted(GOLDENS.records) == CASES
    assert set(FABRICS) <= set(CASES)


@pytest.mark.parametrize("name", FABRICS)
def test_a_fabric_that_is_missing_ends_a_job_instead_of_slowing_it(name: str) -> None:
    env = env_of(gang(written(name)))
    assert env.get("NCCL_NET", "") not in ("", "Socket") or env["NCCL_MNNVL_ENABLE"] == "1"
    assert "IPC_LOCK" in container(gang(written(name)))["securityContext"]["capabilities"]["add"]
    assert "privileged" not in container(gang(written(name)))["securityContext"]


def test_a_run_that_needs_a_fabric_is_refused_where_none_is_offered() -> None:
    with pytest.raises(BadTask, match="no node of fleet pool offers one"):
        gang(request(needs_fabric=True))
    for silent in (
        queue(fabric="rdma-shared", fabric_resource="rdma/ib"),
        queue(fabric="rdma-shared"),
        queue(fabric="efa"),
        queue(fabric="compute-domain", fabric_resource="vpc.amazonaws.com/efa"),
    ):
        with pytest.raises(BadTask, match="no device of their interconnect"):
            gang(request(queue=silent, needs_fabric=True))
    with pytest.raises(BadCatalogFile, match="'warp'"):
        gang(request(queue=queue(fabric="warp"), needs_fabric=True))


def test_jobs_have_the_variables_of_their_pods_and_not_those_of_machines() -> None:
    for name in FABRICS:
        wanted = written(name)
        assert fabric_variables(wanted.queue) == env_of(gang(wanted))
    assert fabric_variables(queue()) == {}
    assert fabric_variables(written("tcpxo").queue)["NCCL_FASTRAK_CTRL_DEV"] == "eth0"


def test_a_task_without_a_fabric_takes_none_away_from_others() -> None:
    offered = written("efa").queue
    plain = gang(request(queue=offered))
    assert set(container(plain)["resources"]["limits"]) == {"nvidia.com/gpu"}
    assert "NCCL_NET" not in env_of(plain)


def test_networks_of_gke_are_called_as_the_nodes_call_them_in_their_order() -> None:
    annotations = gang(written("gke-roce"))[0]["spec"]["template"]["metadata"]["annotations"]
    rows = json.loads(annotations["networking.gke.io/interfaces"])
    assert [row["network"] for row in rows] == [
        "default",
        "gpu-net-0",
        "gpu-net-1",
        "gpu-net-2",
        "gpu-net-10",
    ]
    assert [row["interfaceName"] for row in rows] == ["eth0", "eth2", "eth3", "eth4", "eth5"]
    named = fabric_pod("tcpxo").annotations["networking.gke.io/interfaces"]
    assert [row["network"] for row in json.loads(named)][1:] == [f"vpc{n}" for n in range(1, 9)]


def test_shared_rdma_is_one_slot_and_host_devices_are_counted() -> None:
    assert asked(written("rdma-shared"))["rdma/ib"] == "1"
    half = request(queue=written("rdma-hostdev").queue, needs_fabric=True, resources=PodResources(gpus=4))
    assert asked(half)["nvidia.com/hostdev"] == "4"


@pytest.mark.parametrize(
    ("networks", "gpus", "joined"),
    [
        (["a"] * 8, None, "a, a, a, a, a, a, a, a"),
        (["a"] * 8, 2, "a, a"),
        (["a"], None, "a"),
        (["a"], 4, "a"),
        (["a", "ops/b"], None, "a, ops/b"),
        (["a", "ops/b"], 4, "a"),
        (["a", "ops/b"], 1, "a"),
        (list("abcdefgh"), 4, "a, b, c, d"),
        ([], None, None),
    ],
)
def test_a_pod_joins_such_a_part_of_the_networks_as_it_has_of_the_devices(
    networks: list[str], gpus: int | None, joined: str | None
) -> None:
    offered = written("rdma-hostdev").queue.model_copy(update={"networks": tuple(networks)})
    made = gang(request(queue=offered, needs_fabric=True, resources=PodResources(gpus=gpus)))
    annotations = made[0]["spec"]["template"]["metadata"]["annotations"]
    assert annotations.get("k8s.v1.cni.cncf.io/networks") == joined


def test_a_pod_that_needs_no_fabric_joins_no_network() -> None:
    made = gang(request(queue=written("rdma-hostdev").queue))
    assert made[0]["spec"]["template"]["metadata"]["annotations"] == {}


def test_an_nvlink_domain_has_the_fabric_that_its_nodes_have_beside_it() -> None:
    made = gang(written("compute-domain"))
    env = env_of(made)
    assert env["NCCL_MNNVL_ENABLE"] == "1"
    assert env["NCCL_NET"] == "AWS Libfabric"
    pod = made[0]["spec"]["template"]["spec"]
    domain = next(each for each in made if each["kind"] == "ComputeDomain")
    assert domain["spec"]["numNodes"] == 4
    assert (
        pod["resourceClaims"][0]["resourceClaimTemplateName"]
        == (domain["spec"]["channel"]["resourceClaimTemplate"]["name"])
    )
    alone = queue(fabric="compute-domain", requests={"nvidia.com/gpu": "8"})
    assert "NCCL_NET" not in env_of(gang(request(queue=alone, needs_fabric=True)))


def test_parts_of_a_node_are_parts_of_all_it_has() -> None:
    part = asked(written("efa-part"))
    assert part == {
        "cpu": "95000m",
        "memory": f"{950 * 1024}Mi",
        "nvidia.com/gpu": "4",
        "vpc.amazonaws.com/efa": "16",
        "hugepages-2Mi": "2560Mi",
    }


def test_two_pods_of_a_gang_never_share_a_node() -> None:
    def anti(**words: Any) -> bool:
        spec = gang(request(**words))[0]["spec"]["template"]["spec"]
        return "podAntiAffinity" in spec.get("affinity", {})

    assert not anti()  # a node has no second eight GPUs
    assert not anti(resources=PodResources(gpus=5))
    assert anti(resources=PodResources(gpus=4))
    assert not anti(resources=PodResources(gpus=4), pods=1)
    assert not anti(resources=PodResources(gpus=4, memory_mib=300 * 1024))


def test_kubernetes_expands_nothing_of_a_script_or_a_variable() -> None:
    made = container(gang(written("mounts")))

    def expanded(text: str) -> str:  # k8s.io/kubernetes third_party/forked/golang/expansion
        return re.sub(r"\$\$|\$\((\w+)\)", lambda m: "$" if m[0] == "$$" else "EXPANDED", text)

    assert expanded(made["command"][2]) == written("mounts").script
    assert expanded(made["env"][0]["value"]) == "$(HOME) costs $5"


@given(st.text(max_size=80), st.text(max_size=80), st.integers(0, 10**6))
def test_names_fit_whatever_a_run_is_called(run: str, token: str, attempt: int) -> None:
    name = gang_name(run, "p", token, attempt)
    assert len(name) <= 40
    assert LABEL.fullmatch(name)
    assert len(rank_name(name, 10**5).partition(".")[0]) <= 63


def test_other_attempts_runs_and_projects_have_other_names() -> None:
    names = {
        gang_name(run, project, token, attempt)
        for run in ("train", "train2")
        for project in ("a", "b")
        for token in ("1", "2")
        for attempt in (0, 1)
    }
    assert len(names) == 16
    assert gang_name("train", "a", "1", 0) == gang_name("train", "a", "1", 0)


@pytest.mark.parametrize(
    "tags",
    [
        {"": "x"},
        {"a b": "x"},
        {"-a": "x"},
        {"a" * 64: "x"},
        {"/a": "x"},
        {"Example.com/a": "x"},
        {"a/b/c": "x"},
        {"é": "x"},
        {"a": "b c"},
        {"a": "b\n"},
        {"a": "é"},
        {"a": "x" * 64},
        {"a": "-x"},
        {"kueue.x-k8s.io/queue-name": "other"},
        {"orch.dev/run": "other"},
        {"app.kubernetes.io/managed-by": "me"},
        {"batch.kubernetes.io/job-name": "other"},
        {"job-name": "other"},
        {"controller-uid": "other"},
    ],
)
def test_a_tag_that_is_no_label_is_refused_and_never_dropped(tags: dict[str, str]) -> None:
    with pytest.raises(BadTask) as raised:
        gang(request(tags=tags))
    assert raised.value.path == f"tags.{next(iter(tags))}"
    assert raised.value.hint


@given(
    st.dictionaries(st.from_regex(r"t[a-z0-9_.-]{0,40}[a-z0-9]", fullmatch=True), st.just("ok"), max_size=4)
)
def test_good_tags_are_labels_of_every_object(tags: dict[str, str]) -> None:
    check_labels(tags)
    for each in gang(request(tags=tags)):
        assert tags.items() <= each["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"pods": 9}, "gives 8 at most"),
        ({"pods": 0}, "has 0 nodes"),
        ({"resources": PodResources(gpus=16)}, "have 8"),
        ({"priority": 7}, "has no class for the priority 7"),
        ({"run": "a b"}, "'a b' cannot be a label"),
        ({"fleet": "x" * 64}, "cannot be a label"),
        ({"env": {"A B": "x"}}, "'A B' is not the name of an environment variable"),
        ({"mounts": (Claim("a", "/data"), HostFolder("/x", "/data/"))}, "something else at /data already"),
        ({"mounts": (Claim("a", "/dev/shm"),)}, "something else at /dev/shm already"),
        ({"resources": PodResources(shm_mib=2048, memory_limit_mib=1024)}, "count as memory"),
        ({"queue": queue(gang="kueue")}, "names no queue of Kueue"),
    ],
)
def test_what_a_queue_cannot_give_is_refused(words: dict[str, Any], text: str) -> None:
    with pytest.raises(BadTask, match=re.escape(text)):
        gang(request(**words))


def test_a_gang_is_held_until_all_it_owns_is_there() -> None:
    for name in ("job", "kueue", "podgroup"):
        job, *others = gang(written(name))
        before = held(job)
        assert before["spec"]["suspend"] is True
        assert RELEASED not in before["metadata"]["annotations"]
        assert not [key for key in before["metadata"]["labels"] if key.endswith("/queue-name")]
        patch = release(job)
        after = {**before["metadata"]["labels"], **patch["metadata"].get("labels", {})}
        assert after == job["metadata"]["labels"]
        assert ("spec" in patch) == (name != "kueue")  # Kueue alone starts what it has queued
        for each in others:
            row = owned(each, job["metadata"]["name"], "u1")
            assert row["metadata"]["ownerReferences"][0]["uid"] == "u1"
            assert "ownerReferences" not in each["metadata"]


def test_a_log_in_is_a_secret_and_no_representation_of_it() -> None:
    login = RegistryLogin("robot", "hunter2")
    wanted = request(registry=login)
    secret = next(each for each in gang(wanted) if each["kind"] == "Secret")
    entry = json.loads(b64decode(secret["data"][".dockerconfigjson"]))["auths"]
    assert entry["https://index.docker.io/v1/"]["password"] == "hunter2"
    assert "hunter2" not in repr(wanted)
