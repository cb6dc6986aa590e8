"""Saved plans without an engine: the file and what spoils it, the rows that differ, what digests hide."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from orch.spec.confidential import remember
from orch.spec.errors import ExitCode
from orch.stacks.errors import ProjectError
from orch.stacks.events.masking import UNKNOWN
from orch.stacks.plans.marks import MOST, Mark, Marks
from orch.stacks.plans.recorder import Recorder
from orch.stacks.plans.saved_plan import (
    Commit,
    Decisions,
    DriftRecord,
    HostKey,
    Operation,
    Price,
    PriceList,
    RecordedState,
    SavedPlan,
    StackPlan,
    Terms,
    read,
)
from orch.stacks.saved_plans import compare
from orch.stacks.saved_plans.fingerprint import commit_of

MADE = datetime(2026, 11, 25, 13, 0, tzinfo=timezone.utc)
URN = "urn:pulumi:p5::tests::orch:fleet:Aws$aws:ec2/instance:Instance::p5-{}"


def node(index: int, **more: Any) -> Operation:
    return Operation(
        **{"urn": URN.format(index), "op": "create", "inputs": {"ami": "a1", "tags": "b2"}, **more}
    )


def stack(**more: Any) -> StackPlan:
    known: dict[str, Any] = {
        "kind": "fleet",
        "name": "p5",
        "where": "p5.yml:1",
        "file": "p5.yml",
        "files": {"p5.yml": "aa" * 32, "orch.yml": None},
        "lineage": "0123456789abcdef",
        "states": {"p5": RecordedState(serial=3, resources={URN.format(0): "d0", URN.format(1): "d1"})},
        "decisions": Decisions(scope="abc123", images={"image": "ami-1"}),
        "place": "use1-az2",
        "nodes": ("p5-0", "p5-1"),
        "prices": {"aws": PriceList(as_of="2025", digest="l1")},
        "priced": (
            Price(nodes="p5-[0-1]", machine="p5.48xlarge", place="use1-az2", market="on-demand", price=55.04),
        ),
        "cost": 110.08,
        "providers": {"aws": "7.1.0"},
        "operations": (node(0), node(1)),
        "new_keys": (HostKey(host="h", key="ssh-ed25519 A", fingerprint="SHA256:a", source="scanned"),),
    }
    return StackPlan(**{**known, **more})


def terms(**more: Any) -> Terms:
    known: dict[str, Any] = {
        "project": "tests",
        "rehearsal": True,
        "made": MADE,
        "expires": MADE + timedelta(days=1),
        "orch": "1.0",
        "engine": "3.259.0",
        "stacks": ("fleet p5",),
    }
    return Terms(**{**known, **more})


def saved(**more: Any) -> SavedPlan:
    known: dict[str, Any] = {
        "path": "p5.yml",
        "terms": terms(),
        "git": Commit(commit="c" * 40, dirty=True),
        "stacks": (stack(),),
    }
    return SavedPlan(**{**known, **more})


# The file


def test_a_plan_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(saved().text())
    assert read(file) == saved()
    assert re.fullmatch(r"[0-9a-f]{12}", saved().id)
    assert saved().id != saved(terms=terms(orch="1.1")).id
    assert json.loads(file.read_text())["terms"]["made"] == "2026-11-25T13:00:00Z"
    assert not terms().is_expired(MADE)
    assert terms().is_expired(MADE + timedelta(days=1))


def test_only_who_has_the_key_of_the_stack_can_write_a_plan() -> None:
    sealed = stack().sealed(terms(), "key")
    assert sealed.is_sealed(terms(), "key")
    assert stack(**sealed.model_dump()).is_sealed(terms(), "key")
    assert sealed.model_copy(update={"reasons": ("for people",)}).is_sealed(terms(), "key")
    assert not sealed.is_sealed(terms(), "other")
    assert not sealed.is_sealed(terms(expires=MADE + timedelta(days=9)), "key")
    other = Decisions(scope="abc123", images={"image": "ami-of-mallory"})
    assert not sealed.model_copy(update={"decisions": other}).is_sealed(terms(), "key")
    assert not stack().is_sealed(terms(), "key")


def test_every_edit_of_a_file_is_found(tmp_path: Path) -> None:
    file, text = tmp_path / "plan.json", saved().text()
    whole = json.loads(text)
    for key in [*whole, "more"]:
        data = {**whole, key: "another"}
        file.write_text(json.dumps(data))
        with pytest.raises(ProjectError) as refused:
            read(file)
        assert refused.value.code == "ORCH392", key
    for old, new in (
        ("use1-az2", "use1-az4"),
        ('"a1"', '"a2"'),
        ("55.04", "5.04"),
        ('"serial": 3', '"serial": 4'),
    ):
        assert old in text
        file.write_text(text.replace(old, new))
        with pytest.raises(ProjectError, match="edited or cut short"):
            read(file)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no saved plan"),
        ("[]", "no saved plan"),
        ("{", "no saved plan"),
        ("[" * 100_000, "no saved plan"),
        ('{"schema": 1, "fleet": "p5"}', "no saved plan"),
        ('{"format": "orch-plan", "schema": 2}', "a newer orch wrote this plan"),
        (saved().text()[:-40], "no saved plan"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_plan_is_refused_in_words(tmp_path: Path, content: str | None, told: str) -> None:
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ProjectError, match=told) as refused:
        read(file)
    assert refused.value.exit_code == ExitCode.CONFIG
    assert refused.value.hint


# What differs


def rows(now: StackPlan, approved: StackPlan | None = None, own: frozenset[str] = frozenset()) -> list[str]:
    return [str(each) for each in compare.differences(approved or stack(), now, own)]


STATE = RecordedState(serial=5, resources={URN.format(0): "d0", URN.format(1): "x1"}, pending=("p5-1",))
DRIFT = DriftRecord(urn=URN.format(0), path="tags.Name", registered="p5-0", observed="mine")


def test_a_killed_call_that_was_cleared_up_since_is_no_difference() -> None:
    states = stack().states["p5"]
    killed = stack().model_copy(update={"states": {"p5": states.model_copy(update={"pending": ("p5-1",)})}})
    assert rows(stack(), killed) == []
    assert rows(killed) == ["state of p5: serial 3 -> serial 3: a call is at work on p5-1"]
    other = killed.states["p5"].model_copy(update={"pending": ("p5-2",)})
    assert rows(stack().model_copy(update={"states": {"p5": other}}), killed) == [
        "state of p5: serial 3 -> serial 3: a call is at work on p5-2"
    ]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"files": {"p5.yml": "bb" * 32, "orch.yml": None}}, ["file p5.yml: aaaaaaaaaaaa -> bbbbbbbbbbbb"]),
        ({"files": {"p5.yml": "aa" * 32, "orch.yml": "c" * 64}}, ["file orch.yml: missing -> cccccccccccc"]),
        (
            {"states": {"p5": STATE}},
            ["state of p5: serial 3 -> serial 5: p5-1 recorded otherwise; a call is at work on p5-1"],
        ),
        ({"lineage": "f" * 16}, ["stack p5: as planned -> removed since, and made anew"]),
        ({"providers": {"aws": "7.2.0"}}, ["provider aws: 7.1.0 -> 7.2.0"]),
        ({"place": "use1-az4"}, ["place of p5: use1-az2 -> use1-az4"]),
        ({"nodes": ("p5-0",)}, ["nodes of p5: p5-[0-1] -> p5-0"]),
        (
            {"decisions": Decisions(scope="abc123", images={"image": "ami-2"})},
            ["image image: ami-1 -> ami-2"],
        ),
        ({"problems": ("gpu1 (ORCH370)",)}, ["hosts kept out: none -> gpu1 (ORCH370)"]),
        (
            {"new_keys": (HostKey(host="h", key="k", fingerprint="SHA256:b", source="accepted"),)},
            ["host key of h: SHA256:a -> SHA256:b"],
        ),
        (
            {
                "priced": (
                    Price(
                        nodes="p5-[0-1]",
                        machine="p5.48xlarge",
                        place="use1-az2",
                        market="on-demand",
                        price=60.0,
                    ),
                ),
                "cost": 120.0,
            },
            [
                "price of p5-[0-1]: $55.04 an hour (p5.48xlarge, use1-az2) -> "
                "$60.00 an hour (p5.48xlarge, use1-az2)"
            ],
        ),
        ({"cost": 111.0}, ["cost of fleet p5 by the hour: $110.08 -> $111.00"]),
        ({"drift": (DRIFT,)}, ["drift of p5-0 tags.Name: as registered (p5-0) -> found mine"]),
        ({"operations": (node(0),)}, ["instance p5-1: create -> no change"]),
        (
            {"operations": (node(0, op="update", properties=("tags.Name",)), node(1))},
            ["instance p5-0: create -> update (tags.Name)"],
        ),
        (
            {"operations": (node(0), node(1), node(2, op="delete"))},
            ["instance p5-2: no change -> delete"],
        ),
        (
            {"operations": tuple(node(i, inputs={"ami": "a9", "tags": "b2"}) for i in (0, 1))},
            ["instance p5-[0-1]: create -> create with another ami"],
        ),
        ({}, []),
        # What people read of a plan, and a list of prices none of which is used, keep no plan back.
        ({"reasons": ("other words",), "prices": {"aws": PriceList(as_of="2026", digest="l2")}}, []),
        ({"states": {"p5": stack().states["p5"].model_copy(update={"serial": 9})}}, []),
    ],
)
def test_each_difference_is_a_row(more: dict[str, Any], told: list[str]) -> None:
    assert rows(stack(**more)) == told


def test_a_replacement_for_another_reason_differs() -> None:
    old = stack(operations=(node(0, op="replace", replaces=("ami",), properties=("ami",)),))
    new = stack(operations=(node(0, op="replace", replaces=("subnetId",), properties=("subnetId",)),))
    assert rows(new, old) == ["instance p5-0: replace for ami -> replace for subnetId"]


def test_a_value_that_nobody_could_know_is_not_compared() -> None:
    old = stack(operations=(node(0, inputs={"subnetId": "?77"}),))
    new = stack(operations=(node(0, inputs={"subnetId": "88"}),))
    assert rows(new, old) == []
    assert rows(old, new) == ["instance p5-0: create -> create with another subnetId"]


def test_what_this_call_did_to_a_shared_stack_is_no_difference() -> None:
    shared = "urn:pulumi:network.lab::tests::aws:ec2/vpc:Vpc::lab"
    old = stack(
        states={**stack().states, "network.lab": RecordedState(serial=0, resources={})},
        operations=(Operation(urn=shared, op="create"), node(0)),
    )
    new = stack(
        states={**stack().states, "network.lab": RecordedState(serial=1, resources={shared: "v"})},
        operations=(node(0),),
    )
    assert len(rows(new, old)) == 2
    assert rows(new, old, frozenset({"network.lab"})) == []


def test_many_rows_are_counted() -> None:
    found = [compare.Difference(f"file {i}", "a", "b") for i in range(100)]
    text = compare.rows(found).splitlines()
    assert len(text) == compare.MOST_ROWS + 1
    assert text[-1] == f"… {100 - compare.MOST_ROWS} more rows"


def test_another_price_list_is_told() -> None:
    now = stack(prices={"aws": PriceList(as_of="2026", digest="l2")})
    assert list(compare.notes(stack(), now)) == [
        "the price list of aws is another one (2025 -> 2026); no price of this plan differs"
    ]
    assert list(compare.notes(stack(), stack())) == []


# Digests


def made(inputs: dict[str, Any], op: str = "create") -> Recorder:
    recorder = Recorder()
    metadata = {
        "urn": URN.format(0),
        "type": "aws:ec2/instance:Instance",
        "op": op,
        "new": {"inputs": inputs},
    }
    recorder({"resourcePreEvent": {"metadata": metadata}})
    return recorder


def digests(inputs: dict[str, Any], key: str = "key") -> dict[str, str]:
    return made(inputs).digests(URN.format(0), key)


def test_digests_tell_values_apart_and_nothing_without_the_key() -> None:
    one = digests({"ami": "ami-1", "tags": {"a": 1}})
    assert digests({"tags": {"a": 1}, "ami": "ami-1"}) == one
    assert {key for key, each in digests({"ami": "ami-2", "tags": {"a": 1}}).items() if each != one[key]} == {
        "ami"
    }
    assert not set(one.values()) & set(digests({"ami": "ami-1", "tags": {"a": 1}}, key="other").values())
    assert all(re.fullmatch(r"[0-9a-f]{16}", each) for each in one.values())


@pytest.mark.parametrize(
    "hide",
    [
        lambda value: {"userData": "[secret]", "was": len(value) * 0},
        lambda value: {"env": {"HF_TOKEN": value}},
        lambda value: {"apiKey": value},
        lambda value: {"script": f"export X={value}"},
    ],
)
def test_no_secret_is_in_a_digest(hide: Any) -> None:
    remember(["hunter2-hunter2", "another-secret"])
    assert digests(hide("hunter2-hunter2")) == digests(hide("another-secret"))


def test_what_is_known_later_is_marked_and_unchanged_resources_have_no_digest() -> None:
    assert digests({"subnetId": UNKNOWN, "ami": "a"})["subnetId"].startswith("?")
    assert made({"ami": "a"}, op="same").digests(URN.format(0), "key") == {}


def test_versions_of_providers_come_from_the_engine() -> None:
    recorder = Recorder()
    metadata = {
        "urn": "u",
        "type": "pulumi:providers:aws",
        "op": "same",
        "new": {"inputs": {"version": "7.1.0"}},
    }
    recorder({"resourcePreEvent": {"metadata": metadata}})
    assert recorder.providers == {"aws": "7.1.0"}


# Marks


def test_a_stack_remembers_the_last_plans_in_what_a_tag_holds() -> None:
    marks = Marks()
    for number in range(20):
        value = marks.adding(Mark(f"{number:012x}", "applied", "abcdef"))
        assert len(value) <= 256
        marks = Marks.of({"orch:plans": value})
    assert len(marks.plans) == MOST
    assert marks.of_plan(f"{19:012x}") == Mark(f"{19:012x}", "applied", "abcdef")
    assert marks.of_plan(f"{1:012x}") is None
    again = Marks.of({"orch:plans": marks.adding(Mark(f"{19:012x}", "failed", "000000"))})
    assert len(again.plans) == MOST
    assert (found := again.of_plan(f"{19:012x}")) is not None
    assert found.word == "failed"


# Git


def test_a_plan_tells_its_commit_and_base(tmp_path: Path) -> None:
    def git(folder: Path, *words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
        return subprocess.run(
            ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    origin = tmp_path / "origin"
    origin.mkdir()
    assert commit_of(origin, ["p5.yml"]) is None
    git(origin, "init", "-q")
    assert commit_of(origin, ["p5.yml"]) is None
    (origin / "p5.yml").write_text("a")
    git(origin, "add", ".")
    git(origin, "commit", "-qm", "one")
    base = git(origin, "rev-parse", "HEAD")
    assert commit_of(origin, ["p5.yml"]) == Commit(commit=base)
    here = tmp_path / "here"
    git(tmp_path, "clone", "-q", str(origin), "here")
    git(here, "checkout", "-qb", "change")
    (here / "p5.yml").write_text("b")
    git(here, "commit", "-qam", "two")
    head = git(here, "rev-parse", "HEAD")
    assert commit_of(here, ["p5.yml"]) == Commit(commit=head, base=base)
    (here / "other.yml").write_text("not of the plan")
    assert commit_of(here, ["p5.yml"]) == Commit(commit=head, base=base)
    (here / "p5.yml").write_text("c")
    assert commit_of(here, ["p5.yml"]) == Commit(commit=head, base=base, dirty=True)
