"""Variables of a fleet and its hosts: encrypted in the state, and gone from what a former version wrote."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from orch.spec.state import FleetState
from orch.stacks.events.masking import SECRET_MARK, UNKNOWN
from orch.stacks.project.project import find
from orch.stacks.record.fleets import fleet_state
from orch.stacks.record.variables import (
    REMOVED,
    clear_text_names,
    remove_clear_text,
    unreadable_copies,
    values_of,
    with_values,
    without_values,
)

NODE = {"index": 0, "name": "a", "address": "h", "user": "root", "host_key": "k"}
FLEET = {
    "name": "f",
    "stack": "f",
    "backend": "ssh",
    "env": {"HF_TOKEN": "hf_fleet"},
    "nodes": [{**NODE, "env": {"NODE_TOKEN": "hf_node"}}, {**NODE, "index": 1, "name": "b", "env": {}}],
}
SECRET = {SECRET_MARK: "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "v1:x:y"}


def former() -> dict[str, Any]:
    """A stack's deployment as the version before wrote it."""
    host = {"name": "a", "env": {"HF_TOKEN": "hf_fleet", "NODE_TOKEN": "hf_node"}}
    return copy.deepcopy(
        {
            "resources": [
                {"urn": "urn:pulumi:f::p::pulumi:pulumi:Stack::p-f", "type": "pulumi:pulumi:Stack"}
                | {"outputs": {"orch": {"schema": 1}, "fleet": FLEET, "pins": {"scope": "abc"}}},
                {"urn": "urn:pulumi:f::p::orch:ssh:Host::a", "type": "orch:ssh:Host"}
                | {"inputs": host, "outputs": {**host, "facts": {"env": "none"}}},
            ]
        }
    )


def test_what_is_recorded_of_a_fleet_says_no_value_and_a_run_gets_all() -> None:
    told = json.dumps(without_values(FLEET))
    assert "hf_" not in told
    again = with_values(FleetState.model_validate(json.loads(told)), values_of(FLEET))
    assert again == FleetState.model_validate(FLEET)


def test_a_fleet_without_variables_has_no_secret_to_decrypt() -> None:
    assert values_of({**FLEET, "env": {}, "nodes": [NODE]}) == {}


def test_a_state_of_the_version_before_gives_runs_their_variables(tmp_path: Path) -> None:
    project = find(tmp_path)
    checkpoint = project.checkpoint("f")
    assert checkpoint is not None
    checkpoint.parent.mkdir(parents=True)
    recorded = former()
    recorded["resources"].append({"urn": "urn:pulumi:f::p::orch:ssh:Host::b", "type": "orch:ssh:Host"})
    checkpoint.write_text(json.dumps({"checkpoint": {"latest": recorded}}))
    state = fleet_state(project, "f")
    assert state.env == {"HF_TOKEN": "hf_fleet"}
    assert [node.env for node in state.nodes] == [{"NODE_TOKEN": "hf_node"}, {}]


@pytest.mark.parametrize("spot", [True, False])
def test_a_state_of_the_version_before_tells_the_market_of_all_its_nodes(tmp_path: Path, spot: bool) -> None:
    project = find(tmp_path)
    checkpoint = project.checkpoint("f")
    assert checkpoint is not None
    checkpoint.parent.mkdir(parents=True)
    recorded = former()
    recorded["resources"][0]["outputs"]["pins"]["spot"] = "true" if spot else "false"
    checkpoint.write_text(json.dumps({"checkpoint": {"latest": recorded}}))
    assert {node.spot for node in fleet_state(project, "f").nodes} == {spot}


