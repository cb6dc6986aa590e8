"""A saved plan is applied exactly or refused: one row for each thing that may happen between plan and apply.

Real engine, simulated account, whose own list of nodes is the judge.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.cloud_engine import quiet
from kit.clouds.rehearsals import Rehearsed
from kit.forges.dangers import compare_comment, node_under_512_gpus
from kit.forges.forges import BOT, GitHubServer
from kit.support import Said

from orch.catalog.load import SHIPPED
from orch.rehearsal.project import rehearse
from orch.review.markdown import markdown
from orch.spec.loader.load import load_paths
from orch.stacks.engine.install import require
from orch.stacks.errors import Conflict
from orch.stacks.plans.guard import Guard
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.recorder import Recorder
from orch.stacks.plans.request import FleetRequest
from orch.stacks.plans.saved_plan import SavedPlan
from orch.stacks.project.project import find
from orch.stacks.provisioning import operations

pytestmark = pytest.mark.timeout(600)

KIND = "c7i.8xlarge"
PLAN = "plan.json"
SECRET = "hunter2-hunter2-hunter2"
VOLUME = (
    "type: volume\nname: data\nbackend: aws\nregion: us-east-1\navailability_zone: use1-az2\nsize: 100GB\n"
)
SMALL: dict[str, Any] = {"instance_types": [KIND], "env": {"HF_TOKEN": SECRET}}


def write(there: Rehearsed, nodes: int) -> None:
    there.fleet(nodes, **SMALL)


def save(there: Rehearsed, *words: str) -> Said:
    said = there.orch("preview", "p5.yml", "--rehearse", "--out", PLAN, *words)
    assert said.code == 0, said.err
    return said


def apply(there: Rehearsed, *words: str, plan: str = PLAN, **more: Any) -> Said:
    return there.orch("up", "--plan", plan, "--rehearse", *words, **more)


def nodes(there: Rehearsed) -> list[str]:
    return there.names(KIND)


def copied(there: Rehearsed, folder: Path) -> Rehearsed:
    shutil.copytree(there.path, folder)
    return Rehearsed(folder)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, engine: None) -> tuple[Rehearsed, Said, Said]:
    """A fleet of one node and a volume, made by a saved plan in another checkout than that of the plan: what
    the preview and the `up` said."""
    folder = tmp_path_factory.mktemp("first")
    there: Rehearsed = Rehearsed.make(folder / "planned")
    write(there, 1)
    there.write("data.yml", VOLUME)
    said = there.orch("preview", ".", "--rehearse", "--out", "first.json", "--out", "comment.md")
    there = copied(there, folder / "applied")
    return there, said, apply(there, plan="first.json")


@pytest.fixture(scope="module")
def lab(first: tuple[Rehearsed, Said, Said]) -> Rehearsed:
    """The same fleet, and a plan for a second node that is not applied."""
    there = first[0]
    write(there, 2)
    save(there)
    return there


def test_a_plan_is_applied_as_it_was_approved(first: tuple[Rehearsed, Said, Said]) -> None:
    there, preview, up = first
    assert preview.code == 0, preview.err
    assert "written: first.json" in preview.err
    assert up.code == 0, up.err
    assert [line.partition(":")[0] for line in up.out.splitlines()] == ["volume data", "fleet p5"]
    assert nodes(there) == ["p5-0"]
    assert there.unrecorded() == {}


def test_the_file_and_the_comment_tell_what_was_planned(first: tuple[Rehearsed, Said, Said]) -> None:
    there = first[0]
    text = (there.path / "first.json").read_text()
    assert [each["name"] for each in json.loads(text)["stacks"]] == ["data", "p5"]
    planned = json.loads(text)["stacks"][1]
    assert planned["summary"]["create"] == len(planned["operations"])
    assert planned["states"]["p5"]["resources"] == {}
    assert SECRET not in text
    assert str(there.path) not in text
    last = (there.path / "comment.md").read_text().splitlines()[-1]
    assert last.startswith("Plan ")
    assert "serial of the state: data 0, p5 0" in last
    assert json.loads(text)["terms"]["expires"] in last


def test_what_was_applied_is_not_applied_again(lab: Rehearsed) -> None:
    said = apply(lab, plan="first.json")
    assert said.code == 9
    assert "ORCH394" in said.err
    assert "was applied already" in said.err


# Rows after which nothing has changed: they share one plan.


@contextmanager
def file_changed(there: Rehearsed, folder: Path) -> Iterator[dict[str, str]]:
    file = there.path / "p5.yml"
    before = file.read_text()
    file.write_text(before + "\n")
    yield {}
    file.write_text(before)


@contextmanager
def price_changed(there: Rehearsed, folder: Path, kind: str = KIND) -> Iterator[dict[str, str]]:
    lines = (SHIPPED / "prices-aws.csv").read_text().splitlines()
    dear = [
        f"{','.join(line.split(',')[:2])},99.5,{line.split(',')[3]}"
        if line.startswith(f"{kind},us-east-1,")
        else line
        for line in lines
    ]
    assert dear != lines
    (folder / "prices-aws.csv").write_text("\n".join(dear) + "\n")
    yield {"ORCHCTL_CATALOG": str(folder)}


@contextmanager
def drifted(there: Rehearsed, folder: Path) -> Iterator[dict[str, str]]:
    (node,) = there.nodes(KIND)
    (before,) = [
        each["Value"] for each in there.cloud.instances()[node]["Tags"] if each["Key"] == "orch:fleet"
    ]
    there.cloud.call("CreateTags", {"Resources": [node], "Tags": [{"Key": "orch:fleet", "Value": "hand"}]})
    yield {}
    there.cloud.call("CreateTags", {"Resources": [node], "Tags": [{"Key": "orch:fleet", "Value": before}]})


@contextmanager
def other_engine(there: Rehearsed, folder: Path) -> Iterator[dict[str, str]]:
    """The same engine, which says that it is another version."""
    import os

    real, file = require().command, folder / "pulumi"
    file.write_text(
        f'#!/bin/sh\n[ "$1" = version ] && {{ echo v3.260.9; exit; }}\nexec {shlex.quote(str(real))} "$@"\n'
    )
    file.chmod(0o755)
    yield {"PATH": f"{folder}:{os.environ['PATH']}"}


@contextmanager
def edited(there: Rehearsed, folder: Path) -> Iterator[dict[str, str]]:
    file = there.path / PLAN
    before = file.read_text()
    file.write_text(before.replace('"op": "create"', '"op": "update"', 1))
    yield {}
    file.write_text(before)


@contextmanager
def state_moved(there: Rehearsed, folder: Path) -> Iterator[dict[str, str]]:
    """Somebody brings up a tag more, from another checkout of an older file."""
    file = there.path / "p5.yml"
    before = file.read_text()
    there.fleet(1, **SMALL, tags={"owner": "ada"})
    said = there.up()
    assert said.code == 0, said.err
    file.write_text(before)
    yield {}


ROWS: dict[str, tuple[Any, int, tuple[str, ...]]] = {
    "a file changed by one byte": (file_changed, 9, ("ORCH393", "file p5.yml: ")),
    "a price changed": (price_changed, 9, ("ORCH393", "price of p5-[0-1]: $", "-> $99.50 an hour")),
    "drift of one tag": (
        drifted,
        9,
        (
            "ORCH393",
            "drift of p5-0 tags.orch:fleet: as registered (p5) -> found hand",
            "instance p5-0: no change -> update (",
        ),
    ),
    "another engine": (other_engine, 9, ("ORCH393", "engine: ", "-> 3.260.9")),
    "a plan edited by hand": (edited, 3, ("ORCH392", "edited or cut short")),
    # The last one: it is no longer the state of the plan.
    "the state moved": (state_moved, 9, ("ORCH393", "state of p5: serial ", "recorded otherwise")),
}


@pytest.mark.parametrize("row", [each for each in ROWS if each != "the state moved"])
def test_what_is_not_as_it_was_planned_is_refused_and_changes_nothing(
    lab: Rehearsed, tmp_path: Path, row: str
) -> None:
    refused(lab, tmp_path, row)


def refused(there: Rehearsed, folder: Path, row: str) -> None:
    happen, code, told = ROWS[row]
    with happen(there, folder) as environment:
        before, calls = there.checkpoint().read_bytes(), len(there.cloud.calls)
        said = apply(there, env=environment)
        made = [
            each.action for each in there.cloud.calls[calls:] if each.action.startswith(("Run", "Create"))
        ]
    assert said.code == code, said.err
    for words in told:
        assert words in said.err, words
    assert made == []
    assert there.checkpoint().read_bytes() == before
    assert nodes(there) == ["p5-0"]


def test_a_plan_that_expired_is_refused(lab: Rehearsed, tmp_path: Path) -> None:
    said = lab.orch("preview", "p5.yml", "--rehearse", "--out", "short.json", "--expires", "1s")
    assert said.code == 0, said.err
    expires = datetime.fromisoformat(
        json.loads((lab.path / "short.json").read_text())["terms"]["expires"].replace("Z", "+00:00")
    )
    while datetime.now(timezone.utc) < expires:
        time.sleep(0.1)
    said = apply(lab, plan="short.json")
    assert (said.code, "has expired" in said.err) == (9, True)
    assert "ORCH394" in said.err


def test_a_plan_edited_by_hand_is_refused_and_its_pull_request_says_so(lab: Rehearsed) -> None:
    # Who edits the file can make its digest anew, but has not the key of the stack for its seal.
    data = json.loads((lab.path / PLAN).read_text())
    del data["digest"]
    (stack,) = data["stacks"]
    assert stack["decisions"]["images"]
    stack["decisions"]["images"] = dict.fromkeys(stack["decisions"]["images"], "ami-of-mallory")
    (lab.path / "forged.json").write_text(SavedPlan.model_validate(data).text())
    said = apply(lab, "--result", "result.json", plan="forged.json")
    assert (said.code, nodes(lab)) == (3, ["p5-0"]), said.err
    assert "its seal is another one" in said.err
    body = markdown(node_under_512_gpus()).replace("path=infra", "path=p5.yml")
    merged = "d" * 40
    with GitHubServer().running() as server:
        assert isinstance(server, GitHubServer)
        server.add_pull(12, "4f" * 20)
        server.add_comment(12, BOT, body)
        server.merge(12, merged)
        environment = {
            "GITHUB_ACTIONS": "true",
            "GITHUB_API_URL": server.url,
            "GITHUB_TOKEN": "workflow",
            "GITHUB_REPOSITORY": server.repo,
            "GITHUB_EVENT_PATH": "",
            "GITHUB_REF": "refs/heads/main",
            "GITHUB_SHA": merged,
            "GITHUB_RUN_ID": "77",
            "GITLAB_CI": "",
        }
        words = ("ci", "comment", "--result", "result.json", "--path", "p5.yml")
        told = lab.orch(*words, env=environment)
        assert told.out == "pull request 12: updated\n", told.err
        (comment,) = server.comments[12]
    danger = "ORCH392: the plan of the fleet p5 was edited"
    compare_comment("plan-edited-by-hand", comment["body"], danger)


def test_a_plan_of_something_else_is_refused(lab: Rehearsed) -> None:
    other: Rehearsed = Rehearsed.make(lab.path / "other")
    (other.path / "orch.yml").write_text("project: elsewhere\n")
    write(other, 2)
    for words, told in (
        (["other/p5.yml", "--rehearse"], "is of the project tests, this one is elsewhere"),
        (["orch.yml", "--rehearse"], "there is no fleet in it"),
        (["nowhere.yml", "--rehearse"], "is not here"),
        ([], "is of a rehearsal"),
    ):
        said = lab.orch("up", "--plan", PLAN, *words)
        assert said.code == 3, said.err
        assert told in said.err
    for word in ("--upgrade", "--accept-drift"):
        said = apply(lab, word)
        assert (said.code, "does not go with --plan" in said.err) == (2, True)
    assert lab.orch("up").code == 2


def test_a_plan_that_was_killed_or_failed_is_void(lab: Rehearsed, tmp_path: Path) -> None:
    there = copied(lab, tmp_path / "killed")
    there.killed_at({"action": "RunInstances", "when": "after"}, "up", "--plan", PLAN)
    said = apply(there)
    assert said.code == 9
    assert "ORCH394" in said.err
    assert "was begun, and has not ended" in said.err
    assert "a call was at work on p5-1" in said.err
    save(there)  # what the killed call had begun is recorded still, and cleared up before the plan is applied
    said = apply(there)
    assert said.code == 0, said.err
    assert "continuing it" in said.err
    assert nodes(there) == ["p5-0", "p5-1"]
    assert there.unrecorded() == {}
    there = copied(lab, tmp_path / "failed")
    there.cloud.turn(capacity={f"{KIND}@us-east-1{zone}": 1 for zone in "abcdef"})
    said = apply(there)
    assert said.code == 5, said.err
    assert "is void; recorded now: " in said.err
    assert nodes(there) == ["p5-0"]
    there.cloud.turn(capacity={})
    said = apply(there)
    assert said.code == 9
    assert "was begun and failed" in said.err
    # What is new is planned and approved anew.
    save(there)
    assert apply(there).code == 0
    assert nodes(there) == ["p5-0", "p5-1"]


def test_of_two_at_once_one_applies(lab: Rehearsed, tmp_path: Path) -> None:
    there = copied(lab, tmp_path / "two")
    calls = [there.start("up", "--plan", PLAN, "--rehearse") for _ in range(2)]
    said = [(each.communicate(300), each.returncode) for each in calls]
    assert sorted(code for _, code in said) == [0, 9], said
    assert nodes(there) == ["p5-0", "p5-1"]
    assert there.unrecorded() == {}


def test_a_price_list_without_a_price_of_the_plan_is_told_and_a_plan_without_changes_does_nothing(
    lab: Rehearsed, tmp_path: Path
) -> None:
    there = copied(lab, tmp_path / "copy")
    with price_changed(there, tmp_path, kind="p5.48xlarge") as environment:
        said = apply(there, env=environment)
    assert said.code == 0, said.err
    assert "the price list of aws is another one" in said.err
    assert nodes(there) == ["p5-0", "p5-1"]
    assert "no changes" in save(there).out
    before = there.checkpoint().read_bytes()
    for _ in range(2):
        said = apply(there)
        assert (said.code, "no changes" in said.out) == (0, True), said.err
    assert there.checkpoint().read_bytes() == before


def test_a_state_that_moved_is_refused(lab: Rehearsed, tmp_path: Path) -> None:
    refused(copied(lab, tmp_path / "moved"), tmp_path, "the state moved")


# The fences


def test_the_engine_and_the_guard_stop_what_the_comparison_could_not_see(
    lab: Rehearsed, tmp_path: Path
) -> None:
    there = copied(lab, tmp_path / "fences")
    project = rehearse(find(there.path), nodes=False).project

    def request(count: int) -> FleetRequest:
        write(there, count)
        (fleet,) = load_paths([there.path / "p5.yml"]).require().fleets
        return FleetRequest(fleet, there.path)

    def guard(plan: Plan, name: str, engine_plan: Path | None) -> Guard:
        assert plan.prepared is not None
        recorded = plan.prepared.recorded
        return Guard(plan.prepared.stack, name * 12, recorded, exact=True, engine_plan=engine_plan)

    engine_plan = tmp_path / "engine.json"
    operations.preview(project, request(2), quiet, recorder=Recorder(engine_plan))
    three = request(3)
    plan = operations.preview(project, three, quiet)
    with pytest.raises(Conflict, match="the engine would do something else"):
        operations.up(project, three, quiet, plan=plan, guard=guard(plan, "0", engine_plan))
    assert "p5-2" not in nodes(there)
    # Somebody else is quicker, after the comparison and before the lock.
    plan = operations.preview(project, three, quiet)
    held = guard(plan, "1", None)
    operations.up(project, request(2), quiet)
    with pytest.raises(Conflict, match="somebody changed p5 since"):
        operations.up(project, three, quiet, plan=plan, guard=held)
    assert nodes(there) == ["p5-0", "p5-1"]


def test_a_preview_of_what_was_never_up_writes_nothing_to_the_state(tmp_path: Path, engine: None) -> None:
    there: Rehearsed = Rehearsed.make(tmp_path)
    write(there, 1)
    there.write("data.yml", VOLUME)
    state = tmp_path / ".orch/rehearsal/state"
    for words in (("p5.yml", "--json"), (".", "--markdown")):
        said = there.orch("preview", *words, "--rehearse")
        assert said.code == 0, said.err
        assert [each for each in state.rglob("*") if each.is_file()] == []
    assert list(there.path.glob(".orch/**/Pulumi.p5.yaml")) == []
    assert there.cloud.everything() == {}


def test_a_saved_plan_writes_nothing_to_the_state_and_an_up_makes_the_key_of_its_seal(
    tmp_path: Path, engine: None
) -> None:
    there: Rehearsed = Rehearsed.make(tmp_path)
    write(there, 1)
    state = tmp_path / ".orch/rehearsal/state"

    def files() -> dict[Path, bytes]:
        return {each: each.read_bytes() for each in state.rglob("*") if each.is_file()}

    save(there)
    assert files() == {}
    plan = json.loads((tmp_path / PLAN).read_text())["stacks"][0]
    assert plan["lineage"] == ""
    said = apply(there)
    assert said.code == 0, said.err
    before = files()
    write(there, 2)
    save(there)
    assert files() == before
    assert json.loads((tmp_path / PLAN).read_text())["stacks"][0]["lineage"] != ""


def test_a_plan_of_what_was_never_up_chooses_no_machine_image(tmp_path: Path, engine: None) -> None:
    """Nothing proves who wrote it: whoever has the artefact can make its digest and its seal anew."""
    there: Rehearsed = Rehearsed.make(tmp_path)
    write(there, 1)
    save(there)
    data = json.loads((tmp_path / PLAN).read_text())
    del data["digest"]
    (stack,) = data["stacks"]
    stack["decisions"]["images"] = dict.fromkeys(stack["decisions"]["images"], "ami-of-mallory")
    forged = SavedPlan.model_validate(data)
    own = forged.stacks[0].sealed(forged.terms, "")
    (tmp_path / PLAN).write_text(forged.model_copy(update={"stacks": (own,)}).text())
    said = apply(there)
    assert said.code == 9, said.err
    assert "ami-of-mallory" in said.err
    assert nodes(there) == []
