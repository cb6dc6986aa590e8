"""`orch preview` of a folder and as a review, through the real engine on a simulated account."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from kit.clouds.rehearsals import Rehearsed
from kit.support import Folder, Said, kill, until

SECRET = "hunter2-hunter2-hunter2"
VOLUME = (
    "type: volume\nname: data\nbackend: aws\nregion: us-east-1\navailability_zone: {zone}\nsize: 100GB\n"
    "protect: false\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, engine: None) -> Rehearsed:
    """One fleet up, one changed in its file, one over its budget, one open to the world, a volume, a task,
    and a file that does not read."""
    there: Rehearsed = Rehearsed.make(tmp_path_factory.mktemp("folder"))
    there.fleet(2, name="calm")
    there.fleet(2, name="disk")
    there.write("data.yml", VOLUME.format(zone="use1-az2"))
    for name in ("calm", "disk", "data"):
        said = there.up(f"{name}.yml")
        assert said.code == 0, said.err
    there.write("data.yml", VOLUME.format(zone="use1-az4"))
    there.fleet(2, name="disk", resources={"disk": "700GB"})
    there.fleet("1..9", name="dear", budget={"hourly": 100})
    there.fleet(1, name="open", network={"ssh_cidrs": ["0.0.0.0/0"]}, env={"HF_TOKEN": SECRET})
    there.write("broken.yml", f"type: fleet\nname: broken\nnodez: 3  # {SECRET}\nbackends: [aws]\nnodes: 1\n")
    there.write("task.yml", "type: task\nname: train\ncommands: [date]\nnodes: 1\n")
    there.write("other.yml", "kind: not ours\n")
    return there


def preview(folder: Rehearsed, *words: str) -> Said:
    return folder.orch("preview", ".", "--rehearse", *words)


@pytest.fixture(scope="module")
def comment(folder: Rehearsed) -> Said:
    return preview(folder, "--markdown")


@pytest.fixture(scope="module")
def data(folder: Rehearsed) -> Said:
    return preview(folder, "--json")


def test_each_stack_is_planned_and_a_failure_stands_in_its_place(comment: Said) -> None:
    assert comment.code == 3, comment.err
    cells = [line.strip("| ").split(" | ") for line in comment.out.splitlines() if line.startswith("| f")]
    rows = {row[0]: row[1] for row in cells if len(row) == 7}
    assert rows["file ./broken.yml"] == "no plan"
    assert rows["fleet calm"] == "no changes"
    assert rows["fleet dear"] == "refused"
    assert rows["fleet disk"] == "dangerous"
    assert rows["fleet open"] == "dangerous"


def test_each_danger_is_in_the_first_lines(comment: Said) -> None:
    first = "\n".join(comment.out.splitlines()[:25])
    assert "**data** · volume data: the volume is destroyed and made anew" in first
    assert (
        "disk-\\[0-1\\]: 2 running nodes are destroyed and made anew: root disk 100 GB -&gt; 700 GB" in first
    )
    assert "0.0.0.0/0 lets the whole world knock at SSH" in first
    assert "over the budget of &#36;100" in first
    assert "nodez" in first


def test_no_secret_reaches_the_comment_nor_the_json_nor_the_page(
    folder: Rehearsed, comment: Said, data: Said
) -> None:
    page = preview(folder, "--html")
    for said in (comment, page, data):
        assert said.code == 3
        assert SECRET not in said.out
    assert page.out.startswith("<!DOCTYPE html>")


def test_the_bytes_are_the_same_each_time_and_go_into_a_file(folder: Rehearsed, comment: Said) -> None:
    again = preview(folder, "--markdown", "--out", "comment.md")
    assert (again.code, again.out) == (3, "")
    assert (folder.path / "comment.md").read_text() == comment.out
    assert "written: comment.md" in again.err


def test_the_json_of_a_folder_has_one_object_with_all_stacks(data: Said) -> None:
    told = json.loads(data.out)
    assert (told["schema"], told["path"], told["exit_code"]) == (1, ".", 3)
    names = [each.get("fleet") or each.get("volume") or each.get("file") for each in told["stacks"]]
    assert names == ["./broken.yml", "calm", "data", "dear", "disk", "open"]
    assert [each["exit_code"] for each in told["stacks"]] == [3, 0, 0, 4, 0, 0]
    assert [each["where"] for each in told["stacks"]][1:3] == ["./calm.yml:1", "./data.yml:1"]
    calm = told["stacks"][1]
    assert calm["summary"]["same"] > 5
    assert calm["verdict"] == "unchanged"
    assert told["stacks"][3]["diagnostics"][0]["code"] == "ORCH281"


def test_a_file_keeps_its_json(folder: Rehearsed) -> None:
    said = folder.preview("calm.yml")
    assert said.code == 0
    assert list(json.loads(said.out))[:3] == ["schema", "fleet", "stack"]


def test_the_text_of_a_folder_has_the_stacks_in_order(folder: Rehearsed) -> None:
    said = preview(folder)
    assert said.code == 3
    heads = [line for line in said.out.splitlines() if line.startswith("fleet ")]
    assert heads == ["fleet calm", "fleet dear", "fleet disk", "fleet open"]
    assert "broken.yml:3:1: error" in said.err


def test_one_file_as_a_review_is_that_stack_alone(folder: Rehearsed) -> None:
    said = folder.orch("preview", "calm.yml", "--rehearse", "--markdown")
    assert said.code == 0, said.err
    assert said.out.splitlines()[0] == "<!-- orch:plan v1 project=tests path=calm.yml -->"
    assert said.out.splitlines()[1].startswith("### ✅ no changes")
    assert "<details>" not in said.out


def test_pending_changes_give_10_only_where_nothing_is_worse(folder: Rehearsed, tmp_path: Path) -> None:
    ways = {"calm.yml": 0, "disk.yml": 10}
    for file, code in ways.items():
        said = folder.orch(
            "preview", file, "--rehearse", "--exit-code", "--html", "--out", str(tmp_path / "x.html")
        )
        assert said.code == code, said.err
    assert preview(folder, "--exit-code").code == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--markdown", "--html"], "it does not go with --markdown"),
        (["--json", "--markdown"], "it does not go with --json"),
        (["--out", "plan.txt"], "say what to write to plan.txt: --markdown, --html or --json"),
        (["--markdown", "--out", "a.md", "--out", "b.md"], "with --markdown, one file is written"),
        (["--markdown", "--expires", "3d"], "it goes with a saved plan"),
        (["--out", "plan.json", "--expires", "off"], "a plan expires"),
        (["--untrusted", "--html"], "do not go with it"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    folder: Rehearsed, words: list[str], told: str
) -> None:
    said = folder.orch("preview", ".", *words)
    assert (said.code, said.out) == (2, "")
    assert told in " ".join(said.err.split())
    assert not (folder.path / "plan.json").exists()


def test_a_file_that_cannot_be_written_is_told(folder: Rehearsed) -> None:
    said = folder.orch("preview", "calm.yml", "--rehearse", "--markdown", "--out", "nowhere/comment.md")
    assert said.code == 2
    assert "nowhere/comment.md: error: the file cannot be written\n  No such file or directory\n" in said.err
    assert "hint: name a file in a folder that you may write to" in said.err


def test_sigterm_ends_all_engines_and_writes_nothing(folder: Rehearsed) -> None:
    words = ("preview", ".", "--rehearse", "--markdown", "--out", "stopped.md")
    process = Folder(folder.path).start(*words)
    until(lambda: bool(folder.at_work("--non-interactive")), 60, "an engine is at work")
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert not (folder.path / "stopped.md").exists()
    until(lambda: not folder.at_work("--non-interactive"), 30, "no engine is left")


def test_sigterm_of_one_stack_is_told(folder: Rehearsed) -> None:
    """A folder of one stack is planned in the process itself, and a signal may come between two engines."""
    (folder.path / "one").mkdir()
    shutil.copy(folder.path / "calm.yml", folder.path / "one")
    process = Folder(folder.path).start("preview", "one", "--rehearse")
    assert process.stderr is not None
    first = process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    out, told = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, ""), told
    assert "rehearsal: " in first
    assert told.splitlines()[-1] == "interrupted"


@pytest.mark.skipif(
    (os.cpu_count() or 1) < 2, reason="one core plans one stack after the other, in one process"
)
def test_a_process_that_is_killed_is_a_failure_of_its_stack_alone(folder: Rehearsed) -> None:
    process = Folder(folder.path).start("preview", ".", "--rehearse", "--json")

    def children() -> list[int]:
        task = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        return [int(each) for each in task.read_text().split()]

    until(lambda: len(folder.at_work("--non-interactive")) > 0 and len(children()) > 0, 60, "a child plans")
    kill(children()[0])
    out, told = process.communicate(timeout=120)
    data = json.loads(out)
    verdicts = [each["verdict"] for each in data["stacks"][1:]]
    assert verdicts.count("failed") == 1, told
    assert data["exit_code"] == process.returncode
    assert process.returncode == 5
