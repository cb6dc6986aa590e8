"""The folder that each job has on its node's fast disk, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

from kit.nodes.nodelab import Lab

from orch import images
from orch.runner.events import LogLine, Notice, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.records import RunRow
from orch.runner.node_api.commands import Command
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.ssh.pool import SshConnector
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeScratch, NodeState

Pair = tuple[NodeState, NodeState]
SHOWS = [
    'echo "${ORCH_SCRATCH:-none}"',
    '[ "$SLURM_TMPDIR" = "${ORCH_SCRATCH:-$SLURM_TMPDIR}" ] && echo here > "$SLURM_TMPDIR/left"',
    'ls "$SLURM_TMPDIR"',
]


def with_scratch(lab: Lab, pair: Pair, *each: NodeScratch) -> FleetState:
    return lab.fleet(
        *(node.model_copy(update={"scratch": scratch}) for node, scratch in zip(pair, each, strict=True))
    )


def run(place: RunnerContext, fleet: FleetState, base: Path, **task: object) -> RunRow:
    asked = Task.model_validate({"name": "job", "nodes": 2, "commands": SHOWS, **task})
    row = lifecycle.submit(place, Submission(asked, fleet, image=images.resolve("orch/mpi"), base=base))
    return lifecycle.drive(place, row)


def lines(place: RunnerContext, rank: int) -> list[str]:
    assert isinstance(place.processor, Recorder)
    said = [event for event in place.processor.events if isinstance(event, LogLine)]
    return [line.text for line in said if line.rank == rank]


def notices(place: RunnerContext) -> list[str]:
    assert isinstance(place.processor, Recorder)
    return [event.text for event in place.processor.events if isinstance(event, Notice)]


def on_node(transport: SshConnector, node: NodeState, script: str) -> str:
    return transport.run(node, Command(script)).stdout.strip()


def test_a_job_has_a_folder_of_its_own_which_goes_with_it(
    place: RunnerContext, lab: Lab, pair: Pair, tmp_path: Path, transport: SshConnector
):
    fast = "/mnt/fast disk"
    fleet = with_scratch(
        lab, pair, NodeScratch(path=fast, check="none"), NodeScratch(path="/srv", clean=True)
    )
    row = run(place, fleet, tmp_path, user="1234")
    assert row.status == "done"
    assert lines(place, 0) == [fast, "left"]
    assert lines(place, 1) == ["none", "left"]
    assert f"{pair[1].name}: no ORCH_SCRATCH: /srv is no mount point" in notices(place)
    gone = f"cd '{fast}/orch' && for i in $(seq 300); do [ -n \"$(ls)\" ] || break; sleep 0.1; done; ls"
    assert on_node(transport, pair[0], gone) == ""


def test_a_folder_that_is_to_stay_stays(
    place: RunnerContext, lab: Lab, pair: Pair, tmp_path: Path, transport: SshConnector
):
    on_node(transport, pair[0], "mkdir -p /srv/fast")
    fleet = with_scratch(
        lab,
        pair,
        NodeScratch(path="/srv/fast", check="folder", clean=False),
        NodeScratch(path="/not/there", check="folder", required=True),
    )
    row = run(place, lab.fleet(fleet.nodes[0]), tmp_path, nodes=1)
    assert row.status == "done"
    assert on_node(transport, pair[0], "cat /srv/fast/orch/*/left; rm -r /srv/fast") == "here"
    row = run(place, fleet, tmp_path)
    assert row.status == "failed"
    assert "there is no scratch: /not/there is no folder of this node" in str(row)
