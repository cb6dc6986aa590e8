"""1-Click Clusters: which hosts a name stands for, and what is said of one that is not there."""

from __future__ import annotations

from typing import Any

import pytest

from orch.components.lambda_.clusters import Member, hosts_of, known_clusters, named_cluster
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet

B200 = "gpu_8x_b200_sxm6"


def fleet(**options: Any) -> Fleet:
    written = [{"type": "gcp"}, {"type": "lambda", **options}]
    return Fleet.model_validate({"type": "fleet", "name": "big", "backend_options": written})


def cluster(name: str, kind: str = B200) -> list[Member]:
    head = Member(f"{name}-head-001", "cpu_4x_general", 0, "10.0.0.1", "203.0.113.5")
    nodes = [Member(f"{name}-node-{n}", kind, 8, f"10.0.0.{n + 1}", None) for n in (10, 2, 1)]
    return [head, *nodes]


SINGLE = Member("orch-lab-0-abc123-01234567", "gpu_8x_h100_sxm5", 8, "10.0.9.9", "203.0.113.9")
ODD = Member("odd-node-1", B200, 8, "127.0.0.2", None)


def test_a_cluster_is_its_nodes_behind_its_head() -> None:
    there = [*cluster("train"), *cluster("infer", "gpu_8x_h100_sxm5"), SINGLE]
    assert sorted(known_clusters(there)) == ["infer", "train"]
    config = hosts_of(fleet(cluster="train"), [], there)
    assert [(each.name, each.hostname, each.internal_ip) for each in config.hosts] == [
        ("train-node-1", "10.0.0.2", "10.0.0.2"),
        ("train-node-2", "10.0.0.3", "10.0.0.3"),
        ("train-node-10", "10.0.0.11", "10.0.0.11"),
    ]
    assert config.proxy_jump is not None
    assert [(each.hostname, each.user) for each in config.proxy_jump] == [("203.0.113.5", "ubuntu")]
    assert config.user == "ubuntu"
    assert {each.env["NCCL_IB_HCA"] for each in config.hosts} == {"^mlx5_0"}
    assert not any(each.env for each in hosts_of(fleet(cluster="infer"), [], there).hosts)


def test_an_id_is_enough_and_user_and_key_are_the_files() -> None:
    own = cluster("any")
    written = {"cluster": "0123abcd", "user": "me", "identity_file": "~/.ssh/lambda"}
    config = hosts_of(fleet(**written), own, own)
    assert len(config.hosts) == 3
    assert (config.user, config.identity_file) == ("me", "~/.ssh/lambda")
    assert config.proxy_jump is not None
    assert config.proxy_jump[0].identity_file == "~/.ssh/lambda"


@pytest.mark.parametrize(
    ("options", "by_id", "there", "path", "said"),
    [
        ({"cluster": "trian"}, [], cluster("train"), "cluster", ("no 1-Click Cluster trian", "train")),
        ({"cluster": "train"}, [], [SINGLE], "cluster", ("no 1-Click Cluster train", "there is none")),
        ({"cluster": "train"}, [], cluster("train")[1:], "cluster", ("has no head node", "console")),
        ({"cluster": "id"}, cluster("train")[:1], [], "cluster", ("has no node with GPUs", "console")),
        ({"cluster": "train"}, [], cluster("train") * 2, "cluster", ("several 1-Click Clusters train", "id")),
        (
            {"cluster": "id"},
            [*cluster("a")[:1], ODD],
            [],
            "cluster",
            ("of the 1-Click Cluster id", "127.0.0.2"),
        ),
    ],
)
def test_a_cluster_that_is_not_there_is_told_with_those_that_are(
    options: dict[str, str], by_id: list[Member], there: list[Member], path: str, said: tuple[str, ...]
) -> None:
    with pytest.raises(PlanErrors) as wrong:
        hosts_of(fleet(**options), by_id, there)
    (finding,) = wrong.value.findings
    assert (finding.code, finding.path) == ("ORCH230", f"backend_options[1].{path}")
    text = f"{finding.summary} {finding.detail} {finding.hint}"
    assert all(each in text for each in said)


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        (["001", "002"], ["node-10-0-0-2", "node-10-0-0-3"]),
        (["train-node", "Train_Node"], ["node-10-0-0-2", "node-10-0-0-3"]),
        (["\u65e5\u672c", "n"], ["node-10-0-0-2", "node-10-0-0-3"]),
        (["l" * 42, "l" * 41], ["node-10-0-0-2", "l" * 41]),
    ],
)
def test_a_host_whose_name_cannot_be_one_is_called_by_its_address(names: list[str], hosts: list[str]) -> None:
    nodes = [Member(name, B200, 8, f"10.0.0.{n}", None) for n, name in enumerate(names, 2)]
    config = hosts_of(fleet(cluster="id"), [cluster("any")[0], *nodes], [])
    assert sorted(str(each.name) for each in config.hosts) == sorted(hosts)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"cluster": "a", "clutser": "b"}, ".clutser"),
        ({"cluster": 7}, ".cluster"),
        ({"cluster": "a", "user": "a b;c"}, ".user"),
    ],
)
def test_options_that_do_not_read_are_told(options: dict[str, Any], path: str) -> None:
    with pytest.raises(PlanErrors) as wrong:
        named_cluster(fleet(**options))
    assert [each.path for each in wrong.value.findings] == [f"backend_options[1]{path}"]
    assert named_cluster(Fleet.model_validate({"type": "fleet", "name": "lab", "nodes": "1"})) is None
