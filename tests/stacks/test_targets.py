"""Which resources the engine may change where some nodes of a fleet are to be changed alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orch.stacks.errors import StackError
from orch.stacks.provisioning.gang import are_recorded, targets

pytestmark = pytest.mark.quick

URN = "urn:pulumi:lab::tests::orch:fleet:Local$orch:local:Node::"


def stack(*recorded: str, nodes: tuple[str, ...] = ("lab-0", "lab-1")) -> Any:
    resources = [{"urn": f"{URN}{name}"} for name in recorded]
    made = SimpleNamespace(name="lab", makers={node: node for node in nodes}, resources=resources)
    return cast(Any, made)


def test_all_is_changed_unless_nodes_are_named() -> None:
    assert targets(stack("lab-0"), ()) == []
    both = targets(stack("lab-0", "lab-1", "lab-keys"), ["lab-1", "lab-0"])
    assert both == ["--target", f"{URN}lab-1", "--target", f"{URN}lab-0", "--target-dependents"]


def test_a_node_that_is_gone_for_a_while_is_never_all_of_them() -> None:
    assert targets(stack("lab-0", nodes=("lab-0",)), ["lab-1"])[:2] == ["--target", f"{URN}lab-1"]
    with pytest.raises(StackError) as caught:
        targets(stack("lab-keys", nodes=()), ["lab-1"])
    assert "none is recorded" in str(caught.value.detail or caught.value.summary)


def test_a_node_that_comes_to_the_fleet_is_in_no_stack_that_could_be_refreshed() -> None:
    assert are_recorded(stack("lab-0", "lab-1"), ())
    assert are_recorded(stack("lab-0", "lab-1"), ["lab-1"])
    assert not are_recorded(stack("lab-0", "lab-1"), ["lab-1", "lab-2"])
    assert not are_recorded(stack("lab-0"), ["lab-1"])
