"""Runbooks of the library, and one of our own, on a fleet of real containers: faults before, during and after
steps, kills, two operators at once, approvals."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kit.support import ORCH, Folder, Said, containers, docker, fleet_yaml, until

pytestmark = pytest.mark.timeout(1200)

FLEET = "lab"
NODE = f"{FLEET}-0"

COUNT = """---
name: count
summary: Write lines on a node and here.
parameters:
  node: {type: node}
  text: {default: "a; touch /tmp/pwned"}
---
```orch name=look
orch fleet show lab
```
```shell name=write host=${{ params.node }} timeout=5m
echo begun ${{ params.text }} >> /tmp/lines
until test -e /tmp/released; do sleep 0.2; done
echo ended >> /tmp/lines
```
```check
grep -q ended /tmp/lines
```
```undo
rm /tmp/lines
```
```shell name=after
echo after >> after.txt
```
```check
test -e healthy
```
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A fleet of two nodes; the last test removes it by a runbook."""
    path = tmp_path_factory.mktemp("runbooks")
    (path / "orch.yml").write_text("project: tests\n")
    (path / "runbooks").mkdir()
    folder = Folder(path)
    folder.write("fleet.yml", fleet_yaml(FLEET, 2))
    folder.write("runbooks/count.md", COUNT)
    said = folder.orch("up", "fleet.yml", "--yes", timeout=600)
    assert said.code == 0, said.err
    yield folder
    folder.orch("down", "fleet.yml", "--yes", "--force", timeout=600)
    assert containers(folder, FLEET) == {}


def runbook(lab: Folder, *words: str) -> Said:
    return lab.orch("runbook", *words, timeout=900)


def run(lab: Folder, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the run as data, and what was told."""
    said = runbook(lab, *words, "--json")
    return said.code, said.json["run"] if said.out else {}, said.err


def statuses(run: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["status"] for each in run["steps"]}


def on_node(lab: Folder, text: str, node: str = NODE) -> str:
    (name,) = (each for each in containers(lab, FLEET) if each.endswith(node.removeprefix(FLEET)))
    return docker("exec", name, "sh", "-c", text)


def cordoned(lab: Folder) -> dict[str, bool]:
    (fleet,) = lab.orch("fleet", "show", FLEET, "--json").json["fleets"]
    nodes = fleet["nodes"]
    return {each["name"]: each["status"] == "cordoned" for each in nodes}


def begun(lab: Folder, *words: str) -> subprocess.Popen[str]:
    """A run in the middle of writing on the node."""
    process = lab.start("runbook", "run", "count", f"node={NODE}", "--yes", *words)
    until(lambda: "begun" in on_node(lab, "cat /tmp/lines 2>/dev/null || true"), 120, "the step has begun")
    return process


def clean(lab: Folder) -> None:
    on_node(lab, "rm -f /tmp/lines /tmp/released")
    for name in ("after.txt", "healthy"):
        (lab.path / name).unlink(missing_ok=True)


def test_a_node_that_is_fine_is_back_and_its_evidence_is_kept(lab: Folder) -> None:
    plan = runbook(lab, "plan", "bad-node", f"fleet={FLEET}", f"node={NODE}")
    assert plan.code == 0, plan.err
    assert f"orch cordon {NODE} --fleet {FLEET} --reason 'runbook bad-node'" in plan.out
    assert not any(cordoned(lab).values())
    words = ("bad-node", f"fleet={FLEET}", f"node={NODE}", "--yes", "--report", "bad.md")
    code, waiting, err = run(lab, "run", *words)
    assert (code, waiting["status"]) == (10, "waits"), err
    assert cordoned(lab) == {NODE: True, f"{FLEET}-1": False}
    code, done, err = run(lab, "resume", str(waiting["id"]), "verdict=fine", "--report", "bad.md")
    assert (code, done["status"]) == (0, "done"), err
    assert not any(cordoned(lab).values())
    report = (lab.path / "bad.md").read_text()
    assert "| evidence | lab-0 | done |" in report
    assert "load average" in report
    assert "- verdict: fine" in report


def test_a_node_that_does_not_answer_is_judged_all_the_same_and_let_back_later(lab: Folder) -> None:
    (node,) = (each for each in containers(lab, FLEET) if each.endswith("-1"))
    docker("pause", node)
    words = ("bad-node", f"fleet={FLEET}", f"node={FLEET}-1", "verdict=fine")
    try:
        code, failed, err = run(lab, "run", *words, "--yes")
    finally:
        docker("unpause", node)
    assert code == 6, err
    assert "step uncordon failed: it ended with exit code 7" in err
    assert statuses(failed)["evidence"] == "done"
    code, done, err = run(lab, "run", *words, "--yes")
    assert (code, done["id"], done["calls"]) == (0, failed["id"], 2), err
    assert not any(cordoned(lab).values())


