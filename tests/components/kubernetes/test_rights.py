"""What a plan asks for, what rbac.yml of the examples grants and what the reference lists are the same."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.clouds.kubernetes_cases import ALL

from orch.components.kubernetes.account.facts import ATTACHMENT_KIND, ATTACHMENTS, COMMON_NAMESPACE, KUEUE
from orch.components.kubernetes.account.gather_facts import CLUSTER_WIDE
from orch.components.kubernetes.account.rights import OF_NAMESPACES

ROOT = Path(__file__).parents[3]
DOCUMENTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "examples/kubernetes/rbac.yml").read_text())
)
PAGE = (ROOT / "docs/reference/kubernetes.md").read_text("utf-8")

# What lists of the cluster are read for a plan, beside what is asked for by name.
READ = (
    *(("list", each) for each in ("nodes", "pods")),
    ("get", "namespaces"),
    *(
        ("list", f"{each}.{KUEUE}")
        for each in ("clusterqueues", "resourceflavors", "topologies", "workloadpriorityclasses")
    ),
)


def granted(kind: str) -> set[tuple[str, str]]:
    found = set[tuple[str, str]]()
    for each in DOCUMENTS:
        for rule in each.get("rules", ()) if each["kind"] == kind else ():
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    found |= {(verb, f"{resource}.{group}" if group else resource) for verb in rule["verbs"]}
    return found


def is_cluster_wide(resource: str) -> bool:
    return resource.partition(".")[0] in CLUSTER_WIDE


def acts(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those that the example grants: that of namespaces is for who has orch make them."""
    return sorted(set(rows) - set(OF_NAMESPACES))


@pytest.mark.parametrize("act", acts(ALL), ids=" ".join)
def test_what_a_plan_asks_for_is_granted(act: tuple[str, str]) -> None:
    assert act in granted("ClusterRole" if is_cluster_wide(act[1]) else "Role")


@pytest.mark.parametrize("act", READ, ids=" ".join)
def test_what_a_plan_reads_is_granted(act: tuple[str, str]) -> None:
    assert act in granted("ClusterRole")


def test_the_networks_of_a_fleets_namespace_and_of_the_common_one_are_granted() -> None:
    rule = {"apiGroups": [ATTACHMENTS], "resources": [ATTACHMENT_KIND], "verbs": ["list"]}
    where = [each["metadata"]["namespace"] for each in DOCUMENTS if rule in each.get("rules", ())]
    assert where == ["training", COMMON_NAMESPACE]


def test_the_page_names_all_that_is_granted() -> None:
    resources = {
        resource.partition(".")[0] for kind in ("Role", "ClusterRole") for _, resource in granted(kind)
    }
    assert [each for each in sorted(resources) if each not in PAGE] == []


def test_nothing_is_granted_by_a_star() -> None:
    rights = granted("Role") | granted("ClusterRole")
    assert [each for each in rights if "*" in "".join(each)] == []
    # Who may bind or escalate may do anything.
    assert {verb for verb, _ in rights} <= {"get", "list", "create", "patch", "delete"}
