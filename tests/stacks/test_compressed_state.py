"""A state that the engine keeps compressed, as it is told to by its environment, is seen and not lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.clouds.cloud_engine import quiet

from orch.stacks.engine import install as engines
from orch.stacks.engine.process import call
from orch.stacks.project.project import Project, find
from orch.stacks.pulumi.operation import while_held
from orch.stacks.stack.command import plain
from orch.stacks.stack.state import StackState, deployment, stacks, work_folder

WAYS = ["PULUMI_DIY_BACKEND_GZIP", "PULUMI_SELF_MANAGED_STATE_GZIP", "PULUMI_DIY_BACKEND_ZSTD"]


def files(project: Project) -> list[str]:
    checkpoint = project.checkpoint("fleet")
    assert checkpoint is not None
    return sorted(file.name for file in checkpoint.parent.iterdir() if ".bak" not in file.name)


def test_a_user_s_variables_do_not_hide_a_fleet_s_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    project = find(tmp_path)
    project.prepare()
    monkeypatch.setenv(WAYS[1], "true")
    plain(StackState(project, "fleet"), ["stack", "init"])
    assert stacks(project) == ["fleet"]
    assert deployment(project, "fleet") is not None
    assert files(project) == ["fleet.json"]


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]])
def test_what_pulumi_by_hand_compressed_is_read_and_written_plain_again(tmp_path: Path, way: str) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    project = find(tmp_path)
    project.prepare()
    plain(StackState(project, "fleet"), ["stack", "init"])
    whole = plain(StackState(project, "fleet"), ["stack", "export"]).stdout
    engine = engines.require()
    by_hand = {**project.environment(engine), way: "true"}
    folder = work_folder(project, "fleet")
    done = call(
        engine, ["stack", "import", "--stack", "fleet"], folder=folder, environment=by_hand, stdin=whole
    )
    assert done.code == 0, done.stderr
    assert "fleet.json" not in files(project)
    assert stacks(project) == ["fleet"]
    recorded = deployment(project, "fleet")
    assert recorded is not None
    assert recorded.get("manifest") == json.loads(whole)["deployment"]["manifest"]
    while_held(StackState(project, "fleet"), lambda _: None, quiet)
    assert files(project) == ["fleet.json"]