def test_a_kill_in_the_middle_of_a_step_on_a_node_does_nothing_twice(lab: Folder) -> None:
    clean(lab)
    process = begun(lab)
    # The node is a container on this machine: its processes are seen here, too.
    words: list[bytes] = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended since
            words.append(each.read_bytes())
    assert any(b"/tmp/released" in each for each in words)
    assert not any(b"; touch /tmp/pwned" in each for each in words)
    process.kill()
    process.wait()
    (killed,) = (each for each in runbook(lab, "status", "--json").json["runs"] if each["runbook"] == "count")
    assert killed["status"] == "interrupted"
    assert statuses(killed) == {"look": "done", "write": "interrupted", "after": "not begun"}
    (lab.path / "healthy").touch()
    with subprocess.Popen(
        [*ORCH, "runbook", "resume", str(killed["id"])], cwd=lab.path, stdin=subprocess.DEVNULL
    ):
        on_node(lab, "sleep 2; touch /tmp/released")
    done = runbook(lab, "status", str(killed["id"]), "--json").json["run"]
    assert done["status"] == "done", done
    assert on_node(lab, "cat /tmp/lines").split("\n")[:2] == ["begun a; touch /tmp/pwned", "ended"]
    assert on_node(lab, "grep -c begun /tmp/lines").strip() == "1"
    assert on_node(lab, "ls /tmp/pwned 2>&1 || true").endswith("No such file or directory\n")
    assert (lab.path / "after.txt").read_text() == "after\n"


def test_two_operators_who_start_the_same_at_once_are_one(lab: Folder) -> None:
    clean(lab)
    (lab.path / "healthy").touch()
    first = begun(lab)
    second = runbook(lab, "run", "count", f"node={NODE}", "--yes")
    assert second.code == 9, second.err
    assert "ORCH389" in second.err
    assert "is under way" in second.err
    on_node(lab, "touch /tmp/released")
    out, err = first.communicate(timeout=300)
    assert first.returncode == 0, out + err
    assert on_node(lab, "grep -c begun /tmp/lines").strip() == "1"


def test_a_check_that_fails_after_all_was_done_stops_and_is_mended_by_hand(lab: Folder) -> None:
    clean(lab)
    on_node(lab, "touch /tmp/released")
    code, failed, err = run(lab, "run", "count", f"node={NODE}", "text=other", "--yes")
    assert code == 6
    assert "step after failed: its check does not hold" in err
    (lab.path / "healthy").touch()
    code, done, err = run(lab, "resume", str(failed["id"]))
    assert (code, done["status"]) == (0, "done"), err
    assert (lab.path / "after.txt").read_text() == "after\n"
    assert on_node(lab, "cat /tmp/lines") == "begun other\nended\n"


def test_a_failure_is_taken_back_on_the_node_too(lab: Folder) -> None:
    clean(lab)
    on_node(lab, "touch /tmp/released")
    code, failed, err = run(lab, "run", "count", f"node={NODE}", "text=third", "--yes", "--undo-on-failure")
    assert (code, failed["status"]) == (6, "failed"), err
    assert statuses(failed) == {"look": "done", "write": "undone", "after": "failed"}
    assert on_node(lab, "ls /tmp/lines 2>&1 || true").endswith("No such file or directory\n")


def planted_lock(lab: Folder) -> Path:
    """As a machine leaves it that went away in the middle of an `up`."""
    folder = lab.path / ".orch/state/.pulumi/locks/organization/tests" / FLEET
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "0000.json"
    holder = {"pid": 4711, "username": "ada", "hostname": "elsewhere", "timestamp": "2026-01-01T00:00:00Z"}
    lock.write_text(json.dumps(holder))
    return lock


