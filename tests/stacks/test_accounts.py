"""Which account a stack belongs to: its record, what of it stands in a cloud, and what is believed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.support import Folder

from orch.components.accounts import Account
from orch.components.marks.marked import MarkedResource, Survey
from orch.spec.errors import ExitCode
from orch.stacks.errors import OtherAccount
from orch.stacks.project.project import find
from orch.stacks.pulumi import accounts
from orch.stacks.pulumi.accounts import (
    FRESH_S,
    TAG,
    RecordedAccount,
    doubt_of,
    in_clouds,
    recorded_accounts,
    require_own,
    require_own_if_told,
    require_surveyed,
)
from orch.stacks.runs import leftovers
from orch.stacks.runs.surveyed import Surveyed
from orch.stacks.stack.command import plain, set_tag
from orch.stacks.stack.state import StackState
from orch.stacks.stack.tags import read_tags

OWN = {"lambda": {"id": "own", "words": "Lambda account own"}}


def resource(kind: str, name: str, id_: str = "", **more: Any) -> dict[str, Any]:
    urn = f"urn:pulumi:lab::tests::{kind}::{name}"
    return {"urn": urn, "type": kind, "custom": not kind.startswith("orch:fleet:"), "id": id_, **more}


NODE = resource("orch-lambda:index:Instance", "lab-0", "i-0")
KEY = resource("orch-lambda:index:SshKey", "lab-key", "k-0")
GANG = resource("orch-lambda:index:Gang", "lab-gang", "lab-gang")
BESIDE = (
    resource("orch:fleet:Lambda", "lab"),
    resource("orch:index:Keys", "lab-keys", "keys"),
    resource("pulumi:providers:orch-lambda", "own", "p"),
    GANG,
)


def stack(
    tmp_path: Path, *resources: dict[str, Any], present: Account | None, tag: object = None
) -> StackState:
    """A stack as files have it, of a project whose credentials lead to the account `present`."""
    tmp_path.mkdir(parents=True, exist_ok=True)
    Folder(tmp_path).write("orch.yml", "project: tests\n")
    project = find(tmp_path)
    project.accounts["lambda"] = (float("inf"), present)
    checkpoint = project.checkpoint("lab")
    assert checkpoint is not None
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_text(json.dumps({"checkpoint": {"latest": {"resources": list(resources)}}}))
    if tag is not None:
        tags = {"version": 1, "tags": {TAG: tag if isinstance(tag, str) else json.dumps(tag)}}
        checkpoint.with_name("lab.pulumi-tags").write_text(json.dumps(tags))
    return StackState(project, "lab")


def refreshed(*resources: dict[str, Any], lost: tuple[dict[str, Any], ...] = ()) -> list[dict[str, Any]]:
    """The engine's events of a refresh that finds some resources, and others gone."""
    events: list[dict[str, Any]] = []
    for each in (*resources, *lost):
        data = {"op": "refresh", "urn": each["urn"], "type": each["type"], "old": {"id": each["id"]}}
        events.append({"resourcePreEvent": {"metadata": {**data, "new": {"id": each["id"]}}}})
        new = None if each in lost else {"id": each["id"]}
        events.append({"resOutputsEvent": {"metadata": {**data, "new": new}}})
    return events


@pytest.mark.parametrize(
    "tag", [None, "", "[]", "{", '"x"', '{"aws": 1}', '{"aws": {"id": "1"}}', '{"aws": ["id", "words"]}']
)
def test_a_tag_that_orch_has_not_written_tells_no_account(tag: str | None) -> None:
    assert recorded_accounts({} if tag is None else {TAG: tag}) == {}


def test_an_account_is_recorded_by_backend_with_the_words_of_who_recorded_it() -> None:
    assert recorded_accounts({TAG: json.dumps(OWN)}) == {
        "lambda": RecordedAccount("own", "Lambda account own")
    }


def test_what_stands_in_a_cloud_is_neither_a_group_nor_a_wait_nor_a_key_of_ours() -> None:
    found = in_clouds([NODE, KEY, *BESIDE, {**NODE, "urn": "begun", "id": ""}])
    assert found == {"lambda": {NODE["urn"]: "i-0", KEY["urn"]: "k-0"}}


