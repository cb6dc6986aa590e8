"""What verbs of runs say of names, places and ports that are not what they seem."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from kit.ledgers import activeruns
from kit.support import Folder, until

from orch.runner.ledger.ledger import open_ledger
from orch.spec.state import NodeState
from orch.stacks.project.project import find

NODE = NodeState.model_validate(
    {"index": 0, "name": "n0", "address": "127.0.0.1", "user": "root", "host_key": "k"}
)

SLOT = NodeState.model_validate(
    {
        "index": 0,
        "name": "h100-0",
        "access": {"kind": "kubernetes", "namespace": "space", "mark": "h100-abc123"},
        "runtime": "process",
        "internal_ip": "h100-0",
    }
)
"""What stands for a pod that is not there yet."""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.write("orch.yml", "project: lab\n")
    return made


@pytest.fixture
def ended(folder: Folder) -> Folder:
    """A project with a run that failed before it began."""
    activeruns.start(find(folder.path), "early", NODE)
    ledger = open_ledger(find(folder.path).ledger_url)
    lease = ledger.take(ledger.get("early").id, "me")
    assert lease is not None
    ledger.change_rank(lease, 0, 0, status="failed", reason="instance_unreachable", collected=1)
    ledger.finish(lease, "failed", "job_failed", "node n0 cannot be reached")
    ledger.close()
    return folder


def test_the_places_of_a_copy_are_told_as_they_are(folder: Folder) -> None:
    said = folder.orch("cp", "a", "b")
    assert (said.code, said.err.splitlines()[0]) == (2, "error: both are paths of this machine")
    said = folder.orch("cp", "train:/a", "train:/b")
    assert (said.code, said.err.splitlines()[0]) == (2, "error: neither is a path of this machine")


def test_a_copy_of_a_run_that_has_no_pods_yet_says_what_it_waits_for(folder: Folder) -> None:
    activeruns.start(find(folder.path), "small", SLOT)
    for words in (("small:/tmp/x", "."), ("orch.yml", "small:/tmp/x")):
        said = folder.orch("cp", *words)
        told = "error: run small has not started: its status is submitted"
        assert (said.code, said.err.splitlines()[0]) == (9, told)
        assert "hint: `orch attach small` follows it" in said.err
    assert folder.orch("exec", "small", "true").code == 9
    assert folder.orch("metrics", "small").code == 9


def test_a_copy_of_a_run_that_never_had_its_pods_says_that_nothing_was_collected(folder: Folder) -> None:
    activeruns.start(find(folder.path), "small", SLOT)
    activeruns.fail(find(folder.path), "small")
    said = folder.orch("cp", "small:/tmp/x", ".")
    told = "error: /tmp/x of rank 0 was not collected: run small has ended"
    assert (said.code, said.err.splitlines()[0]) == (2, told)
    assert "h100-0" not in folder.orch("ps", "-a").out + folder.orch("show", "small").out


def test_the_kind_of_a_name_may_be_given_to_show_too(ended: Folder) -> None:
    said = ended.orch("show", "run:early")
    assert said.code == 0, said.err
    assert "early (failed: node n0 cannot be reached)" in said.out
    assert ended.orch("show", "fleet:early").code == 3


def test_the_log_of_a_run_that_never_began_says_so(ended: Folder) -> None:
    said = ended.orch("logs", "early")
    assert (said.code, said.out) == (0, "")
    assert "note: run early never began: failed: node n0 cannot be reached" in said.err


def test_hints_of_an_older_run_lead_to_it(ended: Folder) -> None:
    assert "its log: orch logs early" in ended.orch("show", "early").out
    activeruns.start(find(ended.path), "early", NODE)
    assert "its log: orch logs 1" in ended.orch("show", "1").out
    said = ended.orch("exec", "1", "--", "true")
    assert (said.code, "`orch logs 1` prints its logs" in said.err) == (9, True)


def test_a_fleet_that_is_none_is_told(ended: Folder) -> None:
    said = ended.orch("ps", "--fleet", "nosuch")
    assert said.code == 3, said.err
    assert "the fleet nosuch is not up in this project" in said.err
    assert ended.orch("ps", "--fleet", "lab").code == 0


def test_a_port_that_another_program_has_is_9_for_every_option(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = folder.orch("controller", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert said.code == 9, said.err
    assert "the controller cannot listen on 127.0.0.1" in said.err


def test_a_ledger_that_cannot_be_reached_is_named_as_it_is_written(folder: Folder) -> None:
    pytest.importorskip("psycopg")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and nothing listens
        url = f"postgresql://ada:secret@127.0.0.1:{nobody.getsockname()[1]}/runs"
        folder.write("orch.yml", f"project: lab\nledger: {url}\n")
        said = folder.orch("ps")
    assert said.code == 3, said.err
    assert url.replace("secret", "***") in said.err
    assert "psycopg:" not in said.err


def test_whoever_takes_a_run_over_says_so(folder: Folder) -> None:
    activeruns.start(find(folder.path), "quiet", NODE)
    ledger = open_ledger(find(folder.path).ledger_url)
    ledger.set_desired(ledger.get("quiet").id, "abort")
    ledger.close()
    told = "run quiet: submitted, and nobody drove it; this process does from now on"
    # It would go on asking a node that nobody has for two minutes.
    with folder.start("attach", "quiet") as attached:
        assert attached.stderr is not None
        assert any(told in line for line in attached.stderr)
        attached.kill()


def test_ctrl_c_is_told_wherever_it_comes(folder: Folder) -> None:
    activeruns.start(find(folder.path), "quiet", NODE)
    ledger = open_ledger(find(folder.path).ledger_url)
    # It goes on asking a node that nobody has.
    with folder.start("stop", "quiet") as stopping:
        until(lambda: ledger.get("quiet").desired == "stop", 120, "the wish to stop it is in the ledger")
        stopping.send_signal(signal.SIGINT)
        _, told = stopping.communicate(timeout=120)
    ledger.close()
    assert (stopping.returncode, told.splitlines()[-1]) == (130, "interrupted")
