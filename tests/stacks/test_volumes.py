"""Volumes as a project knows them: who uses them, which are due, and those whose `up` was cut short."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit.support import Folder

from orch.cli.fleets import volumes as cli_volumes
from orch.components.volumes import Account, Attachment, DiskVolumes, VolumePlan, VolumeRequest
from orch.runner.launch.volumes import VolumeUse
from orch.spec.loader.load import load_paths
from orch.spec.models import Volume
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState
from orch.stacks.errors import Conflict, NoSuchFleet, ProjectError
from orch.stacks.events.changes import Change
from orch.stacks.project.project import Project, find
from orch.stacks.record.volumes import is_protected, known_volumes, no_such_volume, stack_of
from orch.stacks.volumes import operations
from orch.stacks.volumes.operations import (
    VolumeOutcome,
    VolumeUsage,
    require_all_runs_known,
    require_unused,
)

DATA = VolumeState(name="data", backend="aws", volume_id="vol-1", region="r", auto_cleanup_s=60)
FILE = "type: volume\nname: data\nbackend: aws\nregion: us-east-1\nsize: 10GB\n"
BUCKET = "state: s3://bucket/orch\nsecrets_provider: awskms://alias/orch\n"
URN = "urn:pulumi:volume.data::tests"


def record(project: Project, volume: VolumeState | None, stack: str = "volume.data") -> None:
    """Write a volume's stack as the engine does; with None as an `up` leaves it that ends after the disk."""
    outputs: dict[str, Any] = {"orch": {"version": "0", "schema": 3}}
    if volume is not None:
        outputs["volume"] = volume.model_dump(mode="json")
    kind = "aws:ebs/volume:Volume"
    disk = {"urn": f"{URN}::{kind}::data", "type": kind, "custom": True, "id": "vol-1", "protect": True}
    root = {"urn": f"{URN}::pulumi:pulumi:Stack::tests-{stack}", "type": "pulumi:pulumi:Stack"}
    resources = [root | ({"outputs": outputs} if volume is not None else {}), disk]
    file = project.checkpoint(stack)
    assert file is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"version": 3, "checkpoint": {"latest": {"resources": resources}}}))


class Disks(DiskVolumes):
    """A cloud where `machines` have the disk."""

    def __init__(self, *machines: str) -> None:
        self.machines = machines

    def plan(self, request: VolumeRequest) -> VolumePlan:
        raise NotImplementedError

    def attach(
        self, account: Account, volume: VolumeState, node: NodeState, *, read_only: bool
    ) -> Attachment:
        raise NotImplementedError

    def detach(self, account: Account, volume: VolumeState, node: NodeState) -> None:
        raise NotImplementedError

    def users(self, account: Account, volume: VolumeState) -> tuple[str, ...]:
        return self.machines

    def detach_hint(self, volume: VolumeState, machine: str) -> str:
        return f"detach {volume.volume_id} {machine}"


