"""The quickstart's files as the README uses them."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kit.support import ORCH, Folder, containers, until

from orch.cli.driver.background import LOG


@pytest.mark.timeout(900)  # the fleet may be brought up for it
def test_training_ends_done_with_exit_code_0_on_both_nodes(quickstart: Folder) -> None:
    said = quickstart.orch("run", "train.yml", "--json", timeout=280)
    assert said.code == 0, said.err
    run = said.json
    assert (run["schema"], run["status"]) == (1, "done")
    assert [(n["rank"], n["node"], n["exit_code"]) for n in run["nodes"]] == [
        (0, "laptop-0", 0),
        (1, "laptop-1", 0),
    ]
    assert run["started_at"] < run["finished_at"]

    logs = quickstart.orch("logs", run["run"])
    assert logs.code == 0, logs.err
    for rank in (0, 1):
        (proof,) = [line for line in logs.out.splitlines() if f"[rank {rank}] weights" in line]
        assert "identical on 2 ranks" in proof
    assert "times lower: ok" in logs.out

    # Nodes of this machine cost nothing; whose time they were is counted all the same.
    cost = quickstart.orch("cost", "--by", "run", "--json")
    assert cost.code == 0, cost.err
    groups = {each["name"]: each for each in cost.json["groups"]}
    mine = groups[f"{run['run']} ({run['id']})"]
    assert 0 < mine["busy_node_hours"] == mine["node_hours"]
    assert mine["node_hours"] + groups["(idle)"]["node_hours"] <= cost.json["total"]["node_hours"] + 0.001
    assert (cost.json["total"]["cost"], cost.json["total"]["unpriced_node_hours"]) == (0, 0)


def test_the_mpi_program_checks_its_ring_over_both_nodes(quickstart: Folder) -> None:
    said = quickstart.orch("run", "mpi.yml", timeout=280)
    assert said.code == 0, said.err
    for rank, node in enumerate(("laptop-0", "laptop-0", "laptop-1", "laptop-1")):
        assert f"rank {rank} of 4 on {node}: token 6, sum 10" in said.out


def test_unlike_groups_are_one_run_whose_ranks_tell_their_group(quickstart: Folder) -> None:
    said = quickstart.orch("run", "groups.yml", timeout=280)
    assert said.code == 0, said.err
    assert "run groups on fleet laptop: server: laptop-0; worker: laptop-1" in said.err
    assert "[0 server laptop-0] server: 1 worker(s) gave 385, expected 385" in said.out
    assert "[1 worker laptop-1] worker 1: squared [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]" in said.out
    (run,) = (run for run in quickstart.orch("ps", "-a", "--json").json["runs"] if run["run"] == "groups")
    assert [(node["rank"], node["group"]) for node in run["nodes"]] == [(0, "server"), (1, "worker")]


def test_nodes_are_busy_while_a_run_holds_them_and_idle_after_it(quickstart: Folder) -> None:
    quickstart.write(
        "hold.yml", "type: task\nname: hold\nnodes: 2\nimage: orch/job\ncommands: [echo held, sleep 280]\n"
    )
    loaded = _loaded_to_detach(quickstart, "hold.yml")

    def statuses() -> list[str]:
        return [n["status"] for n in quickstart.orch("fleet", "list", "--json").json["fleets"][0]["nodes"]]

    until(lambda: statuses() == ["busy", "busy"], 90, "both nodes are busy")
    listed = quickstart.orch("ps", "--json").json["runs"]
    assert [run["run"] for run in listed] == ["hold"]

    refused = quickstart.orch("run", "mpi.yml", timeout=180)
    assert refused.code != 0
    assert "hold" in refused.err

    assert quickstart.orch("stop", "hold", timeout=120).code == 0
    until(lambda: statuses() == ["idle", "idle"], 90, "both nodes are idle")
    ended = {run["run"]: run["status"] for run in quickstart.orch("ps", "-a", "--json").json["runs"]}
    assert ended["hold"] == "terminated"

    # All that is loaded goes into the time to the first line: `python -m bench launch`.
    assert not loaded & {"sqlalchemy", "pulumi", "orch.stacks.engine.process", "orch.components.deployment"}
    (log,) = (quickstart.path / ".orch" / "runs").glob(f"hold*/{LOG}")
    assert not _loaded(log.read_text()) & {"typer", "sqlalchemy", "pulumi", "orch.spec.models"}


def _loaded_to_detach(folder: Folder, file: str) -> set[str]:
    """The modules that the command of a detached run loads. The driver tells in its log which it loads once
    it has the run."""
    env = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    words = [*ORCH, "run", file, "--detach"]
    done = subprocess.run(
        words, cwd=folder.path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return _loaded(done.stderr)


def _loaded(text: str) -> set[str]:
    """The modules in what Python tells of its imports."""
    return {line.rpartition("|")[2].strip() for line in text.splitlines() if line.startswith("import time:")}


def test_apply_takes_each_document_as_its_type_wants_and_show_tells_all_of_it(quickstart: Folder) -> None:
    fleet = (quickstart.path / "fleet.yml").read_text()
    task = "type: task\nname: both\nnodes: 2\nimage: orch/job\ncommands: [echo rank $NODE_RANK]\n"
    quickstart.write("both.yml", f"{fleet}\n---\n{task}")
    said = quickstart.orch("apply", "-f", "both.yml", "-y", timeout=280)
    assert said.code == 0, said.err
    assert "fleet laptop: no changes" in said.out
    assert {"rank 0", "rank 1"} <= {line.rpartition("] ")[2] for line in said.out.splitlines()}
    assert "note: " not in said.err

    shown = quickstart.orch("show", "laptop")
    assert shown.code == 0, shown.err
    for word in ("laptop (active)", "local", "cluster", "laptop-0", "laptop-1", "file://"):
        assert word in shown.out
    run = quickstart.orch("show", "both", "--json").json
    assert (run["fleet"], run["run"]["status"], run["run"]["launcher"]) == (None, "done", "commands")
    said = quickstart.orch("show", "both").out
    assert "both (done" in said
    assert "the last lines of rank 0:\n  | rank 0\n  its log: orch logs both" in said


def test_a_detached_run_is_traced_to_its_end(quickstart: Folder) -> None:
    """By `--trace` alone: the driver, which goes on after the command, sends the run's own part."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            # Variables of the exporter alone ask for nothing; the endpoint is this test's.
            env = {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
                "OTEL_TRACES_EXPORTER": "none",
            }
            quickstart.write("traced.yml", "type: task\nnodes: 2\nimage: orch/job\ncommands: [sleep 3]\n")
            words = ("run", "traced.yml", "--name")
            assert quickstart.orch(*words, "untold", "--detach", env=env).code == 0
            assert quickstart.orch("attach", "untold", env=env).code == 0
            said = quickstart.orch(*words, "told", "--detach", "--trace", env=env)
            assert said.code == 0, said.err
            assert quickstart.orch("attach", "told", env=env).code == 0
            until(lambda: len(bodies) == 2, 60, "the command and the driver have sent their traces")
        finally:
            server.shutdown()
            thread.join()
    command, driver = bodies
    assert b"orch run" in command
    assert b"submit" in command
    assert b"orch driver" in driver
    assert b"told" in driver
    assert all(word in driver for word in (b"provision", b"rank", b"run"))


