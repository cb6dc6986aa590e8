"""What a run asks of its fleet's cluster before it asks for pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kit.kubernetes.kubeserver import Answer, Call, KubeServer, kube_server, status

from orch.runner.errors import PodsRefused
from orch.runner.runs.pods.admission import admitted
from orch.spec.errors import ExitCode
from orch.spec.state import FleetState, PodQueue

SYSTEM = "/api/v1/namespaces/kube-system"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubeServer]:
    with kube_server(tmp_path) as server:
        yield server


def begin(server: KubeServer, cluster: str | None) -> None:
    """Ask for the pods of a run whose fleet was made on a cluster."""
    path = str(server.kubeconfig())
    queue = PodQueue(kubeconfig=path, namespace="space", gang="job", pods=2, mark="m", cluster=cluster)
    fleet = FleetState(name="train", stack="train", backend="kubernetes", queue=queue)
    plan = SimpleNamespace(run="a", run_id="0123456789ab")
    unused = cast(Any, None)
    row = cast(Any, SimpleNamespace(next_attempt=1))
    admitted(unused, row, unused, fleet, volumes=unused, plan=cast(Any, plan))


def cluster(uid: str | None) -> Any:
    """A server of this identity, None: that tells none, which refuses all else in words of its own."""

    def answer(call: Call) -> Answer:
        if call.path == SYSTEM and uid is not None:
            return Answer({"metadata": {"uid": uid}})
        return status(403, "Forbidden", "not this either")

    return answer


def test_pods_are_not_asked_for_on_another_cluster(server: KubeServer) -> None:
    server.answer = cluster("there")
    for _ in range(2):
        with pytest.raises(PodsRefused, match="another cluster") as told:
            begin(server, "here")
        assert (told.value.code, told.value.exit_code) == ("ORCH459", ExitCode.CONFLICT)
    assert {call.path for call in server.calls} == {SYSTEM}


def test_nor_where_only_the_address_of_the_server_can_be_compared(server: KubeServer) -> None:
    server.answer = cluster(None)
    with pytest.raises(PodsRefused, match="another cluster") as told:
        begin(server, "here+server/0123456789abcdef")
    assert told.value.code == "ORCH459"
    assert "another address or certificate authority" in str(told.value.detail)


@pytest.mark.parametrize(
    ("known", "found", "asked"), [("here", "here", 1), ("here", None, 1), (None, "there", 0)]
)
def test_the_own_cluster_is_told_once_and_asked_for_pods(
    server: KubeServer, known: str | None, found: str | None, asked: int
) -> None:
    server.answer = cluster(found)
    for _ in range(2):
        with pytest.raises(PodsRefused, match="pods cannot be asked for"):
            begin(server, known)
    paths = [call.path for call in server.calls]
    assert paths.count(SYSTEM) == asked
    assert len(paths) > asked
