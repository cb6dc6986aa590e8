"""A driver that gets ready beside the command that submits its run, and what becomes of it."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orch.cli.driver import standby
from orch.cli.driver.opening import KnownFleets
from orch.cli.driver.standby import LentLedger, Link, StandbyDriver, serve
from orch.runner.errors import LedgerUnusable, NameTaken
from orch.runner.ledger.ledger import Ledger, open_ledger
from orch.runner.node_api.status import NodeStatus
from orch.spec.state import FleetState
from orch.stacks.project.project import find

FLEET = FleetState(name="lab", stack="lab", backend="local", nodes=())
SEEN = (NodeStatus("idle"),)


def ends_with(driver: StandbyDriver) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(driver.pid, 0)[1])


def no_ledger() -> Ledger:
    raise LedgerUnusable("there is none", where="here")


def drives(link: Link, ledger: Callable[[], Ledger] = no_ledger) -> int:
    _, fleet = link.receive()
    number, _ = serve(link, ledger, lambda: SEEN if fleet is not None else None)
    link.send(("done", None))
    return number


def test_a_driver_tells_what_it_sees_and_takes_a_run(tmp_path: Path):
    driver = StandbyDriver(drives)
    look = driver.prepare(find(tmp_path), FLEET)
    assert look is not None
    assert look.answer(FLEET) == SEEN
    assert driver.drive(7)
    assert ends_with(driver) == 7
    assert not driver.drive(8)
    driver.dismiss()


def test_what_a_driver_saw_need_not_be_asked_for(tmp_path: Path):
    driver = StandbyDriver(drives)
    assert driver.prepare(find(tmp_path), FLEET) is not None
    assert driver.drive(7)
    assert ends_with(driver) == 7
    driver.dismiss()


def test_without_a_fleet_there_is_nothing_to_look_at(tmp_path: Path):
    driver = StandbyDriver(drives)
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


def test_a_driver_without_a_run_ends_with_its_command(tmp_path: Path):
    driver = StandbyDriver(drives)
    driver.prepare(find(tmp_path), FLEET)
    driver.dismiss()
    assert ends_with(driver) == 1


def test_a_driver_says_nothing_before_it_has_a_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    def prints(link: Link) -> int:
        os.write(1, b"out")
        os.write(2, b"err")
        return drives(link)

    driver = StandbyDriver(prints)
    driver.prepare(find(tmp_path), FLEET)
    assert driver.drive(7)
    assert ends_with(driver) == 7
    driver.dismiss()
    assert capfd.readouterr() == ("", "")


def lent(tmp_path: Path, work: Callable[[Link, str], int] | None = None) -> tuple[LentLedger, StandbyDriver]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"

    def default(link: Link, url: str) -> int:
        return drives(link, lambda: open_ledger(url))

    driver = StandbyDriver(lambda link: (work or default)(link, url))
    driver.prepare(find(tmp_path), FLEET)
    return LentLedger(driver, url), driver


def own(tmp_path: Path) -> Ledger:
    return open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")


def test_a_run_is_written_by_the_driver_with_the_plan_that_the_command_makes(tmp_path: Path):
    ledger, driver = lent(tmp_path)
    ledger.check_name("job")
    assert ledger.line("lab").waiters == ()
    row = ledger.create("job", "lab", ["lab-0"], lambda number: f"plan of {number}", priority=3)
    assert (row.name, row.status, row.plan, row.priority) == ("job", "submitted", f"plan of {row.id}", 3)
    assert [each.id for each in ledger.placed_on("lab")] == [row.id]
    with pytest.raises(NameTaken, match="is active") as caught:
        ledger.check_name("job")
    assert (caught.value.name, caught.value.code, caught.value.exit_code) == ("job", "ORCH422", 9)
    assert caught.value.hint is not None
    assert driver.drive(row.id)
    assert ends_with(driver) == row.id % 256
    # From here on the command has its own.
    assert ledger.by_id(row.id).plan == row.plan
    ledger.close()


def test_nothing_is_left_of_a_run_whose_plan_cannot_be_made(tmp_path: Path):
    def build(number: int) -> str:
        raise ValueError(f"no files for {number}")

    ledger, driver = lent(tmp_path)
    with pytest.raises(ValueError, match="no files for 1"):
        ledger.create("job", "lab", ["lab-0"], build)
    row = ledger.create("job", "lab", ["lab-0"], str)
    assert [each.id for each in own(tmp_path).runs()] == [row.id]
    driver.dismiss()
    ends_with(driver)


def test_what_the_ledger_refuses_is_told_by_the_command(tmp_path: Path):
    ledger, driver = lent(tmp_path, lambda link, _: drives(link))
    with pytest.raises(LedgerUnusable, match="there is none") as caught:
        ledger.check_name("job")
    assert caught.value.where == "here"
    driver.dismiss()
    ends_with(driver)


def test_a_driver_that_is_killed_while_a_run_is_written_costs_no_run_and_makes_no_second_one(tmp_path: Path):
    ledger, driver = lent(tmp_path)
    numbers: list[int] = []

    def build(number: int) -> str:
        if not numbers:
            os.kill(driver.pid, signal.SIGKILL)
            os.waitpid(driver.pid, 0)
        numbers.append(number)
        return "plan"

    row = ledger.create("job", "lab", ["lab-0"], build)
    assert row.status == "submitted"
    assert [(each.id, each.name) for each in own(tmp_path).runs()] == [(row.id, "job")]
    assert len(numbers) == 2
    assert not driver.drive(row.id)
    ledger.close()


def test_a_driver_that_is_killed_after_it_has_written_a_run_leaves_one(tmp_path: Path):
    def writes_and_ends(link: Link, url: str) -> int:
        class Written(Ledger):
            def create(self, *words: object, **more: object) -> object:  # type: ignore[override]
                super().create(*words, **more)  # type: ignore[arg-type]
                os._exit(9)

        ledger = open_ledger(url)
        ledger.__class__ = Written
        return drives(link, lambda: ledger)

    ledger, driver = lent(tmp_path, writes_and_ends)
    row = ledger.create("job", "lab", ["lab-0"], lambda number: f"plan of {number}")
    assert ends_with(driver) == 9
    assert [(each.id, each.plan) for each in own(tmp_path).runs()] == [(row.id, f"plan of {row.id}")]
    ledger.close()


def test_errors_reach_another_process_as_they_are():
    error = NameTaken("taken", name="job", hint="another", detail="by ada")
    error.where = "task.yml:1:1"
    same = pickle.loads(pickle.dumps(error))
    assert type(same) is NameTaken
    assert (same.text(), same.name, str(same)) == (error.text(), "job", "taken")


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        ("run task.yml --detach", ("task.yml", None)),
        ("run -d -n x --env A=1 task.yml --fleet lab", ("task.yml", "lab")),
        ("run -d -f task.yml --fleet=lab", ("task.yml", "lab")),
        ("run -d --file=task.yml", ("task.yml", None)),
        ("run - -d -- --fleet other", ("-", None)),
        ("run task.yml", None),
        ("run task.yml -- -d", None),
        ("run task.yml --detach --rehearse", None),
        ("run --detach", None),
        ("apply task.yml --detach", None),
        ("", None),
    ],
)
def test_a_driver_is_made_early_where_the_command_line_seems_to_want_one(
    words: str, guess: tuple[str, str | None] | None
):
    def waits(link: Link) -> int:
        return link.receive()

    assert standby.begin_early(words.split(), waits) == (guess is not None)
    early = standby.early_driver()
    assert (None if early is None else (early.file, early.fleet)) == guess
    assert standby.early_driver() is None
    if early is not None:
        early.driver.dismiss()
        assert ends_with(early.driver) == 1


def test_connections_begin_only_where_one_fleet_can_be_meant(tmp_path: Path):
    other = FLEET.model_copy(update={"name": "other"})
    both = KnownFleets(find(tmp_path), {"lab": FLEET, "other": other})
    assert both.only(None) is None
    assert both.only("other") == other
    assert both.only("neither") is None
    assert KnownFleets(find(tmp_path), {"lab": FLEET}).only(None) == FLEET
