"""What of two readings of a stack's state says that somebody has changed it between them."""

from __future__ import annotations

from typing import Any

import pytest

from orch.stacks.recovery import SECRET, same

NODE = {"urn": "urn:pulumi:p5::tests::aws:ec2/instance:Instance::p5-0", "id": "i-1", "outputs": {"a": 1}}
STATE: dict[str, Any] = {
    "manifest": {"time": "2026-11-22T05:00:00Z"},
    "resources": [{**NODE, "inputs": {"userData": {SECRET: SECRET, "ciphertext": "v1:x"}}}],
}


@pytest.mark.parametrize(
    "unchanged",
    [
        {"manifest": {"time": "2026-11-22T06:00:00Z"}},
        {"pending_operations": None},
        {"resources": [{**NODE, "inputs": {"userData": {SECRET: SECRET, "ciphertext": "v1:y"}}}]},
    ],
)
def test_the_time_of_a_look_and_another_encryption_are_no_change(unchanged: dict[str, Any]) -> None:
    assert same(STATE, {**STATE, **unchanged})


@pytest.mark.parametrize(
    "changed",
    [
        {"resources": []},
        {"resources": [{**STATE["resources"][0], "id": "i-2"}]},
        {"resources": [{**STATE["resources"][0], "outputs": {"a": 2}}]},
        {"resources": [*STATE["resources"], NODE]},
        {"pending_operations": [{"resource": NODE, "type": "creating"}]},
    ],
)
def test_a_resource_more_or_less_or_another_is_a_change(changed: dict[str, Any]) -> None:
    assert not same(STATE, {**STATE, **changed})
