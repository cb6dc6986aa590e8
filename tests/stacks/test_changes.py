"""Engine events become typed changes."""

from __future__ import annotations

from typing import Any

from orch.stacks.changes import GONE, changes, drifted, summary
from orch.stacks.masking import HIDDEN, KNOWN_LATER, shown_pair

NODE = "orch:local:Node"


def event(
    op: str, name: str, *, kind: str = NODE, key: str = "resourcePreEvent", **more: Any
) -> dict[str, Any]:
    data = {
        "op": op,
        "urn": f"urn:pulumi:s::p::{kind}::{name}",
        "type": kind,
        "old": None,
        "new": None,
        **more,
    }
    return {key: {"metadata": data}}


def state(inputs: dict[str, Any], **outputs: Any) -> dict[str, Any]:
    return {"inputs": inputs, "outputs": outputs}


def test_changes_are_sorted_and_leave_out_the_engines_own() -> None:
    found = changes(
        [
            event("create", "b"),
            event("same", "a"),
            event("create", "s", kind="pulumi:pulumi:Stack"),
            event("create", "default", kind="pulumi:providers:orch"),
            event("refresh", "b"),
        ]
    )
    assert [(c.op, c.name) for c in found] == [("same", "a"), ("create", "b")]
    assert summary(found) == {"create": 1, "update": 0, "replace": 0, "delete": 0, "same": 1}


def test_a_changed_leaf_has_its_old_and_new_value() -> None:
    (found,) = changes(
        [
            event(
                "update",
                "a",
                old=state({"cpus": 1, "memory": 2048.0}),
                new=state({"cpus": 2, "memory": 2048.0}),
                detailedDiff={"cpus": {"diffKind": "update", "inputDiff": True}},
            )
        ]
    )
    (leaf,) = found.diff
    assert (leaf.path, leaf.old, leaf.new, leaf.replaces, leaf.drifted) == ("cpus", 1, 2, False, False)


def test_without_the_providers_word_the_inputs_are_compared() -> None:
    (found,) = changes([event("update", "a", old=state({"x": 1, "y": 1}), new=state({"x": 1, "y": 2}))])
    assert [(leaf.path, leaf.old, leaf.new) for leaf in found.diff] == [("y", 1, 2)]


def test_a_replacement_is_one_change_with_what_forces_it() -> None:
    old, new = state({"ip": "10.0.0.1"}), state({"ip": "04da6b54-80e4-46f7-96ec-b56ff0331ba9"})
    diff = {"ip": {"diffKind": "update-replace", "inputDiff": True}}
    found = changes(
        [
            event("delete-replaced", "a", old=old),
            event("replace", "a", old=old, new=new, detailedDiff=diff),
            event("create-replacement", "a", old=old, new=new, detailedDiff=diff),
        ]
    )
    assert [(c.op, c.diff[0].path, c.diff[0].replaces, c.diff[0].new) for c in found] == [
        ("replace", "ip", True, KNOWN_LATER)
    ]


def test_secrets_are_never_shown() -> None:
    secret = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "x"}
    (found,) = changes([event("update", "a", old=state({"k": secret}), new=state({"k": "plain"}))])
    assert found.diff[0].old == HIDDEN


SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "x"}


def test_a_value_that_becomes_a_secret_is_hidden_as_it_was_before_too() -> None:
    """A state of a former version holds it in clear; a plan is read by more people than a state."""
    old = state({"env": {"TOKEN": "hf_old", "GONE": "hf_gone"}, "port": 22})
    new = state({"env": {"TOKEN": SECRET, "NEW": SECRET}, "port": 22})
    for diff in (
        {"env.TOKEN": {"diffKind": "update", "inputDiff": True}},
        {"env": {"diffKind": "update", "inputDiff": True}},
        None,
    ):
        found = changes([event("update", "a", old=old, new=new, detailedDiff=diff)])
        told = str([change.as_json() for change in found])
        assert "hf_old" not in told, diff
        assert HIDDEN in told


def test_secrets_among_others_and_in_lists_are_hidden_on_both_sides() -> None:
    assert shown_pair({"a": [1, "x"], "b": 2.0}, {"a": [1, SECRET], "b": 3.0}) == (
        {"a": [1, HIDDEN], "b": 2},
        {"a": [1, HIDDEN], "b": 3},
    )
    assert shown_pair(None, SECRET) == (None, HIDDEN)
    assert shown_pair(["x", "y"], [SECRET]) == ([HIDDEN, "y"], [HIDDEN])
    assert shown_pair("[secret]", "clear") == (HIDDEN, HIDDEN)


def test_what_was_observed_is_the_old_value_of_a_drifted_leaf() -> None:
    (found,) = changes(
        [
            event(
                "update",
                "a",
                old=state({"status": "running"}, observed={"status": "exited"}),
                new=state({"status": "running"}),
                detailedDiff={"status": {"diffKind": "update", "inputDiff": False}},
            )
        ]
    )
    assert [(leaf.old, leaf.new, leaf.drifted) for leaf in found.diff] == [("exited", "running", True)]


def test_drift_names_what_is_gone_and_what_differs() -> None:
    there = state({"status": "running", "cpus": 1}, observed={"status": "paused", "cpus": 1})
    found = drifted(
        [
            event("delete", "b", key="resOutputsEvent", old=there),
            event("update", "a", key="resOutputsEvent", old=there, new=there),
        ]
    )
    assert [(d.name, d.path, d.registered, d.observed) for d in found] == [
        ("a", "status", "running", "paused"),
        ("b", "", "registered", GONE),
    ]
