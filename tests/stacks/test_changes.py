"""Engine events become typed changes; what those of real plans become is in test_drift_and_change.py."""

from __future__ import annotations

from typing import Any

from orch.stacks.events.changes import GONE, changes, find_drift, summary
from orch.stacks.events.masking import HIDDEN, KNOWN_LATER, masked_pair

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


def refreshed(name: str, **more: Any) -> list[dict[str, Any]]:
    """A refresh of one resource, from its beginning to what came of it."""
    return [
        event("refresh", name, old=more.get("old"), new=more.get("old")),
        event("refresh", name, key="resOutputsEvent", **more),
    ]


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
    assert (leaf.path, leaf.old, leaf.new, leaf.replaces, leaf.drift) == ("cpus", 1, 2, False, None)


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
    assert masked_pair({"a": [1, "x"], "b": 2.0}, {"a": [1, SECRET], "b": 3.0}) == (
        {"a": [1, HIDDEN], "b": 2},
        {"a": [1, HIDDEN], "b": 3},
    )
    assert masked_pair(None, SECRET) == (None, HIDDEN)
    assert masked_pair(["x", "y"], [SECRET]) == ([HIDDEN, "y"], [HIDDEN])
    assert masked_pair("[secret]", "clear") == (HIDDEN, HIDDEN)


def test_what_was_observed_is_the_old_value_of_a_drifted_leaf() -> None:
    there = state({"status": "running"}, observed={"status": "exited"})
    (found,) = changes(
        [
            *refreshed("a", old=state({"status": "running"}, observed={"status": "running"}), new=there),
            event(
                "update",
                "a",
                old=there,
                new=state({"status": "running"}),
                detailedDiff={"status": {"diffKind": "update", "inputDiff": False}},
            ),
        ]
    )
    assert [(leaf.old, leaf.new) for leaf in found.diff] == [("exited", "running")]
    assert [(each.path, each.registered, each.observed) for each in found.drift] == [
        ("status", "running", "exited")
    ]
    assert found.diff[0].drift == found.drift[0]


def test_what_a_provider_says_of_inputs_is_not_what_makes_a_drift() -> None:
    """A cloud's provider compares with what is there, so it says "not of the inputs" of ordinary changes."""
    there = state({"size": 4}, size=4)
    diff = {"size": {"diffKind": "update", "inputDiff": False}}
    (found,) = changes(
        [
            *refreshed("a", old=there, new=there, detailedDiff={}),
            event("update", "a", old=there, new=state({"size": 5}), detailedDiff=diff),
        ]
    )
    assert [(leaf.old, leaf.new, leaf.drift) for leaf in found.diff] == [(4, 5, None)]


def test_the_world_and_the_file_may_both_have_changed_a_property() -> None:
    kept, there = state({"size": 4}, size=4), state({"size": 3}, size=3)
    diff = {"size": {"diffKind": "update", "inputDiff": False}}
    (found,) = changes(
        [
            *refreshed("a", old=kept, new=there, detailedDiff=diff),
            event("update", "a", old=there, new=state({"size": 5}), detailedDiff=diff),
        ]
    )
    (leaf,) = found.diff
    assert leaf.as_json() == {
        "path": "size",
        "old": 3,
        "new": 5,
        "replaces": False,
        "drift": {"registered": 4, "observed": 3},
    }


def test_what_an_up_made_in_its_first_step_is_no_drift_in_its_second() -> None:
    small, large = state({"size": 4}, size=4), state({"size": 5}, size=5)
    diff = {"size": {"diffKind": "update", "inputDiff": False}}
    events = [
        *refreshed("a", old=small, new=small),
        event("update", "a", old=small, new=large, detailedDiff=diff),
        event("update", "a", key="resOutputsEvent", old=small, new=large, detailedDiff=diff),
        *refreshed("a", old=small, new=large, detailedDiff=diff),
        event("same", "a", old=large, new=large),
    ]
    assert find_drift(events) == ()
    assert [(each.op, each.drift) for each in changes(events)] == [("update", ())]


def test_drift_that_nothing_mends_changes_nothing() -> None:
    kept, there = state({"size": 4}, size=4), state({"size": 3}, size=3)
    diff = {"size": {"diffKind": "update", "inputDiff": False}}
    events = [*refreshed("a", old=kept, new=there, detailedDiff=diff), event("same", "a")]
    assert [(each.op, each.drift[0].path) for each in changes(events)] == [("same", "size")]


def test_drift_names_what_is_gone_and_what_differs() -> None:
    there = state({"status": "running", "cpus": 1}, observed={"status": "paused", "cpus": 1})
    found = find_drift([*refreshed("b", old=there), *refreshed("a", old=there, new=there)])
    assert [(d.name, d.path, d.registered, d.observed) for d in found] == [
        ("a", "status", "running", "paused"),
        ("b", "", "registered", GONE),
    ]


def test_a_label_that_differs_is_told_once_though_its_provider_repeats_it() -> None:
    copies = ("labels", "pulumiLabels", "effectiveLabels")
    kept, there = ({"inputs": {}, "outputs": {copy: {"owner": who} for copy in copies}} for who in "ab")
    diff = {f"{copy}.owner": {"diffKind": "update"} for copy in copies}
    (found,) = find_drift(refreshed("a", old=kept, new=there, detailedDiff=diff))
    assert (found.path, found.registered, found.observed) == ("labels.owner", "a", "b")


def test_members_of_a_set_are_told_by_what_they_are_and_not_by_their_place() -> None:
    """A provider counts a set's members in an order of its own."""
    inside, ssh = {"port": 0, "self": True}, {"port": 22, "peer": "bastion"}
    filled = {"port": 0, "self": True, "cidrs": []}
    world = {"port": 22, "cidrs": ["0.0.0.0/0"], "self": False}
    kept = state({"rules": [inside, ssh]}, rules=[inside, ssh])
    there = state({"rules": [filled, world, ssh]}, rules=[filled, world, ssh])
    (found,) = changes(
        [
            *refreshed("a", old=kept, new=there, detailedDiff={"rules[2]": {"diffKind": "add"}}),
            event(
                "update",
                "a",
                old=there,
                new=kept,
                detailedDiff={"rules[2]": {"diffKind": "delete", "inputDiff": False}},
            ),
        ]
    )
    assert [(each.registered, each.observed) for each in found.drift] == [(None, world)]
    assert [(leaf.old, leaf.new) for leaf in found.diff] == [(world, None)]
