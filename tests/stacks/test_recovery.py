"""What a killed engine left is told from what a live one writes, and one reading of a state from another."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orch.stacks.project.project import Project, find, this_host
from orch.stacks.pulumi.recovery import SECRET, repair_files, same_state

NODE = {"urn": "urn:pulumi:p5::tests::aws:ec2/instance:Instance::p5-0", "id": "i-1", "outputs": {"a": 1}}
STATE: dict[str, Any] = {
    "manifest": {"time": "2026-11-22T05:00:00Z"},
    "resources": [{**NODE, "inputs": {"userData": {SECRET: SECRET, "ciphertext": "v1:x"}}}],
}


@pytest.mark.parametrize(
    "unchanged",
    [
        {"manifest": {"time": "2026-11-22T06:00:00Z"}},
        {"pending_operations": None},
        {"resources": [{**NODE, "inputs": {"userData": {SECRET: SECRET, "ciphertext": "v1:y"}}}]},
    ],
)
def test_the_time_of_a_look_and_another_encryption_are_no_change(unchanged: dict[str, Any]) -> None:
    assert same_state(STATE, {**STATE, **unchanged})


@pytest.mark.parametrize(
    "changed",
    [
        {"resources": []},
        {"resources": [{**STATE["resources"][0], "id": "i-2"}]},
        {"resources": [{**STATE["resources"][0], "outputs": {"a": 2}}]},
        {"resources": [*STATE["resources"], NODE]},
        {"pending_operations": [{"resource": NODE, "type": "creating"}]},
    ],
)
def test_a_resource_more_or_less_or_another_is_a_change(changed: dict[str, Any]) -> None:
    assert not same_state(STATE, {**STATE, **changed})


class AnotherEngine:
    """Somebody else's engine, which takes the lock and begins to write the state, when a folder of the state
    is listed for the given time: as it does, file by file."""

    def __init__(self, project: Project, begins_at: int) -> None:
        assert project.local_state is not None
        self._state = project.local_state / ".pulumi"
        self.lock = self._state / "locks" / "organization" / project.name / "f" / "another.json"
        self.half = self._state / "stacks" / project.name / f"f.json.{time.time_ns():x}.tmp"
        self._begins_at = begins_at
        self.looks = 0

    @contextmanager
    def beside(self) -> Iterator[None]:
        """It hears within of each folder that is listed."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("listdir", "scandir"):
                told = self._told(getattr(os, name))
                patch.setattr(os, name, told)
                if accessor := getattr(pathlib, "_NormalAccessor", None):  # Python 3.10 looks there
                    patch.setattr(accessor, name, staticmethod(told))
            yield

    def _told(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def told(folder: Any = ".") -> Any:
            self.look(os.fsdecode(folder))
            return plain(folder)

        return told

    def look(self, folder: str) -> None:
        if not folder.startswith(str(self._state)):
            return
        self.looks += 1
        if self.looks == self._begins_at:
            self.lock.parent.mkdir(parents=True, exist_ok=True)
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            told = {"pid": os.getpid(), "username": "bob", "hostname": this_host(), "timestamp": stamp}
            self.lock.write_text(json.dumps(told))
            self.half.write_text('{"checkpoint"')

    def end(self) -> None:
        self.half.rename(self.half.with_name("f.json"))


def checkpoint_of(project: Project) -> Path:
    checkpoint = project.checkpoint("f")
    assert checkpoint is not None
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    return checkpoint


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_what_another_engine_begins_to_write_meanwhile_is_left_to_it(tmp_path: Path, moment: int) -> None:
    project = find(tmp_path)
    old = checkpoint_of(project).with_name("f.json.18d0c2e5a1b3f000.tmp")
    old.write_text("{")
    (project.local_state or tmp_path).joinpath(".pulumi/locks/organization", project.name, "f").mkdir(
        parents=True
    )
    another = AnotherEngine(project, moment)
    with another.beside():
        repair_files(project, "f")
    assert another.looks > 0
    if another.lock.exists():
        another.end()
    else:
        assert not old.exists()


def test_half_written_files_of_a_dead_engine_go_and_those_of_other_stacks_stay(tmp_path: Path) -> None:
    project = find(tmp_path)
    checkpoint = checkpoint_of(project)
    left = ["f.json.attrs", "f.json.bak.attrs", "f.json.18d0c2e5a1b3f000.tmp", "f.json.gz.bak.attrs"]
    left += ["f.json.gz.attrs", "f.json.gz.18d0c2e5a1b3f000.tmp"]
    others = ["f.json.json.attrs", "f.json.json.18d0c2e5a1b3f000.tmp", "ff.json.attrs", "f-json.attrs"]
    for name in (*left, *others):
        checkpoint.with_name(name).touch()
    checkpoint.write_text("{}")
    repair_files(project, "f")
    assert sorted(file.name for file in checkpoint.parent.iterdir()) == sorted(["f.json", *others])
