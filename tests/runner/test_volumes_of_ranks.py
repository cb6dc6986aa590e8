"""Which volumes the ranks of a task get, and what is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orch.runner.errors import BadTask, RunConflict
from orch.runner.launch.compile import CompiledRun, compile_run
from orch.runner.launch.run_request import RunRequest
from orch.runner.launch.volumes import (
    KnownVolume,
    VolumeMisfit,
    Volumes,
    VolumeUse,
    volume_uses,
    volumes_to_make_with,
)
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import Waiting
from orch.runner.placement.placement import place_task
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState
from orch.spec.volume_state import VolumeState


def node(index: int, **more: object) -> NodeState:
    given: dict[str, object] = {"index": index, "name": f"n{index}", "address": "127.0.0.1", "user": "root"}
    given |= {"host_key": "ssh-ed25519 AAAA", "internal_ip": f"10.0.0.{index + 1}", "cpus": 8}
    return NodeState.model_validate(given | {"memory_mib": 16384} | more)


def fleet(*nodes: NodeState, name: str = "lab", backend: str = "local") -> FleetState:
    return FleetState(name=name, stack=name, backend=backend, placement="cluster", nodes=nodes)


def local(name: str, **more: object) -> KnownVolume:
    state = VolumeState.model_validate({"name": name, "backend": "local", "volume_id": f"{name}-ab12"} | more)
    return KnownVolume(state, f"/var/lib/orch-volumes/{name}-ab12")


def ebs(name: str, **more: object) -> KnownVolume:
    given = {"name": name, "backend": "aws", "volume_id": f"vol-{name}", "region": "r", "zone": "r-1"}
    return KnownVolume(VolumeState.model_validate(given | more))


def known(*volumes: KnownVolume, **uses: tuple[VolumeUse, ...]) -> Volumes:
    return Volumes({each.state.name: each for each in volumes}, uses)


def on_aws(*zones: str) -> FleetState:
    nodes = [node(i, region="r", zone=zone) for i, zone in enumerate(zones)]
    return fleet(*nodes, backend="aws")


def compiled(on: FleetState, volumes: Volumes, *mounts: Any, nodes: int = 1, **more: Any) -> CompiledRun:
    task = Task.model_validate({"image": "x", "nodes": nodes, "volumes": list(mounts), **more})
    seats = place_task(task, on)
    return compile_run(RunRequest(task, "job", 1, on, seats, "image", Path("/base"), volumes=volumes))


def mounts_of(run: CompiledRun) -> list[list[tuple[str, str]]]:
    return [[(mount.source, mount.target) for mount in rank.mounts] for rank in run.plan.ranks]


def test_a_local_volume_is_its_folder_on_every_node() -> None:
    run = compiled(fleet(node(0), node(1)), known(local("data")), "data:/data", nodes=2)
    assert mounts_of(run) == [[("/var/lib/orch-volumes/data-ab12", "/data")]] * 2
    assert all(mount.check == "volume" for rank in run.plan.ranks for mount in rank.mounts)


def network(name: str, center: str) -> KnownVolume:
    given = {"name": name, "backend": "runpod", "volume_id": f"nv-{name}", "region": center}
    return KnownVolume(VolumeState.model_validate(given), made=True)


def pods(center: str, number: int = 2) -> FleetState:
    return fleet(*(node(i, region=center, runtime="process") for i in range(number)), backend="runpod")


def test_pods_have_the_volume_that_they_are_made_with_where_the_task_wants_it() -> None:
    volumes = known(network("va", "EU-RO-1"), network("vb", "US-KS-2"), vb=(VolumeUse("other", "n9"),))
    mount = {"name": ["va", "vb"], "path": "/data"}
    run = compiled(pods("US-KS-2"), volumes, mount, nodes=2, commands=["true"])
    assert mounts_of(run) == [[("/data", "/data")]] * 2
    # No cloud is asked to attach it; the pod itself is looked at. Others may have it too.
    assert [(rank.volumes[0].by_folder, rank.mounts[0].check) for rank in run.plan.ranks] == [
        (True, "made")
    ] * 2
    with pytest.raises(VolumeMisfit, match="volume va is in region EU-RO-1") as caught:
        compiled(pods("US-KS-2"), volumes, "va:/data", nodes=2, commands=["true"])
    assert caught.value.code == "ORCH261"


def test_new_pods_are_made_with_those_of_a_tasks_volumes_that_are_theirs() -> None:
    volumes = known(network("va", "EU-RO-1"), network("vb", "US-KS-2"), ebs("vc"))
    task = Task.model_validate(
        {"image": "x", "volumes": [{"name": ["none", "va", "vc", "vb"], "path": "/d"}]}
    )
    found = volumes_to_make_with(task, pods("", 0), volumes)
    assert [each.state.name for each in found] == ["va", "vb"]
    for name, code in (("none", "ORCH268"), ("vc", "ORCH269")):
        task = Task.model_validate({"image": "x", "volumes": [f"{name}:/d"]})
        with pytest.raises(VolumeMisfit) as caught:
            volumes_to_make_with(task, pods("", 0), volumes)
        assert (caught.value.code, caught.value.path) == (code, "volumes.0")


def test_a_managed_folder_is_one_for_each_fleet_and_name() -> None:
    mount = {"name": "cache-${{ orch.node_rank }}", "path": "/cache", "instance": True}
    run = compiled(fleet(node(0), node(1), name="lab"), Volumes(), mount, nodes=2)
    folder = "/var/lib/orch/instance-volumes/lab"
    assert mounts_of(run) == [[(f"{folder}/cache-{rank}", "/cache")] for rank in (0, 1)]


@pytest.mark.parametrize("reference", ["dstack.node_rank", "orch.node_rank", "dstack.job_num"])
def test_each_rank_may_have_a_volume_of_its_own(reference: str) -> None:
    volumes = known(ebs("data-0"), ebs("data-1"))
    run = compiled(on_aws("r-1", "r-1"), volumes, f"data-${{{{ {reference} }}}}:/data", nodes=2)
    assert mounts_of(run) == [[(f"/var/lib/orch/volumes/vol-data-{rank}", "/data")] for rank in (0, 1)]
    assert [rank.volumes[0].state.name for rank in run.plan.ranks] == ["data-0", "data-1"]


def test_of_several_names_the_first_usable_one_is_taken() -> None:
    volumes = known(ebs("far", zone="r-2"), ebs("busy"), ebs("near"), busy=(VolumeUse("other", "n7"),))
    run = compiled(on_aws("r-1"), volumes, {"name": ["gone", "far", "busy", "near"], "path": "/data"})
    assert [volume.state.name for volume in run.plan.ranks[0].volumes] == ["near"]


def test_a_volume_at_two_paths_is_attached_once_and_writable_when_one_is() -> None:
    twice = ({"name": "data", "path": "/a", "read_only": True}, {"name": "data", "path": "/b"})
    run = compiled(on_aws("r-1"), known(ebs("data")), *twice)
    assert [mount.read_only for mount in run.plan.ranks[0].mounts] == [True, False]
    assert [volume.read_only for volume in run.plan.ranks[0].volumes] == [False]


def test_a_run_that_has_ended_or_is_on_the_same_node_is_in_nobodys_way() -> None:
    uses = (VolumeUse("over", "n7", ended=1.0), VolumeUse("beside", "n0"))
    run = compiled(on_aws("r-1"), known(ebs("data"), data=uses), "data:/data")
    assert run.plan.ranks[0].volumes[0].folder == "/var/lib/orch/volumes/vol-data"


@pytest.mark.parametrize(
    ("on", "volumes", "mount", "code", "words"),
    [
        (
            on_aws("r-1"),
            known(ebs("data", zone="r-2")),
            "data:/d",
            "ORCH261",
            "zone r-2, and node n0 is in r-1",
        ),
        (on_aws("r-1"), known(ebs("data", region="q")), "data:/d", "ORCH261", "region q"),
        (on_aws("r-1"), known(ebs("data")), "dat:/d", "ORCH268", "dat is not up"),
        (on_aws("r-1"), known(local("data")), "data:/d", "ORCH269", "of local, and the nodes of fleet lab"),
        (fleet(node(0), backend="ssh"), known(ebs("data")), "data:/d", "ORCH269", "existing hosts"),
    ],
    ids=["zone", "region", "unknown", "backend", "hosts"],
)
def test_what_a_node_cannot_have_is_refused(
    on: FleetState, volumes: Volumes, mount: str, code: str, words: str
) -> None:
    with pytest.raises(VolumeMisfit, match=words) as caught:
        compiled(on, volumes, mount)
    assert (caught.value.code, caught.value.path) == (code, "volumes.0")
    assert caught.value.hint


def test_a_volume_that_another_node_has_names_the_run_that_uses_it() -> None:
    volumes = known(ebs("data"), data=(VolumeUse("train", "n7"),))
    with pytest.raises(RunConflict, match="in use by run train, on node n7") as caught:
        compiled(on_aws("r-1"), volumes, "data:/data")
    assert (caught.value.code, caught.value.exit_code) == ("ORCH267", 9)


@pytest.mark.parametrize(
    ("on", "volume", "words"),
    [
        (
            on_aws("r-1", "r-1"),
            ebs("data"),
            "can be attached to one node at a time, and 2 nodes would mount it",
        ),
        (fleet(node(0), node(1)), local("data", sharing="single"), "is of `sharing: single`"),
    ],
)
def test_nodes_do_not_share_what_one_of_them_can_have(
    on: FleetState, volume: KnownVolume, words: str
) -> None:
    with pytest.raises(VolumeMisfit, match=words) as caught:
        compiled(on, known(volume), "data:/data", nodes=2)
    assert (caught.value.code, caught.value.path) == ("ORCH266", "volumes.0")
    assert "data-${{ orch.node_rank }}" in (caught.value.hint or "")


def test_paths_that_become_the_same_are_refused() -> None:
    with pytest.raises(BadTask, match="/data/0 is mounted twice") as caught:
        compiled(
            fleet(node(0)), known(local("aa"), local("bb")), "aa:/data/0", "bb:/data/${{ orch.node_rank }}"
        )
    assert caught.value.code == "ORCH153"


def test_a_name_that_is_none_once_it_is_filled_in_is_refused() -> None:
    with pytest.raises(BadTask, match="names the volume '0-data'") as caught:
        compiled(fleet(node(0)), known(), "${{ orch.node_rank }}-data:/data")
    assert caught.value.code == "ORCH115"


def test_a_run_that_waits_has_no_volume_attached(ledger_url: str) -> None:
    plan = compiled(on_aws("r-1"), known(ebs("data")), "data:/data").plan.model_dump_json()
    ledger = open_ledger(ledger_url)
    row = ledger.create("job", "lab", ["n0"], lambda _: plan, Waiting("no nodes", 900.0, None, 1))
    assert volume_uses(ledger) == {"data": [VolumeUse("job", "n0", waiting=True)]}
    lease = ledger.take(row.id, "me")
    assert lease is not None
    # An attempt that is still on a node that does not answer has its volume there.
    ledger.begin_attempt(lease, 0, plan, ["n0"])
    ledger.wait(lease, Waiting("n0 is lost", 900.0, None, 2), ["interruption"])
    assert volume_uses(ledger) == {"data": [VolumeUse("job", "n0")]}
    ledger.close()
    waiting = (VolumeUse("idle", "n7", waiting=True),)
    run = compiled(on_aws("r-1"), known(ebs("data"), data=waiting), "data:/data")
    assert run.plan.ranks[0].volumes[0].state.name == "data"


def test_where_a_volume_is_does_not_matter_before_a_run_has_nodes() -> None:
    for volumes in (known(ebs("data", zone="r-2")), known(ebs("data"), data=(VolumeUse("train", "n7"),))):
        run = compiled(on_aws("r-1"), replace(volumes, for_waiting=True), "data:/data")
        assert run.plan.ranks[0].volumes[0].state.name == "data"
    with pytest.raises(VolumeMisfit, match="dat is not up"):
        compiled(on_aws("r-1"), replace(known(ebs("data")), for_waiting=True), "dat:/d")
