"""What a plan asks an API server about the networks that pods may join, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.kubernetes.kubeserver import Answer, Call, KubeServer, kube_server, status

from orch.components.kubernetes.account.facts import ATTACHMENT_KIND, ATTACHMENTS
from orch.components.kubernetes.account.gather_facts import gather_facts
from orch.runner.kubernetes.client import KubernetesClient
from orch.runner.kubernetes.identity import identity_of

GROUP = f"{ATTACHMENTS}/v1"
Doc = dict[str, Any]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubeServer]:
    with kube_server(tmp_path) as server:
        yield server


@pytest.fixture
def client(server: KubeServer) -> Iterator[KubernetesClient]:
    client = KubernetesClient.open(str(server.kubeconfig()))
    yield client
    client.close()


def network(name: str, resource: str | None = None) -> Doc:
    annotations = {} if resource is None else {"k8s.v1.cni.cncf.io/resourceName": resource}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": {"config": "{}"}}


def cluster(networks: dict[str, list[Doc]] | None) -> Callable[[Call], Answer]:
    """A cluster with these networks by namespace, others may not be listed; None: without Multus."""

    def answer(call: Call) -> Answer:
        if call.method == "POST":
            return Answer({"status": {"allowed": True}})
        if call.path == "/apis":
            group = {"name": ATTACHMENTS, "versions": [{"groupVersion": GROUP}]}
            return Answer({"groups": [] if networks is None else [group]})
        if call.path == f"/apis/{GROUP}":
            return Answer({"groupVersion": GROUP, "resources": [{"name": ATTACHMENT_KIND}]})
        if call.path.endswith(f"/{ATTACHMENT_KIND}"):
            namespace = call.path.split("/")[-2]
            if namespace not in (networks or {}):
                return status(403, "Forbidden", f"{ATTACHMENT_KIND} is forbidden in {namespace}")
            return Answer({"items": (networks or {})[namespace], "metadata": {}})
        return Answer({"items": [], "metadata": {"name": "space"}, "gitVersion": "v1.36.3"})

    return answer


def asked_for(server: KubeServer) -> list[str]:
    return sorted(call.path for call in server.calls if call.path.endswith(f"/{ATTACHMENT_KIND}"))


def test_networks_are_those_of_the_fleets_namespace_and_of_the_common_one(
    server: KubeServer, client: KubernetesClient
) -> None:
    hostdev = network("hostdev-net", "nvidia.com/hostdev")
    server.answer = cluster({"space": [network("macvlan")], "default": [hostdev], "other": [hostdev]})
    facts = gather_facts(client, "space")
    assert facts.networks == {"space": {"macvlan": None}, "default": {"hostdev-net": "nvidia.com/hostdev"}}
    assert facts.version_of(ATTACHMENTS, ATTACHMENT_KIND) == "v1"
    assert facts.unread == ()
    assert asked_for(server) == [
        f"/apis/{GROUP}/namespaces/{each}/{ATTACHMENT_KIND}" for each in ("default", "space")
    ]


def test_the_common_namespace_is_asked_once_where_it_is_the_fleets(
    server: KubeServer, client: KubernetesClient
) -> None:
    server.answer = cluster({"default": [network("a", "rdma/ib")]})
    assert gather_facts(client, "default").networks == {"default": {"a": "rdma/ib"}}
    assert asked_for(server) == [f"/apis/{GROUP}/namespaces/default/{ATTACHMENT_KIND}"]


def test_networks_that_may_not_be_listed_are_told_of_the_fleets_namespace_alone(
    server: KubeServer, client: KubernetesClient
) -> None:
    server.answer = cluster({"space": []})
    facts = gather_facts(client, "space")
    assert (facts.networks, facts.unread) == ({"space": {}}, ())
    server.answer = cluster({"default": []})
    facts = gather_facts(client, "space")
    assert facts.networks == {"default": {}}
    assert [each.partition(":")[0] for each in facts.unread] == ["networks that pods may join"]


def test_a_cluster_is_told_by_the_uid_of_its_system_namespace(
    server: KubeServer, client: KubernetesClient
) -> None:
    usual = cluster(None)
    system = "/api/v1/namespaces/kube-system"

    def known(call: Call) -> Answer:
        return Answer({"metadata": {"uid": "8d3f"}}) if call.path == system else usual(call)

    def hidden(call: Call) -> Answer:
        return status(403, "Forbidden", "namespaces is forbidden") if call.path == system else usual(call)

    digest = identity_of(None, client.login.cluster)
    assert digest.startswith("server/")
    for answer, identity in ((known, f"8d3f+{digest}"), (hidden, digest)):
        server.answer = answer
        facts = gather_facts(client, "space")
        # Without the right the address and the authority of the server tell, and nothing is amiss.
        assert (facts.identity, facts.unread) == (identity, ())


def test_a_cluster_without_multus_is_not_asked_for_networks(
    server: KubeServer, client: KubernetesClient
) -> None:
    server.answer = cluster(None)
    facts = gather_facts(client, "space")
    assert (facts.networks, facts.unread) == ({}, ())
    assert facts.version_of(ATTACHMENTS, ATTACHMENT_KIND) is None
    assert asked_for(server) == []
