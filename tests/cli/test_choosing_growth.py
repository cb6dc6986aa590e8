"""Which fleet grows for a run, where one of them cannot."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from orch.cli.driver.new_nodes import growth_of
from orch.runner.errors import BadTask, HostUnreachable, NoFit
from orch.runner.launch.volumes import VolumeMisfit
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.node_api.connector import Completed
from orch.spec.models import Task
from orch.spec.state import FleetSpares, FleetState
from orch.stacks.project.project import find
from orch.stacks.runs.nodes_for_runs import Growth

PODS = "type: fleet\nname: {name}\nbackends: [runpod]\nnodes: 0..4\nresources: {{gpu: L4:1}}\n"


class Silent:
    """Nodes that do not answer, of a project without runs."""

    runtimes = MappingProxyType[str, Any]({})
    ledger = SimpleNamespace(placed_on=lambda fleet: [])

    @property
    def connector(self) -> Any:
        return self

    def run(self, node: Any, *asked: Any, **more: Any) -> Any:
        raise HostUnreachable(f"{node.name} does not answer")


def growth(
    folder: Path,
    *fleets: FleetState,
    image: str | None = None,
    volumes: tuple[str, ...] = (),
    **more: Any,
) -> Growth | None:
    for name in ("pods", "spare"):
        (folder / f"{name}.yml").write_text(PODS.format(name=name))
    (folder / "orch.yml").write_text("project: tests\n")
    task = Task.model_validate({"name": "train", "commands": ["date"], "image": image, "volumes": volumes})
    return growth_of(find(folder), Silent(), task, fleets, **more)  # pyright: ignore[reportArgumentType]


def pods(name: str) -> FleetState:
    return FleetState(name=name, stack=name, backend="runpod", placement="cluster", nodes=())


def machines() -> FleetState:
    node = {"index": 0, "name": "rack-0", "address": "a", "user": "root", "host_key": "k"}
    return FleetState.model_validate({"name": "rack", "stack": "rack", "backend": "aws", "nodes": [node]})


def test_an_image_that_no_pod_can_have_is_told_where_only_pods_could_run_it(tmp_path: Path) -> None:
    with pytest.raises(BadTask, match="pulls the image of a pod from a registry"):
        growth(tmp_path, pods("pods"), pods("spare"))


def test_a_fleet_of_pods_is_not_in_the_way_of_machines_that_the_run_can_wait_for(tmp_path: Path) -> None:
    assert growth(tmp_path, pods("pods"), machines()) is None
    assert growth(tmp_path, pods("pods"), machines(), image="python:3.12", volumes=("data:/data",)) is None


def test_a_volume_that_no_pod_can_have_is_told_where_only_pods_could_run_it(tmp_path: Path) -> None:
    with pytest.raises(VolumeMisfit, match="the volume data is not up") as caught:
        growth(tmp_path, pods("pods"), pods("spare"), image="python:3.12", volumes=("data:/data",))
    assert (caught.value.code, caught.value.path) == ("ORCH268", "volumes.0")


def test_the_next_fleet_grows_where_new_nodes_of_the_first_would_not_fit(tmp_path: Path) -> None:
    found = growth(tmp_path, pods("pods"), pods("spare"), image="python:3.12")
    assert found is not None
    assert found.state.name == "pods"
    unfit = {"pods": NoFit("it has L4")}
    found = growth(tmp_path, pods("pods"), pods("spare"), image="python:3.12", refused=unfit)
    assert found is not None
    assert found.state.name == "spare"
    with pytest.raises(NoFit, match="it has L4"):
        growth(tmp_path, pods("pods"), image="python:3.12", refused=unfit)


class Idle(Silent):
    """Nodes on which nothing runs."""

    runtimes = MappingProxyType(RUNTIMES)

    def run(self, node: Any, *asked: Any, **more: Any) -> Any:
        return Completed(node.name, asked[0], 0, "", "", 0.0)


@pytest.mark.parametrize(("needed", "most", "asked"), [(2, 4, None), (3, 4, 4), (4, 4, 5), (4, 3, None)])
def test_spares_stay_beside_the_nodes_that_are_made_for_a_run(
    tmp_path: Path, needed: int, most: int, asked: int | None
) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    written = f"type: fleet\nname: lab\nplacement: cluster\nnodes: {{min: 2, max: {most}, spare: 1}}\n"
    (tmp_path / "lab.yml").write_text(written)
    nodes = [
        {"index": index, "name": f"lab-{index}", "address": "a", "user": "root", "host_key": "k"}
        for index in range(3)
    ]
    state = FleetState.model_validate(
        {"name": "lab", "stack": "lab", "backend": "local", "placement": "cluster", "nodes": nodes}
    )
    state = state.model_copy(update={"spares": FleetSpares(count=1, of=3, least=3)})
    task = Task.model_validate({"name": "train", "commands": ["date"], "nodes": needed})
    found = growth_of(find(tmp_path), Idle(), task, [state])  # pyright: ignore[reportArgumentType]
    assert (found and found.request.at_least) == asked
    assert found is None or [node.name for node in found.free] == ["lab-0", "lab-1"]


@pytest.mark.parametrize(
    ("array", "most", "asked"),
    [
        ("1-10%3", 8, 3),  # two are idle, one more for the third that may run at once
        ("1-10", 8, 8),  # as many as the fleet may have
        ("1-10%2", 8, None),
        ("1-10%3", 2, None),
        ("5", 8, None),
    ],
)
def test_an_array_has_nodes_made_for_as_many_members_as_run_at_once(
    tmp_path: Path, array: str, most: int, asked: int | None
) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    (tmp_path / "lab.yml").write_text(f"type: fleet\nname: lab\nnodes: 1..{most}\n")
    nodes = [
        {"index": index, "name": f"lab-{index}", "address": "a", "user": "root", "host_key": "k"}
        for index in range(2)
    ]
    state = FleetState.model_validate({"name": "lab", "stack": "lab", "backend": "local", "nodes": nodes})
    task = Task.model_validate({"name": "sweep", "commands": ["date"], "array": array})
    found = growth_of(find(tmp_path), Idle(), task, [state])  # pyright: ignore[reportArgumentType]
    assert (found and found.request.at_least) == asked
    empty = growth_of(find(tmp_path), Idle(), task, [state.model_copy(update={"nodes": ()})])  # pyright: ignore[reportArgumentType]
    assert empty is not None
    assert empty.request.at_least == min(len(task.array.indexes), task.array.at_once or 10_000, most)  # type: ignore[union-attr]


def test_an_array_is_not_run_where_nodes_are_made_for_one_run_each(tmp_path: Path) -> None:
    (tmp_path / "pods.yml").write_text(PODS.format(name="pods"))
    (tmp_path / "orch.yml").write_text("project: tests\n")
    task = Task.model_validate(
        {"name": "sweep", "commands": ["date"], "image": "python:3.12", "array": "1-3"}
    )
    with pytest.raises(BadTask, match="an array on RunPod is not supported") as caught:
        growth_of(find(tmp_path), Silent(), task, [pods("pods")])  # pyright: ignore[reportArgumentType]
    assert (caught.value.code, caught.value.path) == ("ORCH118", "array")


def test_a_task_larger_than_the_range_is_told_the_range(tmp_path: Path) -> None:
    (tmp_path / "rack.yml").write_text("type: fleet\nname: rack\nplacement: cluster\nnodes: 0..4\n")
    (tmp_path / "orch.yml").write_text("project: tests\n")
    task = Task.model_validate({"name": "train", "commands": ["date"], "nodes": 9})
    with pytest.raises(NoFit, match="fleet rack may have at most 4 nodes, the task needs 9") as caught:
        growth_of(find(tmp_path), Silent(), task, [machines()])  # pyright: ignore[reportArgumentType]
    assert caught.value.hint == f"raise `nodes` of the fleet ({tmp_path / 'rack.yml'}:4:8), or lower it here"
    assert (caught.value.path, caught.value.fleets) == ("nodes", ("rack",))
