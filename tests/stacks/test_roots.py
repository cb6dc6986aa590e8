"""Which project a folder belongs to: the rule alone, then with folders, links, rehearsals and other users."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from orch.spec.document.defaults import nearest_project_file
from orch.spec.errors import ExitCode
from orch.stacks.errors import ProjectError
from orch.stacks.project.project import find, scope_of
from orch.stacks.project.roots import (
    HOLD,
    MOVED,
    Choice,
    Claims,
    Place,
    Reason,
    choose,
    lost_stacks,
    rehearsals_below,
)
from orch.stacks.stack.leases import FOR_GOOD_S, TAG, StackLease
from orch.stacks.stack.state import stacks

UNMARKED = Place("")
SETTINGS = Place("", settings=True)
CHECKOUT = Place("", checkout=True)
RECORDS = Place("", used=True, stacks=("lab",))
USED = Place("", used=True)
CLOSED = Place("", stacks=None, lends=False)
HOME = Place("", used=True, stacks=("lab",), lends=False)
BUSY_SETTINGS = Place("", settings=True, used=True, stacks=("lab",))
BUSY_CHECKOUT = Place("", checkout=True, used=True, stacks=("lab",))
BUSY_HOME = Place("", checkout=True, used=True, stacks=("lab",), lends=False)


def way(*places: Place, name: str = "") -> list[Place]:
    """Places upwards, each with its number as its path."""
    return [
        Place(f"{name}{at}", f"{name}{at}", each.settings, each.checkout, each.used, each.stacks, each.lends)
        for at, each in enumerate(places)
    ]


@pytest.mark.parametrize(
    ("places", "root", "reason"),
    [
        ((UNMARKED, UNMARKED), 0, Reason.NOTHING),
        ((USED, UNMARKED), 0, Reason.USED),
        ((UNMARKED, USED), 0, Reason.NOTHING),
        # orch.yml: at any height, as ever.
        ((UNMARKED, SETTINGS), 1, Reason.SETTINGS),
        ((SETTINGS, SETTINGS), 0, Reason.SETTINGS),
        ((UNMARKED, SETTINGS, BUSY_SETTINGS), 1, Reason.SETTINGS),
        ((UNMARKED, SETTINGS, BUSY_CHECKOUT), 1, Reason.SETTINGS),
        ((UNMARKED, CHECKOUT, SETTINGS), 2, Reason.SETTINGS),
        ((UNMARKED, SETTINGS, RECORDS), 1, Reason.SETTINGS),
        ((BUSY_SETTINGS, SETTINGS), 0, Reason.SETTINGS),
        ((UNMARKED, SETTINGS, CLOSED), 1, Reason.SETTINGS),
        # An .orch without stacks, as of a rehearsal or of an `orch ps`, has nothing to lose.
        ((USED, SETTINGS), 1, Reason.SETTINGS),
        ((USED, CHECKOUT), 1, Reason.CHECKOUT),
        # A checkout.
        ((UNMARKED, CHECKOUT), 1, Reason.CHECKOUT),
        ((CHECKOUT, BUSY_CHECKOUT), 0, Reason.CHECKOUT),
        ((UNMARKED, CHECKOUT, RECORDS), 1, Reason.CHECKOUT),
        ((UNMARKED, BUSY_CHECKOUT), 1, Reason.RECORDS),
        # What is recorded below the root of a checkout stays its own, also for folders in it.
        ((RECORDS, CHECKOUT), 0, Reason.RECORDS),
        ((UNMARKED, RECORDS, CHECKOUT), 1, Reason.RECORDS),
        ((USED, RECORDS, CHECKOUT), 1, Reason.RECORDS),
        ((CLOSED, CHECKOUT), 0, Reason.RECORDS),
        # Neither: the folder's own, then what lies above.
        ((RECORDS, UNMARKED), 0, Reason.RECORDS),
        ((RECORDS, RECORDS), 0, Reason.RECORDS),
        ((CLOSED, RECORDS), 0, Reason.RECORDS),
        ((UNMARKED, RECORDS, UNMARKED), 1, Reason.RECORDS),
        ((USED, RECORDS), 0, Reason.USED),
        ((UNMARKED, HOME), 0, Reason.NOTHING),
        ((HOME, UNMARKED), 0, Reason.RECORDS),
        ((UNMARKED, HOME, RECORDS), 2, Reason.RECORDS),
        ((UNMARKED, CLOSED), 0, Reason.NOTHING),
    ],
)
def test_the_root(places: tuple[Place, ...], root: int, reason: Reason) -> None:
    found = choose([way(*places)])
    assert isinstance(found, Choice)
    assert (found.place.path, found.reason) == (str(root), reason)


@pytest.mark.parametrize(
    ("places", "inner", "outer"),
    [
        ((RECORDS, SETTINGS), 0, 1),
        ((RECORDS, BUSY_SETTINGS), 0, 1),
        ((UNMARKED, RECORDS, UNMARKED, SETTINGS), 1, 3),
        ((UNMARKED, BUSY_CHECKOUT, SETTINGS), 1, 2),
        ((RECORDS, CHECKOUT, SETTINGS), 0, 2),
        ((HOME, SETTINGS), 0, 1),
        ((CLOSED, SETTINGS), 0, 1),
        ((RECORDS, BUSY_CHECKOUT), 0, 1),
        ((UNMARKED, RECORDS, BUSY_CHECKOUT), 1, 2),
        ((CLOSED, BUSY_CHECKOUT), 0, 1),
    ],
)
def test_two_claim_it(places: tuple[Place, ...], inner: int, outer: int) -> None:
    found = choose([way(*places)])
    assert isinstance(found, Claims)
    assert (found.inner.path, found.outer.path) == (str(inner), str(outer))


@pytest.mark.parametrize(
    ("named", "real", "root"),
    [
        ((UNMARKED, SETTINGS), (UNMARKED, UNMARKED), "a1"),
        ((UNMARKED, UNMARKED), (UNMARKED, SETTINGS), "b1"),
        # A library in Git that several projects have links to.
        ((UNMARKED, BUSY_SETTINGS), (UNMARKED, CHECKOUT), "a1"),
        ((UNMARKED, SETTINGS), (UNMARKED, SETTINGS), "a1"),
        ((UNMARKED, BUSY_SETTINGS), (UNMARKED, SETTINGS), "a1"),
        ((UNMARKED, CHECKOUT), (UNMARKED, RECORDS), "b1"),
        ((UNMARKED, CHECKOUT), (UNMARKED, CHECKOUT), "a1"),
        ((UNMARKED, UNMARKED), (USED, UNMARKED), "b0"),
        # Links of a home folder in Git, in which a fleet was brought up once.
        ((UNMARKED, BUSY_HOME), (UNMARKED, SETTINGS), "b1"),
        ((UNMARKED, BUSY_SETTINGS), (UNMARKED, BUSY_SETTINGS), None),
        ((UNMARKED, SETTINGS), (RECORDS, UNMARKED), None),
        ((UNMARKED, RECORDS), (UNMARKED, RECORDS), None),
        ((UNMARKED, SETTINGS), (RECORDS, SETTINGS), None),
        ((UNMARKED, BUSY_CHECKOUT), (UNMARKED, BUSY_SETTINGS), None),
    ],
)
def test_a_link_leads_to_another_place(
    named: tuple[Place, ...], real: tuple[Place, ...], root: str | None
) -> None:
    found = choose([way(*named, name="a"), way(*real, name="b")])
    assert (found.place.path if isinstance(found, Choice) else None) == root


def record(folder: Path, *names: str, project: str = "lab", under: str = ".orch") -> Path:
    """The folder with what the engine leaves of stacks that are up."""
    place = folder / under / "state" / ".pulumi" / "stacks" / project
    place.mkdir(parents=True)
    for name in names:
        (place / f"{name}.json").write_text('{"version": 3, "checkpoint": {"latest": {"resources": []}}}')
        (place / f"{name}.json.bak").write_text("{}")
    (folder / under).chmod(0o700)
    return folder


def git(folder: Path) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)


def refusal(path: Path) -> str:
    with pytest.raises(ProjectError) as caught:
        find(path)
    assert (caught.value.code, caught.value.exit_code) == ("ORCH308", ExitCode.CONFIG)
    return caught.value.text()


def test_an_orch_yml_that_appears_above_takes_nothing_over(tmp_path: Path) -> None:
    fleets = record(tmp_path / "fleets", "big", "small")
    assert stacks(find(fleets)) == ["big", "small"]
    (tmp_path / "orch.yml").write_text("project: stray\n")
    told = refusal(fleets / "big.yml")
    assert f"two projects claim this folder: {fleets} and {tmp_path}" in told
    assert f"{fleets}: its .orch records 2 stacks (big, small)" in told
    assert f"{tmp_path}: has an orch.yml; its .orch records no stack" in told
    assert f"if {tmp_path}/orch.yml is there by mistake: remove it" in told
    assert re.search(rf"`orch init {fleets}`", told)
    # Elsewhere below it nothing is in doubt.
    assert find(tmp_path / "other.yml").name == "stray"


def test_neither_does_a_checkout_that_is_made_above(tmp_path: Path) -> None:
    fleets = record(tmp_path / "fleets", "big")
    git(tmp_path)
    assert (find(fleets).root, find(fleets / "h100").root) == (fleets, fleets)
    record(tmp_path, "other")
    told = refusal(fleets)
    assert f"{tmp_path}: is the root of a Git checkout; its .orch records 1 stack (other)" in told
    assert find(tmp_path).root == tmp_path


def test_a_checkout_in_a_project_and_a_project_in_a_checkout(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: outer\n")
    (tmp_path / "repo" / "infra" / "fleets").mkdir(parents=True)
    git(tmp_path / "repo")
    assert find(tmp_path / "repo" / "infra").name == "outer"
    (tmp_path / "repo" / "infra" / "orch.yml").write_text("project: inner\n")
    assert find(tmp_path / "repo" / "infra" / "fleets").name == "inner"
    assert find(tmp_path / "repo").name == "outer"


def test_a_rehearsal_makes_no_project_and_is_not_lost_sight_of(tmp_path: Path) -> None:
    fleets = record(tmp_path / "fleets", "big", under=".orch/rehearsal")
    (tmp_path / "orch.yml").write_text("project: outer\n")
    assert find(fleets).root == tmp_path
    assert rehearsals_below(str(fleets), tmp_path) == [fleets]
    assert rehearsals_below(str(tmp_path), tmp_path) == []


def test_a_folder_below_what_is_recorded_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = record(tmp_path / "lab", "big")
    (lab / "jobs").mkdir()
    assert find(lab / "jobs" / "train.yml").root == lab
    # One in which commands have worked stays its own.
    find(tmp_path / "lab" / "old").prepare()
    assert find(lab / "old").root == lab
    (lab / "own" / ".orch").mkdir(parents=True)
    (lab / "own" / ".orch" / "project").write_text("own\n")
    assert find(lab / "own").root == lab / "own"
    monkeypatch.setenv("HOME", str(lab))
    assert find(lab / "jobs").root == lab / "jobs"
    assert find(lab).root == lab
    monkeypatch.setenv("HOME", "/root")
    lab.chmod(0o1777)
    assert find(lab / "jobs").root == lab / "jobs"


def test_what_another_user_records_above_is_not_joined(tmp_path: Path) -> None:
    lab = record(tmp_path / "lab", "big")
    (lab / "mine").mkdir()
    os.chown(lab, 54_321, 54_321)
    assert find(lab / "mine").root == lab / "mine"


def test_an_orch_yml_that_is_gone_leaves_what_is_up(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    infra = record(repo / "infra", "big", project="renamed")
    git(repo)
    (infra / "orch.yml").write_text("project: renamed\n")
    (infra / ".orch" / "project").write_text("infra\n")
    assert stacks(find(infra)) == ["big"]
    (infra / "orch.yml").unlink()
    assert (find(infra / "fleets").root, stacks(find(infra / "fleets"))) == (infra, ["big"])


def test_what_has_moved_away_claims_nothing(tmp_path: Path) -> None:
    fleets = record(tmp_path / "fleets", "big", "small")
    (tmp_path / "orch.yml").write_text("project: outer\n")
    tags = fleets / ".orch" / "state" / ".pulumi" / "stacks" / "lab"
    for name in ("big", "small"):
        assert "1 stack" in refusal(fleets) or "2 stacks" in refusal(fleets)
        (tags / f"{name}.pulumi-tags").write_text(f'{{"tags": {{"orch:lease": "x y {MOVED}s3://b"}}}}')
    assert find(fleets).root == tmp_path


def test_stacks_whose_move_was_killed_are_still_here(tmp_path: Path) -> None:
    lab = record(tmp_path / "lab", "big", HOLD)
    (lab / "jobs").mkdir()
    (lab / ".orch" / "config").mkdir()
    for name in ("big", HOLD):
        (lab / ".orch" / "config" / f"Pulumi.{name}.yaml").write_text("")
    tags = lab / ".orch" / "state" / ".pulumi" / "stacks" / "lab"
    since = datetime(2026, 12, 31, 23, 30, tzinfo=timezone.utc)
    for name, seconds in (("big", FOR_GOOD_S), (HOLD, 3600)):
        lease = StackLease(f"{MOVED}s3://b", since, since + timedelta(seconds=seconds))
        (tags / f"{name}.pulumi-tags").write_text(json.dumps({"tags": {TAG: lease.value}}))
    assert find(lab / "jobs").root == lab
    assert lost_stacks(lab) == ()
    # The move has ended: it keeps the hold.
    (tags / "big.pulumi-tags").replace(tags / f"{HOLD}.pulumi-tags")
    (tags / "big.pulumi-tags").write_text((tags / f"{HOLD}.pulumi-tags").read_text())
    assert find(lab / "jobs").root == lab / "jobs"


def test_the_home_folder_lends_nothing_by_any_of_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = record(tmp_path / "disk" / "ada", "big")
    (home / "new").mkdir()
    link = tmp_path / "ada"
    link.symlink_to(home)
    for named, jobs in ((link, home / "new"), (home, link / "new"), (link, link / "new")):
        monkeypatch.setenv("HOME", str(named))
        assert os.path.samefile(find(jobs).root, home / "new")


def test_a_folder_is_one_project_by_all_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    (real / "fleets").mkdir(parents=True)
    (real / "orch.yml").write_text("project: one\n")
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path / "link")
    found = [find(), find(tmp_path / "link" / "fleets"), find("fleets/../fleets/x.yml"), find("~/../x")]
    assert [each.name for each in found[:3]] == ["one"] * 3
    assert len({scope_of(each) for each in found[:3]}) == 1


def test_a_link_in_a_project_belongs_to_it_also_for_who_went_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, lab = tmp_path / "library", tmp_path / "lab"
    library.mkdir()
    lab.mkdir()
    (lab / "orch.yml").write_text("project: lab\n")
    (lab / "fleets").symlink_to(library)
    monkeypatch.chdir(library)
    assert find().root == library
    monkeypatch.setenv("PWD", str(lab / "fleets"))
    assert (find().root, find("x.yml").root, find(".").root) == (lab, lab, lab)
    assert nearest_project_file("-") == nearest_project_file("x.yml") == str(lab / "orch.yml")
    monkeypatch.setenv("PWD", str(lab))  # another folder's
    assert find().root == library
    record(library, "big")
    told = refusal(lab / "fleets" / "x.yml")
    assert f"two projects claim this folder: {lab}/fleets and {lab}" in told
    assert f"`orch init {lab}/fleets`" in told
    (library / "orch.yml").write_text("project: library\n")
    assert find(lab / "fleets" / "x.yml").name == find(library).name == "library"


def test_a_name_with_dots_counts_by_where_it_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("outer", "outer/inner"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "orch.yml").write_text(f"project: {name.rpartition('/')[2]}\n")
    monkeypatch.chdir(tmp_path / "outer" / "inner")
    assert find("../x.yml").root == tmp_path / "outer"
    assert nearest_project_file("../x.yml") == str(tmp_path / "outer" / "orch.yml")


def test_a_file_of_no_project_belongs_to_the_one_that_its_name_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, free = tmp_path / "lab", tmp_path / "free"
    lab.mkdir()
    free.mkdir()
    (lab / "orch.yml").write_text("project: lab\n")
    monkeypatch.chdir(lab)
    assert find("../free/x.yml").root == lab
    assert find(free / "x.yml").root == free
    record(free, "big")
    told = refusal(Path("../free/x.yml"))
    assert f"two projects claim this folder: {free} and {lab}" in told
    assert f"`orch init {free}` makes it a project of its own" in told
    assert "by mistake" not in told


def test_the_file_of_defaults_is_the_one_of_the_project(tmp_path: Path) -> None:
    real = tmp_path / "real" / "fleets"
    real.mkdir(parents=True)
    (tmp_path / "real" / "orch.yml").write_text("project: real\n")
    (tmp_path / "link").symlink_to(real)
    assert find(tmp_path / "link" / "x.yml").root == tmp_path / "real"
    assert nearest_project_file(str(tmp_path / "link" / "x.yml")) == str(tmp_path / "real" / "orch.yml")
