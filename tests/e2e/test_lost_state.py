"""A state that was lost is rebuilt from the marks in the simulated account, which is the judge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import Rehearsed
from kit.support import Said, at_work, kill, until

from orch.rehearsal.project import rehearse
from orch.stacks.errors import Conflict
from orch.stacks.plans.request import request_of
from orch.stacks.project.project import find
from orch.stacks.states import importing

pytestmark = pytest.mark.timeout(1200)

PARAMETERS = ("fleet=p5", "file=p5.yml")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """A fleet of two nodes; this folder has a copy of its key."""
    there: Rehearsed = Rehearsed.make(tmp_path_factory.mktemp("lost") / "project")
    there.fleet(2, instance_types=["g6.xlarge"], placement="any", network={"bastion": False})
    said = there.up()
    assert said.code == 0, said.err
    assert there.orch("inventory", "--list", "--rehearse").code == 0
    return there


def state(there: Rehearsed) -> Path:
    return there.path / ".orch" / "rehearsal" / "state"


def runbook(there: Rehearsed, *words: str) -> tuple[Said, dict[str, Any]]:
    said = there.orch("runbook", *words, "--rehearse", "--json", timeout=900)
    return said, json.loads(said.out)["run"] if said.out else {}


def test_a_state_deleted_by_hand_is_rebuilt_by_the_runbook_which_is_killed_in_the_middle(
    there: Rehearsed,
) -> None:
    before, instances = there.cloud.everything(), there.cloud.instances()
    said, run = runbook(there, "run", "lost-state", *PARAMETERS, "--yes")
    assert (said.code, "ORCH430" in said.err) == (6, True), said.err

    # By hand, with all copies; another clone of the folder knows as little.
    shutil.rmtree(state(there))
    shutil.copytree(there.path, there.path.with_name("another"))
    said = there.preview("p5.yml")
    (warned,) = (each for each in json.loads(said.out)["diagnostics"] if each["code"] == "ORCH434")
    assert "its state here does not record them" in warned["summary"], said.out
    said = there.up()
    assert (said.code, "ORCH434" in said.err, "--make-another" in said.err) == (9, True, True), said.err
    assert there.cloud.everything() == before

    said, run = runbook(there, "resume", str(run["id"]))
    assert (said.code, run["status"]) == (10, "waits"), said.err
    assert all(f": {each}\n" in said.err for each in instances), said.err
    assert "the SSH key is the copy in" in said.err
    assert not (state(there) / ".pulumi").exists()
    process = there.start("runbook", "resume", str(run["id"]), "--approve", "--rehearse")
    checkpoint = state(there) / ".pulumi" / "stacks" / "tests" / "p5.json"
    until(checkpoint.exists, 300, "the stack is there")
    kill(process.pid, *at_work(there.path))
    process.communicate(60)
    said, run = runbook(there, "resume", str(run["id"]))
    assert (said.code, run["status"]) == (0, "done"), said.err
    assert "the next preview shows: no changes" in said.err

    said = there.orch("preview", "p5.yml", "--rehearse", "--exit-code")
    assert said.code == 0, said.out + said.err
    assert "ORCH434" not in said.out + said.err
    assert there.cloud.everything() == before
    said = there.orch("log", "--verb", "state", "--json", "--rehearse")
    assert [each["status"] for each in json.loads(said.out)["changes"]] == ["done"], said.out
    said = there.orch("state", "import", "p5.yml", "--rehearse", "--yes")
    assert (said.code, "ORCH430" in said.err) == (9, True), said.err


def test_of_two_that_rebuild_a_state_at_once_one_does_and_the_other_leaves_nothing(there: Rehearsed) -> None:
    before = there.cloud.everything()
    shutil.rmtree(state(there))
    words = ("state", "import", "p5.yml", "--rehearse", "--yes")
    process = there.start(*words)
    until((there.path / ".orch" / "rehearsal" / "importing").exists, 120, "the first is at work")
    said = there.orch(*words)
    assert (said.code, "ORCH389" in said.err) == (9, True), said.err
    _, err = process.communicate(300)
    assert process.returncode == 0, err

    # Both have rebuilt it, and one is the first to write it.
    shutil.rmtree(state(there))
    project = rehearse(find(there.path)).project
    request = request_of(project, "p5")
    rebuilt = importing.rebuild(project, request, None, lambda _: None)
    importing.write(rebuilt, lambda _: None)
    with pytest.raises(Conflict) as refused:
        importing.write(rebuilt, lambda _: None)
    assert refused.value.code == "ORCH430"
    said = there.orch("log", "--verb", "state", "--json", "--rehearse")
    assert [each["status"] for each in json.loads(said.out)["changes"]][:2] == ["failed", "done"], said.out
    said = there.up()
    assert (said.code, "no changes" in said.out + said.err) == (0, True), said.err
    assert there.cloud.everything() == before


def test_what_another_state_has_made_is_taken_by_its_mark_alone_and_what_is_gone_is_planned_anew(
    there: Rehearsed,
) -> None:
    another: Rehearsed = Rehearsed(there.path.with_name("another"))
    shutil.rmtree(another.path / ".orch" / "rehearsal" / "keys")
    said = another.up()
    assert (said.code, "another state of the project tests" in said.err) == (9, True), said.err
    said = another.orch("state", "import", "p5.yml", "--rehearse", "--yes")
    assert (said.code, "ORCH432" in said.err) == (9, True), said.err
    (mark,) = {
        one["Value"]
        for doc in another.cloud.instances().values()
        for one in doc["Tags"]
        if one["Key"] == "orch:stack"
    }
    assert f"`--stack {mark}`" in said.err

    node, *_ = sorted(another.cloud.instances())
    another.cloud.call("TerminateInstances", {"InstanceIds": [node]})
    (template,) = another.cloud.things("launch-template")
    another.cloud.call("DeleteLaunchTemplate", {"LaunchTemplateId": template})
    words = ("state", "import", "p5.yml", "--rehearse", "--stack", mark)
    said = another.orch(*words, "--yes", "--json")
    assert said.code == 0, said.err
    (row,) = json.loads(said.out)["stacks"]
    assert [each["name"] for each in row["missing"]] == ["p5-template"]
    assert row["pending"]
    assert any("orch cannot enter them" in each for each in row["notes"]), row["notes"]
    said = another.preview("p5.yml")
    planned = {each["name"]: each["op"] for each in json.loads(said.out)["changes"] if each["op"] != "same"}
    assert len(planned) == 2, planned
    assert (planned["p5-template"], set(planned.values())) == ("create", {"create"}), planned
