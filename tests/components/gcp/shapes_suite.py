"""Every kind of machine, each a fleet, in one stack through the real engine on a simulated account."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from kit.clouds import cloudconfig
from kit.clouds.gcp_cases import Case
from kit.engine.simulated_stack import Done, SimulatedStack

from orch.rehearsal.gcp.account import GcpCloud
from orch.spec.models import Fleet
from orch.stacks.events.changes import find_drift
from orch.stacks.plans.request import FleetRequest, compile_for
from orch.stacks.stack.state import StackState

# One of each layout of networks; the others differ in names and counts only, which the golden plans hold.
SHAPES = [
    *("a2", "a3-high", "a3-mega", "a3-ultra", "a4x-max", "g2", "cpu-smallest"),
    *("open-to-the-world", "flex-start"),
    *(
        pytest.param(shape, marks=pytest.mark.soak)
        for shape in ("a2-ultra", "a3-high-1g", "a3-edge", "a4", "a4x", "cpu")
    ),
]
NODES = 2
# The engine writes the state twice for each resource, a third of its work here. Nothing looks at it before
# the end, and nobody kills it.
ENGINE = {"PULUMI_EXPERIMENTAL": "true", "PULUMI_SKIP_CHECKPOINTS": "true"}
QUOTAS = {"NETWORKS": 200, "FIREWALLS": 400, "ROUTERS": 40, "IN_USE_ADDRESSES": 100}

pytestmark = pytest.mark.usefixtures("forked_providers")


def fleet_of(shape: str) -> Fleet:
    """The fleet of a golden plan with few nodes and a name of its own."""
    golden = Case.of(shape)
    data = {**golden.data["fleet"], "name": shape, "nodes": NODES}
    return Case(shape, {**golden.data, "fleet": data}).fleet


@dataclass
class Lab:
    """The stack of all, and what each call of the engine told."""

    stack: SimulatedStack
    planned: Done
    empty: dict[str, str]
    up: Done
    again: Done

    @property
    def cloud(self) -> GcpCloud:
        return self.stack.rehearsal.gcp

    def machines(self, shape: str) -> list[dict[str, Any]]:
        all_ = self.cloud.instances().values()
        mine = [each for each in all_ if each["labels"].get("orch-fleet") == shape]
        return [each for each in mine if not each["name"].endswith("-bastion")]


def program(stack: SimulatedStack, shapes: Sequence[str]) -> Callable[[], Awaitable[None]]:
    """Fleets of these shapes, as they are planned now."""
    project = stack.rehearsal.project
    planned = {
        shape: compile_for(StackState(project, shape), FleetRequest(fleet_of(shape), project.root))
        for shape in shapes
    }

    async def run() -> None:
        import pulumi

        for shape, compiled in planned.items():
            state, _ = compiled.register()
            pulumi.export(shape, state)
        await asyncio.sleep(0)  # as orch's own program: else the SDK looks at all of it for each of it

    return run


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """With all shapes that are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENGINE.items():
            patch.setenv(name, value)
        yield from whole(request, tmp_path_factory)


def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    asked = (getattr(item, "callspec", None) for item in request.session.items)
    shapes = [each.params["shape"] for each in asked if each]
    stack = SimulatedStack.make(tmp_path_factory.mktemp("shapes"))
    cloud = stack.rehearsal.gcp
    cloud.turn(quotas=QUOTAS)
    planned = stack.call("preview", program=program(stack, shapes))
    empty = cloud.everything()
    up = stack.call("up", "--yes", "--skip-preview", program=program(stack, shapes))
    again = stack.call("preview", "--refresh", program=program(stack, shapes))
    yield Lab(stack, planned, empty, up, again)
    done = stack.destroy()
    assert done.finished.code == 0, done.text
    assert cloud.everything() == {}


def test_a_preview_makes_nothing(lab: Lab) -> None:
    assert lab.planned.finished.code == 0, lab.planned.text
    assert set(lab.planned.steps()) == {"create"}
    assert lab.empty == {}


def test_all_of_it_comes_up(lab: Lab) -> None:
    assert lab.up.finished.code == 0, lab.up.text
    assert lab.up.steps() == lab.planned.steps()


def test_no_registration_waits_for_lines_that_nobody_reads(lab: Lab) -> None:
    """What the SDK tells for `--debug` is a call of the engine each."""
    told = [each["diagnosticEvent"] for each in lab.up.events if "diagnosticEvent" in each]
    assert [each["message"] for each in told if each["severity"] == "debug"] == []


def test_then_nothing_differs(lab: Lab) -> None:
    assert lab.again.finished.code == 0, lab.again.text
    assert lab.again.changed() == {}
    assert set(lab.again.steps()) - {"refresh"} == {"same"}


def test_nothing_has_drifted(lab: Lab) -> None:
    # A queue makes the group larger after it is recorded.
    assert [each for each in find_drift(lab.again.events) if each.path != "targetSize"] == []


@pytest.mark.parametrize("shape", SHAPES)
def test_nodes_are_what_the_plan_says(lab: Lab, shape: str) -> None:
    golden = Case.goldens().outcome(shape)
    nodes = lab.machines(shape)
    assert len(nodes) == NODES
    kinds = Counter(interface.split()[0] for interface in golden["interfaces"])
    for node in nodes:
        assert node["machineType"].endswith(f"/zones/{golden['zone']}/machineTypes/{golden['instance_type']}")
        assert Counter(nic["nicType"] for nic in node["networkInterfaces"]) == kinds
        assert node["labels"]["goog-pulumi-provisioned"] == "true"
        assert node["metadata"]["items"]


def test_the_state_holds_no_host_key_of_a_node(lab: Lab) -> None:
    file = lab.stack.rehearsal.project.checkpoint("t")
    assert file is not None
    resources = json.loads(file.read_text())["checkpoint"]["latest"]["resources"]
    texts = [each["outputs"].get("metadata", {}).get("user-data") for each in resources if "outputs" in each]
    # Those of bastions are secrets.
    unpacked = {cloudconfig.unwrapped(text) for text in texts if isinstance(text, str)}
    assert unpacked
    assert not [text for text in unpacked if "PRIVATE KEY" in text]
