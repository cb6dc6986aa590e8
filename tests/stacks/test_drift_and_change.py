"""Drift is what the refresh found to differ from what was recorded, and nothing else: on streams of the real
engine (events/README.md)."""

from __future__ import annotations

import json

import pytest
from kit.engine.recorded_plans import EVENTS, Preview

from orch.stacks.events.changes import GONE, changes, find_drift, matches_record, without_values

ALL = sorted(each.stem for each in EVENTS.glob("*.json"))
ORDINARY = [name for name in ALL if "drift" not in name]

USER_DATA = "#cloud-config of a node"

# Case -> what somebody did behind orch's back: name, path, registered, found.
OWNER = ("p5-1", "tags.owner", "ada", "mallory")
DONE: dict[str, set[tuple[str, str, object, object]]] = {
    "aws-drift": {OWNER},
    "aws-drift-and-tags": {OWNER},
    "aws-drift-gone-and-nodes-5": {OWNER, ("p5-2", "", "registered", GONE)},
    "aws-drift-and-disk": {OWNER, ("p5-2", "", "registered", GONE)},
    "gcp-drift": {("lab-0", "labels.owner", "ada", "mallory")},
    "gcp-drift-and-tags": {("lab-0", "labels.owner", "ada", "mallory")},
    "local-drift": {("laptop-1", "memory_mib", 1024, 900)},
    "local-drift-and-memory": {("laptop-1", "memory_mib", 1024, 900)},
    "local-drift-gone-and-nodes-3": {("laptop-1", "", "registered", GONE)},
    "ssh-drift": {("gpu1", "gpu_count", 8, 7)},
    "ssh-drift-and-blocks": {("gpu1", "gpu_count", 8, 7)},
}


def test_every_stream_with_drift_is_judged() -> None:
    assert set(DONE) == set(ALL) - set(ORDINARY)


@pytest.mark.parametrize("name", ALL)
def test_the_values_that_are_not_kept_are_those_that_nobody_is_told(name: str) -> None:
    """The streams were stored without them: each resource that has none gets some."""
    whole = Preview.of(name).events
    for event in whole:
        (data,) = (each["metadata"] for each in event.values())
        for side in ("old", "new"):
            if data[side]:
                data[side] = {"inputs": {"text": USER_DATA}, "outputs": {"text": USER_DATA}} | data[side]
    kept = [without_values(event) for event in whole]
    assert changes(kept) == changes(whole)
    assert find_drift(kept) == find_drift(whole)
    assert matches_record(kept) == matches_record(whole)
    assert json.dumps(kept).count(USER_DATA) < json.dumps(whole).count(USER_DATA) / 2


@pytest.mark.parametrize("name", ORDINARY)
def test_a_change_of_the_file_alone_is_no_drift(name: str) -> None:
    preview = Preview.of(name)
    assert find_drift(preview.events) == ()
    for change in preview.changes:
        assert change.drift == ()
        assert [leaf for leaf in change.diff if leaf.drift] == []


@pytest.mark.parametrize("name", DONE)
def test_what_was_done_behind_orch_is_told_with_what_was_registered(name: str) -> None:
    found = {
        (each.name, each.path, each.registered, each.observed)
        for each in find_drift(Preview.of(name).events)
        if not each.path.startswith("ingress")
    }
    assert found == DONE[name]


@pytest.mark.parametrize("name", DONE)
def test_the_plan_and_orch_drift_tell_the_same(name: str) -> None:
    """`orch drift` parses a refresh alone: the same steps as those before a plan."""
    preview = Preview.of(name)
    alone = [
        event
        for event in preview.events
        if event.get("resourcePreEvent", event.get("resOutputsEvent"))["metadata"]["op"] == "refresh"
    ]
    assert find_drift(alone) == preview.plan().drift
    told = {(each.urn, each.path) for change in preview.changes for each in change.drift}
    assert told == {(each.urn, each.path) for each in preview.plan().drift}


def test_an_opened_security_group_is_told_as_the_rule_that_was_added() -> None:
    (rule,) = [each for each in find_drift(Preview.of("aws-drift").events) if each.path.startswith("ingress")]
    assert rule.registered is None
    assert (rule.observed["cidrBlocks"], rule.observed["fromPort"]) == (["0.0.0.0/0"], 22)
    (change,) = [each for each in Preview.of("aws-drift").changes if each.urn == rule.urn]
    assert [(leaf.old, leaf.new) for leaf in change.diff] == [(rule.observed, None)]


def leaf_of(name: str, resource: str, path: str) -> tuple[object, object, object]:
    """What is there, what is wanted, what was registered where that is neither."""
    (leaf,) = [
        leaf
        for change in Preview.of(name).changes
        for leaf in change.diff
        if (change.name, leaf.path) == (resource, path)
    ]
    return leaf.old, leaf.new, leaf.drift and leaf.drift.registered


def test_drift_and_change_of_one_property_are_both_told() -> None:
    assert leaf_of("aws-drift-and-tags", "p5-1", "tags.owner") == ("mallory", "eve", "ada")
    assert leaf_of("gcp-drift-and-tags", "lab-0", "labels.owner") == ("mallory", "eve", "ada")
    assert leaf_of("local-drift-and-memory", "laptop-1", "memory_mib") == (900, 2048, 1024)


def test_the_same_change_of_a_node_that_did_not_drift_is_a_change_only() -> None:
    assert leaf_of("aws-drift-and-tags", "p5-0", "tags.owner") == ("ada", "eve", None)
    assert leaf_of("local-drift-and-memory", "laptop-0", "memory_mib") == (1024, 2048, None)


def test_drift_of_one_property_leaves_the_change_of_another_a_change() -> None:
    assert leaf_of("ssh-drift-and-blocks", "gpu1", "blocks") == (1, 2, None)
    assert leaf_of("ssh-drift-and-blocks", "gpu1", "gpu_count") == (7, 8, 8)
    assert leaf_of("aws-drift-gone-and-nodes-5", "p5-capacity", "instanceCount") == (4, 5, None)


def test_a_node_that_is_gone_is_told_apart_from_one_that_is_added() -> None:
    for name, gone, new in (
        ("aws-drift-gone-and-nodes-5", "p5-2", "p5-4"),
        ("local-drift-gone-and-nodes-3", "laptop-1", "laptop-2"),
    ):
        made = {each.name: each for each in Preview.of(name).changes if each.op == "create"}
        assert set(made) == {gone, new}
        assert [each.observed for each in made[gone].drift] == [GONE]
        assert made[new].drift == ()
