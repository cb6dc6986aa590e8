"""Which fleet a task gets where several fit: idle first, then cheapest, then the first by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.runner.errors import HostUnreachable, NoFit
from orch.runner.events import Notice, Recorder
from orch.runner.ledger.ledger import Ledger
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Completed
from orch.runner.placement.availability import NodeAvailability
from orch.runner.placement.fleets import choose, fitting
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.runs.seats.choose import choose_fleet
from orch.spec.models import Task
from orch.spec.state import FleetState, Gpus, NodeState

ONE = Task(commands=("x",))


def fleet(name: str, nodes: int = 1, price: float | None = None, blocks: int = 1) -> FleetState:
    made = tuple(
        NodeState(
            index=index,
            name=f"{name}-{index}",
            address="127.0.0.1",
            user="root",
            host_key="k",
            cpus=8,
            memory_mib=16_384,
            gpus=Gpus(count=8),
            blocks=blocks,
            price_hourly=price,
        )
        for index in range(nodes)
    )
    return FleetState(name=name, stack=name, backend="aws", placement="cluster", nodes=made)


def named(*fleets: FleetState) -> dict[str, FleetState]:
    return {each.name: each for each in fleets}


def best(task: Task, *fleets: FleetState, **now: NodeAvailability) -> str:
    """The fleet that is chosen, with `now` of the first node of some."""
    availability = {name: {f"{name}-0": each} for name, each in now.items()}
    return choose(task, fitting(task, named(*fleets), None), availability).fleet.name


def test_without_any_fleet_the_way_to_one_is_told() -> None:
    with pytest.raises(NoFit) as caught:
        fitting(ONE, {}, None)
    assert "orch up" in (caught.value.hint or "")


def test_fleets_that_do_not_fit_are_no_choice() -> None:
    fleets = named(fleet("one"), fleet("two", 2))
    assert [each.name for each in fitting(Task(commands=("x",), nodes=2), fleets, None)] == ["two"]


def test_who_names_fleets_is_given_one_of_them() -> None:
    fleets = named(fleet("one"), fleet("two"), fleet("three"))
    assert [each.name for each in fitting(ONE, fleets, "one")] == ["one"]
    among = Task(commands=("x",), fleets=("two", "nowhere", "one"))
    assert [each.name for each in fitting(among, fleets, None)] == ["two", "one"]
    with pytest.raises(NoFit, match="no fleet named four") as caught:
        fitting(ONE, fleets, "four")
    assert "one, three, two" in (caught.value.detail or "")
    grouped = Task.model_validate({"groups": [{"commands": ["a"]}, {"commands": ["b"], "fleets": ["thre"]}]})
    with pytest.raises(NoFit, match="no fleet named thre") as caught:
        fitting(grouped, fleets, None)
    assert (caught.value.path, caught.value.hint) == ("groups.1.fleets.0", "did you mean 'three'?")


def test_idle_fleets_come_before_cheaper_ones_that_are_at_work() -> None:
    cheap, dear = fleet("a", price=1.0, blocks=8), fleet("b", price=9.0, blocks=8)
    assert best(ONE, cheap, dear) == "a"
    assert best(ONE, cheap, dear, a=NodeAvailability(busy=1)) == "b"
    assert best(ONE, cheap, dear, a=NodeAvailability(busy=1), b=NodeAvailability(busy=1)) == "a"


def test_room_beside_other_jobs_comes_before_waiting_and_that_before_nodes_that_take_no_jobs() -> None:
    ways = {
        "shared": NodeAvailability(busy=2),
        "full": NodeAvailability(busy=8),
        "silent": NodeAvailability(usable=False),
        "booting": NodeAvailability(ready=False),
        "cordoned": NodeAvailability(cordon="fan"),
        "failed": NodeAvailability(unfit="no driver"),
    }
    fleets = [fleet(name, price=index, blocks=8) for index, name in enumerate(reversed(ways))]
    assert best(ONE, *fleets, **ways) == "shared"
    assert best(ONE, *(each for each in fleets if each.name in ("full", "cordoned")), **ways) == "full"
    assert best(ONE, *(each for each in fleets if each.name in ("silent", "failed")), **ways) == "silent"
    assert best(ONE, *(each for each in fleets if each.name in ("booting", "failed")), **ways) == "booting"
    assert best(ONE, *(each for each in fleets if each.name in ("cordoned", "failed")), **ways) == "failed"


def test_a_fleet_is_idle_where_enough_of_its_nodes_are() -> None:
    two = Task(commands=("x",), nodes=2)
    assert best(two, fleet("a", 3, price=1.0), fleet("b", 2, price=9.0), a=NodeAvailability(busy=1)) == "a"
    assert best(two, fleet("a", 2, price=1.0), fleet("b", 2, price=9.0), a=NodeAvailability(busy=1)) == "b"


def test_what_costs_nothing_comes_first_and_a_part_of_a_node_is_a_part_of_its_price() -> None:
    assert best(ONE, fleet("a", price=0.5), fleet("own")) == "own"
    eighth = Task.model_validate({"commands": ["x"], "resources": {"gpu": "1.."}})
    assert best(eighth, fleet("small", price=3.0), fleet("large", price=16.0, blocks=8)) == "large"
    two = Task(commands=("x",), nodes=2)
    assert best(two, fleet("many", 9, price=1.0), fleet("two", 2, price=2.0)) == "many"


@pytest.mark.parametrize("names", ["abc", "cab", "bca"])
def test_equal_fleets_are_taken_by_name_and_named_ones_in_the_task_s_order(names: str) -> None:
    fleets = named(*map(fleet, names))
    assert choose(ONE, fitting(ONE, fleets, None), {}).fleet.name == "a"
    asked = Task(commands=("x",), fleets=tuple(names))
    assert choose(asked, fitting(asked, fleets, None), {}).fleet.name == names[0]


class Answers:
    """A transport to nodes that say what they are given to say; others are silent."""

    def __init__(self, **said: str) -> None:
        self.said = said

    def run(self, node: NodeState, command: Command, **_: object) -> Completed:
        if node.name not in self.said:
            raise HostUnreachable(f"{node.name} does not answer")
        return Completed(node.name, command, 0, self.said[node.name], "", 0.0)

    def close(self) -> None: ...

    def hang_up(self) -> None: ...


def test_nodes_are_asked_where_there_is_a_choice_and_what_was_chosen_is_told(
    tmp_path: Path, ledger: Ledger
) -> None:
    told = Recorder()
    claim = "claim orch-train-0-0-0123|train|ada@desk|2026-01-01T00:00:00Z|1\n"
    place = RunnerContext(tmp_path, ledger, Answers(**{"a-0": claim, "b-0": "", "c-0": ""}), told)
    fleets = named(fleet("silent"), fleet("a", price=1.5), fleet("c", price=2.5), fleet("b", price=3.5))
    assert choose_fleet(place, ONE, fleets, "a").name == "a"
    assert told.events == []
    assert choose_fleet(place, ONE, fleets, None).name == "c"
    words = "chose the fleet c of a, b, c, silent: on idle nodes, $2.50 per hour"
    assert told.events == [Notice(words)]


def test_a_price_that_is_not_known_is_not_free() -> None:
    unknown, dear = fleet("unknown"), fleet("dear", price=40.0)
    sold = tuple(node.model_copy(update={"instance_type": "p5.48xlarge"}) for node in unknown.nodes)
    unknown = unknown.model_copy(update={"nodes": sold})
    assert best(ONE, unknown, dear) == "dear"
    assert "at a price not known" in str(choose(ONE, [unknown], {}))
    assert best(ONE, fleet("here"), dear) == "here"