@pytest.mark.parametrize("resources", [(NODE, *BESIDE), BESIDE, ()])
def test_a_difference_is_a_conflict_that_names_both_and_what_selected_the_present_one(
    resources: tuple[dict[str, Any], ...], tmp_path: Path
) -> None:
    there = stack(tmp_path, *resources, present=Account("Lambda account b", "b", "AWS_X=dev"), tag=OWN)
    with pytest.raises(OtherAccount) as told:
        require_own(there)
    error = told.value
    assert (error.code, error.exit_code) == ("ORCH459", ExitCode.CONFLICT)
    assert error.summary == (
        "the fleet lab belongs to Lambda account own, and the credentials lead to Lambda account b"
    )
    assert "AWS_X=dev" in str(error.detail)
    assert "AWS_X=dev" in str(error.hint)
    with pytest.raises(OtherAccount):
        require_own_if_told(there)


@pytest.mark.parametrize(
    "present",
    [
        Account("another key of it", "own"),
        Account("a key that sees a further tenant", "a+own"),
        Account("a cloud that tells none any more"),
        None,
    ],
)
def test_the_same_account_serves_by_any_key(present: Account | None, tmp_path: Path) -> None:
    require_own(stack(tmp_path, NODE, present=present, tag=OWN))


def test_nobody_is_asked_about_a_stack_without_a_record_nor_about_a_backend_that_it_has_left(
    tmp_path: Path,
) -> None:
    other = Account("b", "b")
    require_own(stack(tmp_path / "a", NODE, present=other))
    left = {**OWN, "runpod": {"id": "x", "words": "x"}}
    there = stack(tmp_path / "b", NODE, present=Account("own", "own"), tag=left)
    there.project.accounts["runpod"] = (float("inf"), other)
    require_own(there)


def test_an_answer_is_kept_for_a_while_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAMBDA_API_KEY", raising=False)
    there = stack(tmp_path, NODE, present=Account("own", "own"), tag=OWN)
    require_own(there)
    there.project.accounts["lambda"] = (-FRESH_S, Account("own", "own"))
    asked = there.project.accounts["lambda"]
    with pytest.raises(Exception, match="Lambda"):
        require_own(there)
    require_own_if_told(there)
    assert there.project.accounts["lambda"] is asked


def test_that_all_is_gone_at_once_is_doubted_where_no_account_is_recorded(tmp_path: Path) -> None:
    key = Account("Lambda account", selected_by="LAMBDA_API_KEY")
    for name, found, lost, doubted in (
        ("all", (*BESIDE,), (NODE, KEY), True),
        ("one", (*BESIDE, KEY), (NODE,), False),
        ("none", (*BESIDE, KEY, NODE), (), False),
    ):
        there = stack(tmp_path / name, NODE, KEY, *BESIDE, present=key)
        error = doubt_of(there, refreshed(*found, lost=lost))
        assert (error is not None, "lambda" in there.confirmed) == (doubted, not doubted), name
        if error is not None:
            assert (error.code, error.exit_code) == ("ORCH349", ExitCode.CONFLICT)
            assert "LAMBDA_API_KEY" in str(error.detail)
            assert "`orch refresh lab --forget`" in str(error.hint)
    # One of one is all, too.
    there = stack(tmp_path / "single", NODE, *BESIDE, present=key)
    assert doubt_of(there, refreshed(*BESIDE, lost=(NODE,))) is not None


@pytest.mark.parametrize("present", [None, Account("own", "own")])
def test_it_is_believed_where_nobody_logs_in_or_the_account_is_the_recorded_one(
    present: Account | None, tmp_path: Path
) -> None:
    there = stack(tmp_path, NODE, present=present, tag=None if present is None else OWN)
    require_own(there)
    assert doubt_of(there, refreshed(lost=(NODE,))) is None


def test_a_cloud_that_tells_no_account_any_more_is_compared_by_what_is_there(tmp_path: Path) -> None:
    there = stack(tmp_path, NODE, present=Account("a key"), tag=OWN)
    require_own(there)
    assert doubt_of(there, refreshed(lost=(NODE,))) is not None


