"""What a job may do on its node: nothing, beside its own container and its own `state`."""

from __future__ import annotations

import pytest
from kit.nodes.containershell import inside
from kit.nodes.nodelab import Lab

from orch import images
from orch.runner.events import LogLine, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.node.container_start import start_command
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.ssh.pool import SshConnector
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState

Pair = tuple[NodeState, NodeState]

ATTACKS = r"""
try() { "$@" 2>/dev/null && echo "DID $*"; }
for name in expired clock go.new go stopping env found staged job.sh; do
  try ln -sfn /etc/passwd /run/orch/$name
done
try mkdir /run/orch/stopping
try sh -c 'echo 1 > /run/orch/clock'
try rm -rf /run/orch/go /run/orch/entry.sh
try mount -o remount,rw /run/orch
try touch /run/orch/state/../mine
for name in "$STAGE" /var/lib/orch /run/orch/../control /run/control; do try ls "$name"; done
ln -sfn /etc/passwd /run/orch/state/code && echo "may write state"
echo "R=$R target=$target ticks=$ticks word=$word IFS_SET=${orch_word:-no}"
sleep 2
"""
# Everything of the node but what its Docker and the kernel keep.
LISTING = (
    r"find / -xdev \( -path /proc -o -path /sys -o -path /var/lib/docker -o -path /run -o -path /tmp"
    r" -o -path /var/lib/orch -o -path /var/log -o -path /dev -o -path /var/lib/containerd \) -prune"
    r" -o -type f -printf '%p %s %m %u %T@\n' -o -printf '%p %y %m %u %l\n' | sort"
)
# What the models refuse (line breaks, leading dashes, words for the name of a shell) never comes so far.
HOSTILE = "x'; touch /pwned; '$(touch /pwned)`touch /pwned`; \"; touch /pwned; \" \u3000 -rf * ${IFS}"


def submit(place: RunnerContext, fleet: FleetState, **task: object) -> RunRow:
    given = {"name": "job", "nodes": len(fleet.nodes), "stop_duration": 2, **task}
    return lifecycle.submit(
        place, Submission(Task.model_validate(given), fleet, image=images.resolve("orch/mpi"), base=place.dot)
    )


def on(node: NodeState, script: str) -> str:
    return inside(node.name, script)


def lines(place: RunnerContext) -> list[str]:
    recorder = place.processor
    assert isinstance(recorder, Recorder)
    return [event.text for event in recorder.events if isinstance(event, LogLine)]


def test_a_job_changes_nothing_that_root_trusts_and_sees_no_other_job(
    place: RunnerContext, lab: Lab, pair: Pair, left_on
):
    node = pair[0]
    before = on(node, LISTING)
    on(node, "mkdir -p /var/lib/orch/runs/orch-other && echo secret > /var/lib/orch/runs/orch-other/env")
    env = {"R": "4.3", "target": "prod", "ticks": "7", "word": HOSTILE}
    env["STAGE"] = "/var/lib/orch/runs/orch-other"
    row = lifecycle.drive(
        place,
        submit(place, lab.fleet(node), commands=[ATTACKS], env=env, max_duration=120, shell="sh"),
    )
    on(node, "rm -rf /var/lib/orch/runs/orch-other")
    told = lines(place)
    assert row.status == "done", row.message
    assert [line for line in told if line.startswith("DID")] == []
    assert "may write state" in told
    assert f"R=4.3 target=prod ticks=7 word={env['word']} IFS_SET=no" in told
    assert on(node, LISTING) == before
    assert left_on(node) == ""


