"""How the provider tells a change of the file from a change of the world."""

from __future__ import annotations

from pulumi.provider.experimental.property_value import Computed, PropertyValue

from orch.providers.orch.handler import OBSERVED, Difference, differences, now_secret
from orch.providers.orch.keys import KeysHandler
from orch.providers.orch.local_node import LocalNodeHandler
from orch.providers.orch.values import UNKNOWN, plain_map, sendable, wire_map

NODE = LocalNodeHandler()
INPUTS = {"name": "n", "image": "i", "cpus": 1, "memory_mib": 512, "status": "running"}
STATE = {
    **INPUTS,
    "ssh_port": 1,
    "ssh_address": "a",
    OBSERVED: {"status": "running", "cpus": 1, "memory_mib": 512},
}


def test_the_same_inputs_and_world_differ_in_nothing() -> None:
    assert differences(NODE, STATE, INPUTS) == []


def test_a_changed_limit_is_an_update_and_a_changed_image_a_replacement() -> None:
    assert differences(NODE, STATE, {**INPUTS, "cpus": 2}) == [
        Difference("cpus", replaces=False, drifted=False)
    ]
    assert differences(NODE, STATE, {**INPUTS, "image": "j"}) == [
        Difference("image", replaces=True, drifted=False)
    ]


def test_a_lifted_memory_limit_is_a_replacement() -> None:
    found = differences(NODE, STATE, {**INPUTS, "memory_mib": None})
    assert found == [Difference("memory_mib", replaces=True, drifted=False)]


def test_a_stopped_container_is_drift_and_mended_in_place() -> None:
    drifted = {**STATE, OBSERVED: {**STATE[OBSERVED], "status": "exited"}}
    assert differences(NODE, drifted, INPUTS) == [Difference("status", replaces=False, drifted=True)]


def test_an_input_taken_away_is_a_difference() -> None:
    without = {key: value for key, value in INPUTS.items() if key != "cpus"}
    assert [d.path for d in differences(NODE, STATE, without)] == ["cpus"]


def test_values_survive_the_wire_with_unknowns_and_secrets() -> None:
    wired = wire_map({"n": 3, "f": 1.5, "l": [1, "x"], "m": {"k": None}, "s": "hush", "u": UNKNOWN}, {"s"})
    assert wired["s"].is_secret
    again = plain_map({key: PropertyValue.unmarshal(value.marshal()) for key, value in wired.items()})
    assert again == {"n": 3, "f": 1.5, "l": [1, "x"], "m": {"k": None}, "s": "hush", "u": UNKNOWN}


def test_unknown_values_of_the_engine_can_be_sent_back() -> None:
    nested = PropertyValue({"a": PropertyValue([PropertyValue(Computed())])})
    sent = sendable({"p": nested})["p"]
    assert plain_map({"p": PropertyValue.unmarshal(sent.marshal())}) == {"p": {"a": [UNKNOWN]}}


def test_of_a_map_only_the_entries_that_differ_are_named() -> None:
    old = {**STATE, "env": {"A": "1", "B": "2", "C": "3"}}
    found = differences(NODE, old, {**INPUTS, "env": {"A": "1", "B": "x", "D": "4", 'odd."': ""}})
    assert [d.path for d in found] == ["env.B", "env.C", "env.D", 'env["odd.\\""]']


def test_a_value_that_is_recorded_in_clear_and_is_a_secret_now_is_a_change() -> None:
    clear = wire_map({"name": "n", "env": {"A": "1"}})
    hidden = {**clear, "env": PropertyValue({"A": PropertyValue("1", is_secret=True)})}
    assert [d.path for d in now_secret(clear, hidden)] == ["env.A"]
    assert now_secret(hidden, hidden) == []
    assert now_secret(hidden, clear) == []


def test_keys_with_another_pair_beside_them_are_no_change_and_keep_it() -> None:
    """As they are while they are rotated: another pair made then would lock everybody out."""
    handler = KeysHandler()
    name, made = handler.create({"name": "lab-keys"})
    state = {"name": name, **made}
    for which in ("next", "former"):
        state |= {f"{which}_private_key": "private", f"{which}_public_key": "public"}
    assert differences(handler, state, {"name": name}) == []
    assert handler.read(name, state) == {key: value for key, value in state.items() if key != "name"}
    assert handler.read(name, {"name": name, **made}) == made
    assert {"next_private_key", "former_private_key"} < handler.secrets
