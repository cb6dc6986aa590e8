"""A plan that was shown is carried out as it is: nobody is asked twice within half a minute."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from kit.clouds.aws_cases import Case
from kit.clouds.aws_engine import Stack, stack
from kit.clouds.cloud_engine import quiet
from kit.clouds.rehearsals import Rehearsed
from kit.nodes.hostlab import Client, Room

from orch.spec.models import Fleet
from orch.stacks.events.changes import matches_record
from orch.stacks.plans import plan as plans
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.request import FleetRequest
from orch.stacks.provisioning import operations

READS = ("Describe", "Get", "List")
SHOWS_KEYS = ("boto3", "GetConsoleOutput")
TELLS_ACCOUNT = ("boto3", "GetCallerIdentity")  # asked before anything is changed, at most once a minute
"""New nodes show their host keys: that was not asked before."""


def fleet(nodes: int) -> Fleet:
    case = Case.of("cpu")
    return replace(case, data={**case.data, "fleet": {**case.data["fleet"], "nodes": nodes}}).fleet


@pytest.mark.usefixtures("engine")
def test_the_cloud_is_asked_once_for_what_is_shown_and_then_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "FRESH_S", 3600.0)
    made = stack(tmp_path / "lab")
    there = Stack(made.folder, made.project, fleet(1).name, made.cloud)
    seen = 0

    def asked() -> list[tuple[str, str]]:
        nonlocal seen
        calls = there.cloud.calls[seen:]
        seen += len(calls)
        return [(call.caller, call.action) for call in calls]

    def shown(nodes: int) -> tuple[Plan, FleetRequest]:
        request = FleetRequest(fleet(nodes), there.folder)
        plan = operations.preview(there.project, request, quiet)
        assert ("boto3", "DescribeInstanceTypes") in asked()
        return plan, request

    for nodes in (1, 2):
        plan, request = shown(nodes)
        assert operations.outdated(plan, request, quiet) is None
        assert asked() == []
        operations.up(there.project, request, quiet, plan=plan)
        calls = asked()
        assert {each for each in calls if each[0] == "boto3"} - {TELLS_ACCOUNT} == {SHOWS_KEYS}
        # The provider reads what it makes, and nothing before that.
        first = next(at for at, (_, action) in enumerate(calls) if not action.startswith(READS))
        assert len([1 for who, _ in calls[:first] if who == "pulumi"]) <= 2, calls[:first]
        there.up(fleet(nodes))  # a cloud tells more of what it made once it is there: that is recorded now
        asked()
    assert len(there.state().nodes) == 2

    plan, request = shown(2)
    assert not plan.pending
    there.plan(fleet(3))  # somebody who only looks changes nothing
    assert operations.outdated(plan, request, quiet) is None
    there.up(fleet(3))
    assert operations.outdated(plan, request, quiet) == "somebody changed the fleet since"
    there.down()


@pytest.mark.usefixtures("engine")
def test_a_plan_is_made_again_when_it_is_old_or_its_files_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "FRESH_S", 3600.0)
    there = stack(tmp_path / "lab")
    file = there.folder / "mpi.yml"
    file.write_text("type: fleet\n")
    request = FleetRequest(fleet(1), there.folder, file=file)
    plan = operations.preview(there.project, request, quiet)
    assert operations.outdated(plan, request, quiet) is None
    file.write_text("type: fleet\nname: mpi\n")
    assert operations.outdated(plan, request, quiet) == f"{file} changed since"
    plan = operations.preview(there.project, request, quiet)
    assert operations.outdated(plan, request, quiet) is None
    monkeypatch.setattr(plans, "FRESH_S", 0.0)
    assert operations.outdated(plan, request, quiet) == "it was made more than 0 seconds ago"


STEP = {"urn": "urn:pulumi:f::p::aws:t::n", "type": "aws:t"}


@pytest.mark.parametrize(
    ("op", "old", "new", "expected"),
    [
        ("same", {"ip": "a"}, {"ip": "a"}, True),
        ("same", {"ip": "a"}, {"ip": "b"}, False),
        ("update", {"ip": "a"}, {"ip": "a"}, True),
        ("update", {"keys": ["[secret]"]}, {"keys": ["[secret]"]}, False),
        ("same", {"keys": ["[secret]"]}, {"keys": ["[secret]"]}, True),
    ],
)
def test_the_engine_looks_again_where_it_may_have_found_a_difference(
    op: str, old: dict[str, object], new: dict[str, object], expected: bool
) -> None:
    states = {"old": {"outputs": old}, "new": {"outputs": new}}
    events = [
        {"resourcePreEvent": {"metadata": {**STEP, "op": "refresh"}}},
        {"resOutputsEvent": {"metadata": {**STEP, "op": "refresh", **states}}},
        {"resourcePreEvent": {"metadata": {**STEP, "op": op, **states}}},
    ]
    assert matches_record(events) is expected


# As `orch`, and patient: on a busy machine half a minute is soon over.
PATIENT = "from orch.cli.main import main\nfrom orch.stacks.plans import plan\nplan.FRESH_S = 3600.0\nmain()"


def talk(folder: Path, words: list[str], answers: list[Callable[[], str]]) -> tuple[int, str]:
    """`orch` on a terminal: what it told, each question answered in turn."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PATIENT, *words],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        told, left = "", list(answers)
        ends = time.monotonic() + 240
        while time.monotonic() < ends:
            ready, _, _ = select.select([ours], [], [], 1.0)
            try:
                chunk = os.read(ours, 65_536) if ready else b""
            except OSError:
                break
            told += chunk.decode(errors="replace")
            if left and told.rstrip().endswith("[y/N]"):
                os.write(ours, f"{left.pop(0)()}\n".encode())
                told += "\n"
        process.wait(60)
    os.close(ours)
    return process.returncode, told