@pytest.mark.parametrize(
    "task",
    [
        {"env": {"A": HOSTILE}, "commands": ['test "$A" != ""']},
        {"working_dir": f"/tmp/{HOSTILE}", "commands": ["pwd"]},
        {"user": "no_one:0.0", "commands": ["id"]},
        {"volumes": [{"instance_path": "/tmp/$(touch /pwned)", "path": f"/x{HOSTILE}"}], "commands": ["ls"]},
        {"entrypoint": f"{HOSTILE} --privileged".replace("'", ""), "commands": ["true"]},
        {"shell": "/bin/$(touch${IFS}pwned)", "commands": ["true"]},
    ],
    ids=lambda task: next(iter(task)),
)
def test_hostile_values_change_nothing_on_the_node(
    task: dict[str, object], place: RunnerContext, lab: Lab, pair: Pair, left_on
):
    node = pair[0]
    before = on(node, LISTING)
    row = lifecycle.drive(place, submit(place, lab.fleet(node), **task))
    assert row.status in ("done", "failed")
    assert on(node, LISTING) == before
    assert left_on(node) == ""


@pytest.mark.parametrize("image", ["--privileged", "-v/:/host", "a;touch /pwned", "$(touch /pwned)"])
def test_an_image_that_looks_like_an_option_is_none(
    image: str, place: RunnerContext, lab: Lab, pair: Pair, transport: SshConnector
):
    row = submit(place, lab.fleet(pair[0]), commands=["true"])
    plan = plan_of(row).model_copy(update={"image": image})
    command = start_command(plan, 0, b"\0" * 10240)  # type: ignore[arg-type]
    done = transport.run(pair[0], command)
    assert not done.ok
    assert on(pair[0], "ls /pwned 2>/dev/null; docker ps -aq") == ""
    assert lifecycle.stop(place, row).status == "terminated"


def test_a_run_that_an_older_version_started_is_stopped_and_its_traps_do_not_snap(
    place: RunnerContext, lab: Lab, pair: Pair, left_on
):
    """Its marks lie where the job may write them: a number in `clock`, and a `stopping` that nobody made."""
    node = pair[0]
    row = submit(place, lab.fleet(node), commands=["sleep 300"])
    name, image = plan_of(row).container(0), images.resolve("orch/mpi")
    stage = f"/var/lib/orch/runs/{name}"
    on(
        node,
        f"mkdir -p {stage}/state {stage}/stopping /var/lib/orch/claims;"
        f"touch {stage}/go {stage}/state/started;"
        f"ln -s '{name}|job|me|now|1' /var/lib/orch/claims/0;"
        f"setsid sleep 987 >/dev/null 2>&1 & echo $! > {stage}/clock;"
        f"docker run -d --name {name} --init --network=host --volume={stage}:/run/orch {image} sleep 300",
    )
    lease = place.ledger.take(row.id, "me")
    assert lease is not None
    place.ledger.mark_started(lease, "by hand")
    place.ledger.change(lease, phase="running", status="running")
    place.ledger.release(lease)
    lifecycle.reconcile_once(place)
    assert place.ledger.by_id(row.id).status == "running"
    assert lifecycle.stop(place, place.ledger.by_id(row.id)).status == "terminated"
    assert left_on(node) == ""
    assert (
        on(node, "pgrep -f '[s]leep 987' >/dev/null && echo alive; pkill -f '[s]leep 987'; true") == "alive"
    )


def test_a_stop_that_was_lost_is_sent_again(place: RunnerContext, lab: Lab, pair: Pair, left_on):
    """As after a restart of Docker: the mark says that it was asked to stop, and nothing came of it."""
    node = pair[0]
    row = submit(place, lab.fleet(node), commands=["trap '' TERM", "sleep 300 & wait; wait"])
    name = plan_of(row).container(0)
    lifecycle.Driver(place.context(row), row, _lease(place, row), follow_logs=False).step()
    control = f"/var/lib/orch/control/{name}"
    on(node, f"mkdir -p {control}/stopping; echo 0 > {control}/deadline")
    assert lifecycle.stop(place, place.ledger.by_id(row.id)).status == "terminated"
    assert left_on(node) == ""


def _lease(place: RunnerContext, row: RunRow):
    lease = place.ledger.take(row.id, lifecycle.process_owner())
    assert lease is not None
    return lease
