"""Which cluster a stack belongs to, where contexts of one project lead to several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.kubernetes.memorycluster import Served, clusters
from kit.support import Folder

from orch.components.kubernetes.cluster import ClusterAccount
from orch.components.marks.marked import Survey
from orch.spec.errors import ExitCode
from orch.stacks.errors import OtherAccount
from orch.stacks.project.project import find
from orch.stacks.pulumi.accounts import (
    TAG,
    doubt_of,
    leads_elsewhere,
    require_own,
    require_planned,
    require_surveyed,
)
from orch.stacks.stack.state import StackState

CLAIM = "kubernetes:core/v1:PersistentVolumeClaim"


def resource(kind: str, name: str, id_: str, **inputs: Any) -> dict[str, Any]:
    urn = f"urn:pulumi:volume.data::tests::{kind}::{name}"
    return {"urn": urn, "type": kind, "custom": True, "id": id_, "inputs": inputs}


class Lab:
    """A stack of a volume, made through the context `lab`, and two clusters to which that may lead."""

    def __init__(self, path: Path, here: Served, there: Served) -> None:
        self.path, self.here, self.there = path, here, there
        self.kubeconfig = path / "kube.yml"
        self.claim = resource(CLAIM, "data", "lab/orch-data")
        here.lead(self.kubeconfig)
        folder = Folder(path)
        folder.write("orch.yml", "project: tests\nbackends: [{type: kubernetes}]\n")

    def stack(self, *, tag: str | None = None, name: str = "volume.data", **project: bool) -> StackState:
        found = find(self.path)
        provider = resource(
            "pulumi:providers:kubernetes",
            "data-kubernetes",
            "p",
            kubeconfig=str(self.kubeconfig),
            context="lab",
        )
        checkpoint = found.checkpoint(name)
        assert checkpoint is not None
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        resources = [provider, self.claim]
        checkpoint.write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))
        tags = {} if tag is None else {TAG: json.dumps({"kubernetes": {"id": tag, "words": "the cluster"}})}
        checkpoint.with_name(f"{name}.pulumi-tags").write_text(json.dumps({"version": 1, "tags": tags}))
        return StackState(replace(found, **project), name)

    def lost(self) -> list[dict[str, Any]]:
        """The engine's events of a refresh that does not find the claim."""
        data = {"op": "refresh", "urn": self.claim["urn"], "type": CLAIM, "old": {"id": self.claim["id"]}}
        return [
            {"resourcePreEvent": {"metadata": {**data, "new": {"id": self.claim["id"]}}}},
            {"resOutputsEvent": {"metadata": {**data, "new": None}}},
        ]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Lab]:
    project = tmp_path / "project"
    project.mkdir()
    with clusters(tmp_path, "uid-here", "uid-there") as (here, there):
        yield Lab(project, here, there)


@pytest.mark.parametrize(
    ("name", "leave"),
    [("volume.data", "`orch volume delete data --forget`"), ("lab", "`orch down lab --force`")],
)
def test_the_cluster_that_the_recorded_provider_leads_to_is_compared(
    place: Lab, name: str, leave: str
) -> None:
    require_own(place.stack(tag="uid-here", name=name))
    place.there.lead(place.kubeconfig)
    with pytest.raises(OtherAccount) as told:
        require_own(place.stack(tag="uid-here", name=name))
    error = told.value
    assert (error.code, error.exit_code) == ("ORCH459", ExitCode.CONFLICT)
    assert f"at 127.0.0.1:{place.there.server.port}" in error.summary
    assert f"selected by context lab of {place.kubeconfig}" in str(error.detail)
    assert leave in str(error.hint)


def test_a_cluster_that_does_not_answer_confirms_nothing(place: Lab) -> None:
    place.here.server.close()
    with pytest.raises(Exception, match="refuses connections") as told:
        require_own(place.stack(tag="uid-here"))
    assert not isinstance(told.value, OtherAccount)


def test_without_a_record_that_all_is_gone_at_once_is_doubted(place: Lab) -> None:
    stack = place.stack()
    require_own(stack)
    error = doubt_of(stack, place.lost())
    assert error is not None
    assert (error.code, "`orch volume delete data --forget`" in str(error.hint)) == ("ORCH349", True)
    known = place.stack(tag="uid-here")
    require_own(known)
    assert doubt_of(known, place.lost()) is None


def test_another_clone_has_the_kubeconfig_in_another_place(place: Lab) -> None:
    stack = place.stack(tag="uid-here")
    place.there.lead(place.kubeconfig.with_name("own.yml"))
    place.kubeconfig.unlink()
    (place.path / "orch.yml").write_text(
        "project: tests\nbackends: [{type: kubernetes, kubeconfig: {filename: own.yml}}]\n"
    )
    with pytest.raises(OtherAccount):
        require_own(StackState(find(place.path), stack.name))


def test_a_plan_for_another_cluster_is_refused_also_where_none_is_recorded(place: Lab) -> None:
    here, there = (ClusterAccount(uid, f"{uid}+server/1") for uid in ("uid-here", "uid-there"))
    for tag in ("uid-here", None):
        require_planned(place.stack(tag=tag), "kubernetes", here)
        with pytest.raises(OtherAccount, match="and the credentials lead to uid-there"):
            require_planned(place.stack(tag=tag), "kubernetes", there)
    require_planned(place.stack(tag="uid-here"), "kubernetes", None)
    require_planned(StackState(find(place.path), "volume.new"), "kubernetes", there)


def test_a_stack_is_known_to_be_on_another_cluster_where_one_is_recorded(place: Lab) -> None:
    assert not leads_elsewhere(place.stack(tag="uid-here"))
    place.there.lead(place.kubeconfig)
    assert leads_elsewhere(place.stack(tag="uid-here"))
    assert not leads_elsewhere(place.stack())
    for word in ("force", "forget"):
        with pytest.raises(OtherAccount):
            require_own(place.stack(tag="uid-here", **{word: True}))


def test_a_look_for_leftovers_lists_no_claims_and_doubts_none(place: Lab) -> None:
    require_surveyed(place.stack(), Survey())


@pytest.mark.parametrize(
    ("recorded", "present", "same", "completed"),
    [
        ("a+server/1", "a+server/2", True, "a+server/1"),
        ("a", "a+server/2", True, "a+server/2"),
        ("server/1", "a+server/1", True, "a+server/1"),
        ("a+server/1", "server/1", True, "a+server/1"),
        ("a+server/1", "b+server/1", False, None),
        ("a+server/1", "server/2", False, None),
        ("server/1", "server/2", False, None),
    ],
)
def test_a_cluster_is_compared_by_what_two_users_could_read(
    recorded: str, present: str, same: bool, completed: str | None
) -> None:
    account = ClusterAccount("the cluster", present)
    assert account.has(recorded) is same
    if completed is not None:
        assert account.completed(recorded) == completed
