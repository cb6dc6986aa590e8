"""Machines that prepare themselves: jobs wait for them, and stay away from those that fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from kit.nodes.blocklab import fleet, left_on, node, submit
from kit.nodes.hostlab import Room
from kit.nodes.labserver import Server, wait_until

from orch.runner.errors import NodeUnfit
from orch.runner.events import Notice, Recorder
from orch.runner.node.status import node_statuses
from orch.runner.node_api.first_boot import BOOT
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.ssh.pool import SshConnector
from orch.spec.errors import ExitCode
from orch.spec.state import FleetState

WHY = "nvidia-smi lists 7 of 8 GPUs"


@pytest.fixture
def pair(room: Room, gpu1: Server) -> Iterator[FleetState]:
    """A fleet of two; the first of them has begun to prepare itself."""
    gpu1.run(f"mkdir -p {BOOT} && echo about > {BOOT}/README")
    servers = (gpu1, room.servers[1])
    near = [{"internal_ip": each.addresses[room.front.name]} for each in servers]
    yield fleet(*(node(each, 1, index=i, **near[i]) for i, each in enumerate(servers)))
    gpu1.run(f"rm -rf {BOOT}")


def notices(place: RunnerContext) -> list[str]:
    assert isinstance(place.processor, Recorder)
    return [event.text for event in place.processor.events if isinstance(event, Notice)]


def test_a_run_waits_for_a_node_that_is_being_prepared(
    place: RunnerContext, pair: FleetState, gpu1: Server, transport: SshConnector
):
    assert [each.status for each in node_statuses(pair, transport)] == ["provisioning", "idle"]
    row = submit(place, pair, nodes=2, commands=["true"])
    driving = threading.Thread(target=lifecycle.drive, args=(place, row))
    driving.start()
    wait_until(lambda: "gpu1 is still being prepared: waiting" in notices(place), "it waits")
    gpu1.run(f"touch {BOOT}/ok")
    driving.join(200)
    row = place.ledger.by_id(row.id)
    assert (row.status, row.message) == ("done", None)


def test_a_run_that_is_stopped_waits_no_longer(place: RunnerContext, pair: FleetState, gpu1: Server):
    row = submit(place, pair, nodes=2, commands=["true"])
    driving = threading.Thread(target=lifecycle.drive, args=(place, row))
    driving.start()
    wait_until(lambda: "gpu1 is still being prepared: waiting" in notices(place), "it waits")
    place.ledger.set_desired(row.id, "stop")
    driving.join(200)
    assert not place.ledger.by_id(row.id).active
    assert left_on(gpu1) == ""


def test_a_node_whose_preparation_failed_gets_no_jobs(
    place: RunnerContext, pair: FleetState, gpu1: Server, transport: SshConnector
):
    gpu1.run(f"echo '{WHY}' > {BOOT}/failed")
    first, second = node_statuses(pair, transport)
    assert (first.status, first.reason) == ("failure", f"its preparation failed: {WHY}")
    assert second.status == "idle"
    assert [rank.node for rank in submit(place, pair, commands=["true"]).ranks] == ["gpu2"]
    assert f"1 node is kept out: gpu1 ({WHY})" in notices(place)
    with pytest.raises(NodeUnfit, match="gpu1 is kept out") as caught:
        submit(place, pair, nodes=2, commands=["true"])
    assert (caught.value.code, caught.value.detail, caught.value.exit_code) == (
        "ORCH391",
        WHY,
        ExitCode.HOSTS,
    )


def test_one_that_fails_after_it_was_chosen_fails_the_run_by_its_name(
    place: RunnerContext, pair: FleetState, gpu1: Server
):
    row = submit(place, pair, nodes=2, commands=["true"])
    gpu1.run(f"echo '{WHY}' > {BOOT}/failed")
    row = lifecycle.drive(place, row)
    assert (row.status, row.ranks[0].reason) == ("failed", "health_failure")
    said, _, do = (row.message or "").partition("; what to do: ")
    assert (said, do.split(" ")[0]) == (f"node gpu1 is kept out: its preparation failed: {WHY}", "`orch")
    assert lifecycle.exit_code(row) == ExitCode.HOSTS
    assert left_on(gpu1) == ""