def test_a_broken_lock_goes_when_somebody_has_approved_that(lab: Folder) -> None:
    lock = planted_lock(lab)
    assert lab.orch("up", "fleet.yml", "--yes").code == 9
    code, waiting, err = run(lab, "run", "broken-lock", f"fleet={FLEET}", "--yes")
    assert (code, waiting["status"]) == (10, "waits"), err
    assert "ada@elsewhere" in err
    assert lock.exists()
    shown = runbook(lab, "status", str(waiting["id"])).out
    assert re.search(r"3\. gone  waits", shown)
    code, done, err = run(lab, "resume", str(waiting["id"]), "--approve")
    assert (code, done["status"]) == (0, "done"), err
    assert not lock.exists()
    assert lab.orch("up", "fleet.yml", "--yes").code == 0


def test_an_upgrade_does_not_begin_while_a_change_is_pending(lab: Folder) -> None:
    lab.write("fleet.yml", fleet_yaml(FLEET, 3))
    code, failed, err = run(lab, "run", "engine-upgrade", "files=fleet.yml", "--yes")
    assert code == 6
    assert "step before failed: it ended with exit code 10" in err
    lab.write("fleet.yml", fleet_yaml(FLEET, 2))
    code, waiting, err = run(lab, "run", "engine-upgrade", "files=fleet.yml", "--yes")
    assert (code, waiting["status"], waiting["id"]) == (10, "waits", failed["id"]), err
    code, done, err = run(lab, "resume", str(waiting["id"]), "--approve")
    assert (code, done["status"]) == (0, "done"), err
    assert (lab.path / ".orch/backup/before-upgrade.tgz").stat().st_size > 1000


def test_a_new_passphrase_and_a_new_place_of_the_state_change_nothing(lab: Folder) -> None:
    code, waiting, err = run(lab, "run", "key-rotation", "--yes")
    assert code == 10, err
    (passphrase,) = lab.path.glob(".orch/*passphrase*")
    former = passphrase.read_text()
    code, done, err = run(lab, "resume", str(waiting["id"]), "--approve")
    assert (code, statuses(done)["rotate"], statuses(done)["rotate-variable"]) == (0, "done", "skipped"), err
    assert passphrase.read_text() != former
    (lab.path / "elsewhere").mkdir()
    to = f"to=file://{lab.path}/elsewhere"
    code, waiting, err = run(lab, "run", "move-state", to, "files=fleet.yml", "--yes")
    assert code == 10, err
    code, done, err = run(lab, "resume", str(waiting["id"]), "--approve")
    assert (code, done["status"]) == (0, "done"), err
    assert "elsewhere" in (lab.path / "orch.yml").read_text()
    assert lab.orch("preview", "fleet.yml", "--exit-code").code == 0


def test_a_cost_alarm_stops_a_run_only_where_that_was_decided_and_agreed(lab: Folder) -> None:
    lab.write("long.yml", "type: task\nname: long\nimage: orch/mpi\ncommands: ['sleep 3000']\n")
    assert lab.orch("run", "long.yml", "--detach").code == 0
    words = ("cost-alarm", f"fleet={FLEET}", "decision=stop", "run=long")
    code, waiting, err = run(lab, "run", *words, "--yes")
    assert (code, waiting["status"]) == (10, "waits"), err
    assert [each["status"] for each in lab.orch("ps", "--json").json["runs"]] != ["terminated"]
    code, done, err = run(lab, "resume", str(waiting["id"]), "--approve")
    assert code == 0, err
    assert statuses(done)["stop"] == "done"
    assert statuses(done)["remove"] == "skipped"
    assert [each["status"] for each in lab.orch("ps", "--json").json["runs"]] == ["terminated"]


def test_the_end_of_a_fleet_waits_for_its_runs(lab: Folder) -> None:
    assert lab.orch("run", "long.yml", "--detach").code == 0
    words = ("end-of-fleet", f"fleet={FLEET}", "data=nothing-to-keep")
    code, waiting, err = run(lab, "run", *words, "--yes")
    assert (code, waiting["status"]) == (10, "waits"), err
    code, _, err = run(lab, "resume", str(waiting["id"]), "--approve")
    assert code == 6, err
    assert "step down failed: it ended with exit code 9" in err
    # By their ids: names have a digest of where the state began, and it has moved.
    nodes = set(lab.orch("fleet", "ids", FLEET).out.split())
    assert len(nodes & on_this_machine()) == 2
    assert lab.orch("stop", "long").code == 0
    code, done, err = run(lab, "resume", str(waiting["id"]))
    assert (code, done["status"]) == (0, "done"), err
    assert nodes & on_this_machine() == set()


def on_this_machine() -> set[str]:
    """Ids and names of the containers here."""
    return set(docker("ps", "-a", "--no-trunc", "--format", "{{.ID}} {{.Names}}").split())