def test_a_look_that_lists_nothing_of_a_stack_says_nothing_of_leftovers(tmp_path: Path) -> None:
    def marked(id_: str) -> MarkedResource:
        return MarkedResource("lambda", "tests/lab/abcdef", "instance", id_, "lab-0")

    there = stack(tmp_path / "a", NODE, KEY, present=Account("Lambda account"))
    with pytest.raises(OtherAccount, match="is gone at once"):
        require_surveyed(there, Survey((marked("i-9"),)))
    require_surveyed(there, Survey((marked("k-0"),)))
    # A disk that existed before orch bears no mark, so no look lists it.
    given = {**NODE, "external": True}
    require_surveyed(stack(tmp_path / "given", given, present=Account("Lambda account")), Survey())
    both = stack(tmp_path / "both", given, KEY, present=Account("Lambda account"))
    with pytest.raises(OtherAccount, match="is gone at once"):
        require_surveyed(both, Survey())
    known = stack(tmp_path / "b", NODE, present=Account("own", "own"), tag=OWN)
    require_own(known)
    require_surveyed(known, Survey())


@pytest.mark.usefixtures("engine")
def test_a_state_that_moves_or_gets_a_new_key_takes_the_record_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE", raising=False)
    folder = Folder(tmp_path / "project")
    folder.path.mkdir()
    folder.write("orch.yml", "project: tests\n")
    project = find(folder.path)
    project.prepare()
    there = StackState(project, "lab")
    plain(there, ["stack", "init"])
    set_tag(there, TAG, json.dumps(OWN))
    said = folder.orch("state", "move", "--to", f"file://{tmp_path / 'moved'}", "--yes")
    assert said.code == 0, said.err
    moved = StackState(find(folder.path), "lab")
    assert moved.project.local_state == tmp_path / "moved"
    assert recorded_accounts(read_tags(moved)) == recorded_accounts({TAG: json.dumps(OWN)})
    said = folder.orch("rotate", "passphrase", "--yes")
    assert said.code == 0, said.err
    assert recorded_accounts(read_tags(moved)) == recorded_accounts({TAG: json.dumps(OWN)})


def test_an_account_in_which_nothing_is_recorded_is_given_up_by_the_users_word_alone(tmp_path: Path) -> None:
    other = Account("b", "b")
    for name, resources, given_up in (("none", (), True), ("beside", BESIDE, True), ("node", (NODE,), False)):
        there = stack(tmp_path / name, *resources, present=other, tag=OWN)
        with pytest.raises(OtherAccount) as told:
            require_own(there)
        assert ("`orch down lab --forget`" in str(told.value.hint)) == given_up, name
        forgetting = StackState(replace(there.project, forget=True), "lab")
        forgetting.project.accounts["lambda"] = (float("inf"), other)
        if given_up:
            require_own(forgetting)
        else:
            with pytest.raises(OtherAccount):
                require_own(forgetting)


def test_an_account_that_cannot_be_asked_keeps_gc_from_no_other_cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAMBDA_API_KEY", raising=False)
    there = stack(tmp_path, NODE, present=None, tag=OWN)
    looked: list[str] = []

    def survey(*given: Any) -> Surveyed:
        looked.append("aws")
        return Surveyed(Survey(), ("aws", "lambda"))

    monkeypatch.setattr(leftovers, "survey_all", survey)
    del there.project.accounts["lambda"]
    found = leftovers.find_leftovers(there.project)
    assert looked == ["aws"]
    assert ["Lambda" in each.text() for each in found.not_seen] == [True]
    project = find(tmp_path)
    project.accounts["lambda"] = (float("inf"), Account("b", "b"))
    with pytest.raises(OtherAccount):
        leftovers.find_leftovers(project)


def test_credentials_that_see_less_than_was_recorded_are_of_another_account(tmp_path: Path) -> None:
    both = {"lambda": {"id": "a+own", "words": "two tenants"}}
    for present in ("own", "b+own", "a+ow"):
        with pytest.raises(OtherAccount):
            require_own(stack(tmp_path / present, NODE, present=Account("less", present), tag=both))


def test_an_account_is_asked_where_an_sdk_may_wait_for_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = stack(tmp_path, present=None)
    del there.project.accounts["lambda"]

    def asked(*given: Any) -> Account:
        # As the SDK of Nebius does it.
        asyncio.run(asyncio.sleep(0))
        return Account("own", "own")

    monkeypatch.setattr(accounts.require_backend("lambda"), "account", asked)

    async def program() -> Account | None:
        return accounts.present_account(there.project, "lambda")

    assert asyncio.run(program()) == Account("own", "own")