def test_what_stands_in_clear_is_named() -> None:
    assert clear_text_names(former()) == ("HF_TOKEN", "NODE_TOKEN")
    assert clear_text_names(None) == ()
    hidden = former()
    hidden["resources"][0]["outputs"]["fleet"] = without_values(FLEET)
    hidden["resources"][0]["outputs"]["env"] = SECRET
    for part in ("inputs", "outputs"):
        hidden["resources"][1][part]["env"] = {"HF_TOKEN": SECRET, "NODE_TOKEN": SECRET}
    assert clear_text_names(hidden) == ()
    hidden["resources"][1]["inputs"]["env"] = SECRET
    assert clear_text_names(hidden) == ()
    hidden["resources"][0]["outputs"]["fleet"] = UNKNOWN  # of an `up` that failed
    assert clear_text_names(hidden) == ()


@pytest.mark.parametrize(
    "copy_of",
    ["stacks/{p}/f.json.gz.bak", "backups/{p}/f/f.17.json.gz", "history/{p}/f/f-17.checkpoint.json.gz"],
)
def test_so_do_compressed_copies(tmp_path: Path, copy_of: str) -> None:
    project = find(tmp_path)
    file = tmp_path / ".orch/state/.pulumi" / copy_of.format(p=project.name)
    file.parent.mkdir(parents=True)
    text = json.dumps({"version": 3, "checkpoint": {"stack": "f", "latest": former()}})
    file.write_bytes(gzip.compress(text.encode()))
    assert remove_clear_text(project, "f") == (file,)
    left = gzip.decompress(file.read_bytes()).decode()
    assert "hf_" not in left
    assert REMOVED in left
    assert file.stat().st_mode & 0o777 == 0o600
    assert remove_clear_text(project, "f") == ()


def test_so_do_those_that_the_engine_retains_when_it_is_told_to_and_no_other_fleet_s(tmp_path: Path) -> None:
    project = find(tmp_path)
    folder = tmp_path / ".orch/state/.pulumi/stacks" / project.name
    folder.mkdir(parents=True)
    names = ["f.json.1790000000000000000", "f.json.bak", "ff.json.bak", "f.json"]
    for name in names:
        (folder / name).write_text(json.dumps({"version": 3, "checkpoint": {"latest": former()}}))
    assert remove_clear_text(project, "f") == (folder / names[0], folder / names[1])


def test_copies_that_cannot_be_read_here_are_told_of(tmp_path: Path) -> None:
    project = find(tmp_path)
    file = tmp_path / ".orch/state/.pulumi/backups" / project.name / "f" / "f.17.json.zst"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\x28\xb5\x2f\xfd")
    assert remove_clear_text(project, "f") == ()
    assert unreadable_copies(project, "f") == (file,)


@pytest.mark.parametrize("place", ["stacks", "backups", "history"])
def test_older_copies_of_a_state_lose_the_values_and_nothing_else(tmp_path: Path, place: str) -> None:
    project = find(tmp_path)
    state = tmp_path / ".orch" / "state" / ".pulumi"
    folder = state / place / project.name / ("f" if place != "stacks" else "")
    folder.mkdir(parents=True)
    name = {"stacks": "f.json.bak", "backups": "f.17.json", "history": "f-17.checkpoint.json"}[place]
    (folder / name).write_text(json.dumps({"version": 3, "checkpoint": {"stack": "f", "latest": former()}}))
    (folder / f"{name}.attrs").write_text('{"md5":"x"}')
    other = folder / "f-17.history.json"
    other.write_text('{"kind": "update"}')

    assert remove_clear_text(project, "f") == (folder / name,)
    left = json.loads((folder / name).read_text())
    assert "hf_" not in json.dumps(left)
    expected = former()
    fleet = expected["resources"][0]["outputs"]["fleet"]
    fleet["env"]["HF_TOKEN"] = fleet["nodes"][0]["env"]["NODE_TOKEN"] = REMOVED
    for part in ("inputs", "outputs"):
        expected["resources"][1][part]["env"] = {"HF_TOKEN": REMOVED, "NODE_TOKEN": REMOVED}
    assert left == {"version": 3, "checkpoint": {"stack": "f", "latest": expected}}
    assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert not (folder / f"{name}.attrs").exists()
    assert other.read_text() == '{"kind": "update"}'
    assert remove_clear_text(project, "f") == ()
