"""A driver that gets ready beside the command that submits its run, and what becomes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orch.cli.runs.background import Link, StandbyDriver
from orch.cli.runs.opening import KnownFleets
from orch.runner.node.status import NodeStatus
from orch.spec.state import FleetState
from orch.stacks.project import find

pytestmark = pytest.mark.quick

FLEET = FleetState(name="lab", stack="lab", backend="local", nodes=())
SEEN = (NodeStatus("idle"),)


def ends_with(driver: StandbyDriver) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(driver.pid, 0)[1])


def looks_and_drives(link: Link) -> int:
    _, fleet = link.receive()
    link.send(SEEN if fleet is not None else None)
    number = link.receive()
    link.send(number)
    link.close()
    return number


def test_a_driver_tells_what_it_sees_and_takes_a_run(tmp_path: Path):
    driver = StandbyDriver(looks_and_drives)
    look = driver.prepare(find(tmp_path), FLEET)
    assert look is not None
    assert look.answer(FLEET) == SEEN
    assert driver.drive(7)
    assert ends_with(driver) == 7
    assert not driver.drive(8)
    driver.dismiss()


def test_what_a_driver_saw_need_not_be_asked_for(tmp_path: Path):
    driver = StandbyDriver(looks_and_drives)
    assert driver.prepare(find(tmp_path), FLEET) is not None
    assert driver.drive(7)
    assert ends_with(driver) == 7
    driver.dismiss()


def test_without_a_fleet_there_is_nothing_to_look_at(tmp_path: Path):
    driver = StandbyDriver(looks_and_drives)
    assert driver.prepare(find(tmp_path), None) is None
    assert driver.drive(7)
    assert ends_with(driver) == 7
    driver.dismiss()


def fails(link: Link) -> int:
    raise OSError(f"no log can be written for {link.receive()[1].name}")


def test_a_command_goes_on_without_a_driver_that_has_ended(tmp_path: Path):
    driver = StandbyDriver(fails)
    look = driver.prepare(find(tmp_path), FLEET)
    assert ends_with(driver) == 1
    assert look is not None
    assert look.answer(FLEET) is None
    assert not driver.drive(7)
    driver.dismiss()


def waits(link: Link) -> int:
    while True:
        link.receive()


def test_a_driver_without_a_run_ends_with_its_command(tmp_path: Path):
    driver = StandbyDriver(waits)
    driver.prepare(find(tmp_path), FLEET)
    driver.dismiss()
    assert ends_with(driver) == 1


def test_a_driver_says_nothing_before_it_has_a_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    def prints(link: Link) -> int:
        os.write(1, b"out")
        os.write(2, b"err")
        return looks_and_drives(link)

    driver = StandbyDriver(prints)
    driver.prepare(find(tmp_path), FLEET)
    assert driver.drive(7)
    assert ends_with(driver) == 7
    driver.dismiss()
    assert capfd.readouterr() == ("", "")


def test_connections_begin_only_where_one_fleet_can_be_meant(tmp_path: Path):
    other = FLEET.model_copy(update={"name": "other"})
    both = KnownFleets(find(tmp_path), {"lab": FLEET, "other": other})
    assert both.only(None) is None
    assert both.only("other") == other
    assert both.only("neither") is None
    assert KnownFleets(find(tmp_path), {"lab": FLEET}).only(None) == FLEET