@pytest.mark.usefixtures("engine")
def test_an_up_on_a_terminal_asks_the_account_once_and_shows_again_what_became_of_changed_files(
    tmp_path: Path,
) -> None:
    there: Rehearsed = Rehearsed.make(tmp_path)
    small = {"instance_types": ["m7i.large"], "placement": "any", "network": {"bastion": False}}
    there.fleet(1, **small)
    seen: list[int] = []

    def edit() -> str:
        there.fleet(2, **small)
        (there.path / "orch.yml").write_text("project: tests\ntags: {team: research}\n")
        return "y"

    def agree() -> str:
        seen.append(len(there.cloud.calls))
        return "y"

    code, told = talk(there.path, ["up", "p5.yml", "--rehearse"], [edit, agree])
    assert code == 0, told
    assert told.count("Bring up the fleet p5? [y/N]") == 2
    assert "the plan is made again: " in told
    assert f"{there.path / 'orch.yml'}, {there.path / 'p5.yml'} changed since" in told
    made = [there.cloud.instances()[each] for each in there.nodes("m7i.large")]
    assert len(made) == 2
    for each in made:
        assert {"Key": "team", "Value": "research"} in each["Tags"]
    after = [(call.caller, call.action) for call in there.cloud.calls[seen[0] :]]
    assert {each for each in after if each[0] == "boto3"} - {TELLS_ACCOUNT} == {SHOWS_KEYS}
    assert there.down().code == 0


class Door:
    """A port of this machine that leads to a server's, and counts who goes through."""

    def __init__(self, port: int) -> None:
        self.passed = 0
        self._target = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._open, daemon=True).start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # ends `accept`, which a close does not
        self._socket.close()

    def _open(self) -> None:
        while True:
            try:
                inner, _ = self._socket.accept()
            except OSError:
                return
            self.passed += 1
            outer = socket.create_connection(("127.0.0.1", self._target))
            for one, other in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)


def test_hosts_are_asked_once_for_what_is_shown_and_then_done(room: Room, tmp_path: Path) -> None:
    server = room.servers[2]
    assert server.port is not None
    door = Door(server.port)
    host = {"hostname": "127.0.0.1", "port": door.port, "host_key": server.host_key}
    access = {"user": "ops", "identity_file": str(server.key.path), "preflight": "off"}
    lab = {"type": "fleet", "name": "lab", "ssh_config": {**access, "hosts": [host]}}
    (tmp_path / "orch.yml").write_text("project: tests\n")
    (tmp_path / "lab.yml").write_text(yaml.safe_dump(lab))
    passed: list[int] = []

    def agree() -> str:
        passed.append(door.passed)
        return "y"

    client = Client(tmp_path, room.home)
    try:
        code, told = talk(tmp_path, ["up", "lab.yml"], [agree])
        assert code == 0, told
        # The plan asked it; what is left is the provider, which registers it, and its fleet's gate.
        assert passed[0] >= 1
        assert door.passed - passed[0] == 2
    finally:
        said = client.orch("down", "lab", "--yes")
        door.close()
    assert said.code == 0, said.err