def test_a_disk_that_a_machine_has_does_not_go_whatever_the_ledger_says(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = find(folder.path)
    record(project, DATA)
    monkeypatch.setattr(operations, "volumes_of", lambda name: Disks("i-1", "i-2"))
    with pytest.raises(Conflict, match="volume data is attached to i-1, i-2") as caught:
        require_unused(project, "data")
    assert (caught.value.code, caught.value.exit_code) == ("ORCH386", 9)
    assert "`detach vol-1 i-1`" in (caught.value.hint or "")
    monkeypatch.setattr(operations, "volumes_of", lambda name: Disks())
    require_unused(project, "data")
    # Its disk stays in any case.
    record(project, DATA.model_copy(update={"external": True}))
    monkeypatch.setattr(operations, "volumes_of", lambda name: Disks("i-1"))
    require_unused(project, "data")


@pytest.mark.sqlite  # what a project without a ledger of its own has
@pytest.mark.parametrize(
    ("settings", "complete"),
    [
        ("", True),
        (BUCKET, False),
        (f"{BUCKET}ledger: postgresql://db/orch\n", True),
        (f"{BUCKET}ledger: sqlite:////srv/ledger.db\n", False),
        ("state: file:///srv/shared\n", False),
        ("state: file:///srv/shared\nledger: sqlite:////srv/shared/ledger.db\n", True),
    ],
)
def test_what_is_due_is_judged_where_all_runs_are_known(
    folder: Folder, settings: str, complete: bool
) -> None:
    folder.write("orch.yml", f"project: tests\n{settings}")
    project = find(folder.path)
    assert project.knows_all_runs is complete
    if complete:
        require_all_runs_known(project)
        return
    with pytest.raises(ProjectError, match="is not known here") as caught:
        require_all_runs_known(project)
    assert "`orch volume delete NAME`" in (caught.value.hint or "")
    said = folder.orch("volume", "gc", "--yes")
    assert said.code == 3
    assert "the ledger of runs is of this machine alone" in said.err


def test_a_volume_is_due_when_nobody_has_used_it_for_its_time() -> None:
    def due(*uses: VolumeUse, complete: bool = True, **more: object) -> bool:
        return VolumeUsage(DATA.model_copy(update=more), None, uses, 1000.0, complete).is_due

    assert due(VolumeUse("old", "n0", ended=900.0))
    assert not due(VolumeUse("new", "n0", ended=990.0))
    assert not due(VolumeUse("old", "n0", ended=900.0), VolumeUse("now", "n1"))
    assert not due(VolumeUse("old", "n0", ended=900.0), complete=False)
    assert not due(VolumeUse("old", "n0", ended=900.0), external=True)
    assert not due(VolumeUse("old", "n0", ended=900.0), auto_cleanup_s=None)


def test_a_volume_whose_up_was_cut_short_is_told_with_its_file(folder: Folder) -> None:
    (folder.path / "disks").mkdir()
    folder.write("disks/data.yml", FILE)
    project = find(folder.path)
    record(project, None)
    stack = stack_of(project, "data")
    assert known_volumes(project) == {}
    assert is_protected(stack)
    goes_on = "`orch up disks/data.yml` continues; `orch volume delete data` removes what there is"
    for error in (no_such_volume(project, "data"), caught(project)):
        assert (error.summary, error.hint) == (
            "the volume data is not up: its `up` was cut short",
            goes_on,
        )
    assert goes_on in folder.orch("volume", "show", "data").err
    listed = folder.orch("volume", "list")
    assert (listed.out, listed.code) == ("", 0)
    assert f"note: the volume data is not up: its `up` was cut short; {goes_on}" in listed.err


def caught(project: Project) -> NoSuchFleet:
    with pytest.raises(NoSuchFleet) as error:
        operations.drift_of_volume(project, "data", lambda _: None)
    return error.value


def test_a_volume_that_is_not_up_is_told_with_its_file(folder: Folder) -> None:
    folder.write("mine.yml", FILE)
    said = folder.orch("volume", "show", "data")
    assert (said.code, "bring it up first: `orch up mine.yml`" in said.err) == (3, True)
    assert "error ORCH268: the volume data is not up" in folder.orch("unlock", "mine.yml").err
    record(find(folder.path), DATA)
    assert folder.orch("unlock", "mine.yml").out == "volume data: nobody holds it\n"


def test_what_orch_alone_records_is_brought_up_after_asking_too(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = (Change("same", "aws:ebs/volume:Volume", "data", f"{URN}::data"),)
    asked: list[str] = []
    monkeypatch.setattr("orch.cli.output.review.need_terminal", lambda words, project: None)
    monkeypatch.setattr("orch.cli.output.review.confirm", asked.append)
    monkeypatch.setattr(operations, "up_volume", lambda *given, **more: VolumeOutcome("data", same))
    document, volume = next(iter(load_paths([folder.path / folder.write("v.yml", FILE)]).of(Volume)))
    for recorded in ((), ("protect",)):
        outcome = VolumeOutcome("data", same, recorded=recorded)
        monkeypatch.setattr(operations, "preview_volume", lambda *given, o=outcome: o)
        asked.clear()
        cli_volumes.bring_up([(find(folder.path), document, volume)], yes=False, as_json=False, verbose=False)
        assert asked == (["Bring up the volume data?"] if recorded else [])