def test_a_node_killed_in_the_middle_of_a_run_fails_it_by_name_and_up_makes_that_node_anew(
    quickstart: Folder,
) -> None:
    quickstart.write(
        "long.yml", "type: task\nname: long\nnodes: 2\nimage: orch/job\ncommands: [echo begun, sleep 200]\n"
    )
    process = quickstart.start("run", "long.yml", "--json")
    until(lambda: quickstart.orch("logs", "long").out.count("begun") == 2, 120, "both ranks have begun")
    victim = next(name for name in containers(quickstart, "laptop") if name.endswith("-1"))
    killed = time.monotonic()
    subprocess.run(["docker", "kill", victim], check=True, capture_output=True)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 6, err
    assert time.monotonic() - killed < 60
    assert '"status": "failed"' in out
    assert "laptop-1" in err

    drift = quickstart.orch("drift", "laptop", "--json")
    assert drift.code == 10
    assert {item["name"] for item in drift.json["drift"]} == {"laptop-1"}
    mended = quickstart.orch("up", "fleet.yml", "--yes", "--json")
    assert [(c["op"], c["name"]) for c in mended.json["changes"] if c["op"] != "same"] == [
        ("update", "laptop-1")
    ]
    survivor = [
        n for n in quickstart.orch("fleet", "list", "--json").json["fleets"][0]["nodes"] if n["index"] == 0
    ]
    assert survivor[0]["status"] == "idle"
