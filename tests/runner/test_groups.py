"""Unlike nodes in one run: which node each group gets, and what its ranks find."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.ledgers.pureruns import compiled, fleet, node

from orch.cli.output.live import Live
from orch.cli.output.run import nodes_text, run_json, summary
from orch.cli.runs.ports import hold_ports
from orch.runner.access.forwards import LocalPorts, PortRequest, requested_ports
from orch.runner.errors import BadTask, NodeCordoned, NoFit, PortTaken
from orch.runner.events import LogLine
from orch.runner.ledger.ledger import Ledger
from orch.runner.ledger.records import RunRow
from orch.runner.node.container_start import start_command
from orch.runner.node.stage import stage_files
from orch.runner.placement.availability import NodeAvailability
from orch.runner.placement.fleets import fitting
from orch.runner.placement.placement import Kind, match, place_task
from orch.runner.placement.rank_groups import on_fleet, requested_fleets
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs.lifecycle import check_task
from orch.spec.loader.load import load_paths
from orch.spec.models import Task
from orch.spec.state import FleetState, Gpus

GPUS = Gpus(count=8, vendor="nvidia", name="H100")
WORKER = {"name": "worker", "nodes": 2, "commands": ["work"], "resources": {"gpu": 8}}
HEAD = {"name": "head", "commands": ["serve"]}


def task(*groups: dict[str, object], **more: object) -> Task:
    return Task.model_validate({"groups": groups, **more})


def names(on: FleetState, *groups: dict[str, object], **now: NodeAvailability) -> list[str]:
    """The nodes of the ranks, in rank order."""
    return [seat.node.name for seat in place_task(task(*groups), on, now)]


def refusal(on: FleetState, *groups: dict[str, object]) -> NoFit:
    with pytest.raises(NoFit) as caught:
        place_task(task(*groups), on)
    return caught.value


# --- which node each group gets


def test_each_group_gets_nodes_that_fit_it_though_the_first_ones_would_do_for_either() -> None:
    on = fleet(node(0, gpus=GPUS), node(1, gpus=GPUS), node(2))
    assert names(on, HEAD, WORKER) == ["n2", "n0", "n1"]
    assert names(on, WORKER, HEAD) == ["n0", "n1", "n2"]


def test_groups_that_fit_the_same_nodes_get_neighbours() -> None:
    on = fleet(*(node(i, topology=("ab"[i % 2],)) for i in range(6)))
    groups = ({"name": "one", "nodes": 3, "commands": ["x"]}, {"name": "two", "nodes": 3, "commands": ["x"]})
    assert names(on, *groups) == ["n0", "n2", "n4", "n1", "n3", "n5"]


def test_idle_nodes_come_first_where_they_fit_and_cordoned_ones_never() -> None:
    on = fleet(node(0, gpus=GPUS), node(1), node(2), node(3, gpus=GPUS), node(4, gpus=GPUS))
    assert names(on, HEAD, WORKER, n1=NodeAvailability(busy=1)) == ["n2", "n0", "n3"]
    assert names(on, HEAD, WORKER, n0=NodeAvailability(usable=False)) == ["n1", "n3", "n4"]
    cordon = NodeAvailability(cordon="fan")
    assert names(on, HEAD, WORKER, n1=cordon, n2=cordon) == ["n0", "n3", "n4"]
    with pytest.raises(NodeCordoned, match="2 nodes are cordoned"):
        names(on, HEAD, WORKER, n0=cordon, n3=cordon)


def test_ranks_of_groups_take_whole_nodes() -> None:
    on = fleet(node(0, gpus=GPUS, blocks=8), node(1, gpus=GPUS, blocks=4))
    groups = ({"commands": ["a"]}, {"commands": ["b"]})
    assert [seat.blocks for seat in place_task(task(*groups), on)] == [8, 4]
    alone = place_task(
        task({"commands": ["a"], "resources": {"gpu": 1}}), fleet(node(0, gpus=GPUS, blocks=8))
    )
    assert [seat.blocks for seat in alone] == [1]


def test_what_a_group_lacks_is_told_with_its_name_and_place() -> None:
    on = fleet(node(0, gpus=GPUS), node(1), node(2))
    error = refusal(on, HEAD, WORKER)
    assert error.detail == (
        "1 of the 2 nodes that group worker needs fits; node n1 has 0 GPUs, group worker asks for 8"
    )
    assert error.path == "groups.1.resources.gpu"
    assert "`groups[1].resources.gpu` of the task" in (error.hint or "")


def test_groups_that_want_the_same_nodes_are_told_together() -> None:
    on = fleet(node(0, gpus=GPUS), node(1, gpus=GPUS), node(2))
    error = refusal(on, {**HEAD, "resources": {"gpu": 8}}, WORKER)
    assert error.detail == (
        "groups head and worker need 3 nodes together, it has 2 nodes that fit one of them: n[0-1]"
    )


def test_groups_need_a_cluster_and_as_many_nodes_as_they_have_together() -> None:
    assert refusal(fleet(*map(node, range(3)), placement="any"), HEAD, WORKER).code == "ORCH241"
    assert "it has 2 nodes, the task needs 3" in (refusal(fleet(node(0), node(1)), HEAD, WORKER).detail or "")
    assert names(fleet(node(0), placement="any"), HEAD) == ["n0"]


def test_a_group_may_name_its_fleets() -> None:
    two = fleet(node(0), node(1), name="lab")
    assert names(two, HEAD, {"commands": ["x"], "fleets": ["lab"]}) == ["n0", "n1"]
    error = refusal(two, HEAD, {"commands": ["x"], "fleets": ["farm"]})
    assert (error.detail, error.path) == ("group 1 may run on farm only", "groups.1.fleets")


def test_the_fleet_of_the_command_line_stands_in_place_of_those_that_groups_name() -> None:
    farm = fleet(node(0), node(1), name="farm")
    named = task(HEAD, {"commands": ["x"], "fleets": ["lab"]}, fleets=["lab"])
    assert requested_fleets(named) == ("lab",)
    with pytest.raises(NoFit, match="no fleet named lab"):
        fitting(named, {"farm": farm}, None)
    assert fitting(on_fleet(named, "farm"), {"farm": farm}, "farm") == (farm,)


kinds = st.lists(st.frozensets(st.integers(0, 2)), min_size=0, max_size=6)


def fit_by_trying(fits: Sequence[Kind], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """All ways to give each group its nodes, found by trying every order: sorted sets of nodes."""
    slots = [group for group, size in enumerate(sizes) for _ in range(size)]
    return sorted(
        {
            tuple(sorted(order))
            for order in permutations(range(len(fits)), len(slots))
            if all(slot in fits[item] for slot, item in zip(slots, order, strict=True))
        }
    )


@given(fits=kinds, sizes=st.lists(st.integers(0, 3), min_size=3, max_size=3).filter(lambda s: sum(s) <= 5))
@settings(max_examples=150, deadline=None)
def test_a_fit_is_found_whenever_there_is_one_and_it_is_of_the_best_nodes(
    fits: list[Kind], sizes: list[int]
) -> None:
    found, ways = match(fits, sizes), fit_by_trying(fits, sizes)
    if not ways:
        assert found.short
        usable = [item for item, kind in enumerate(fits) if kind & set(found.short)]
        assert len(usable) == found.usable < sum(sizes[group] for group in found.short)
        return
    assert not found.short
    assert [len(items) for items in found.groups] == sizes
    assert all(group in fits[item] for group, items in enumerate(found.groups) for item in items)
    assert tuple(sorted(item for items in found.groups for item in items)) == ways[0]


def test_a_thousand_nodes_are_matched_without_trying_them_one_by_one() -> None:
    # Each node fits two groups that lie beside each other, so that making room moves a long chain of nodes.
    fits = [frozenset({i % 10, (i + 1) % 10}) for i in range(1000)]
    found = match(fits, [100] * 10)
    assert not found.short
    assert sorted(item for items in found.groups for item in items) == list(range(1000))


# --- what the ranks find


def plan_and_environments(**more: object) -> tuple[RunPlan, tuple[dict[str, str], ...]]:
    on = fleet(node(0), node(1, gpus=GPUS), node(2, gpus=GPUS), env={"F": "fleet"})
    work = {
        **WORKER,
        "commands": ["work ${{ groups[0].nodes[0].IP_ADDRESS }} ${{ dstack.node_rank }}"],
        "env": {"PEER": "${{ groups[01].nodes[1].IP_ADDRESS }}:$$", "BOTH": "group"},
        "resources": {"gpu": 8, "shm_size": "16GB"},
    }
    made = compiled(on, groups=[HEAD, work], env={"OWN": "task", "BOTH": "task"}, **more)
    return made.plan, made.environments


def test_each_rank_runs_its_group_s_commands_with_addresses_of_the_others() -> None:
    plan, environments = plan_and_environments()
    assert [rank.script for rank in plan.ranks] == [
        "{ serve\n}\n",
        "{ work 10.0.0.1 1\n}\n",
        "{ work 10.0.0.1 2\n}\n",
    ]
    assert [each["ORCH_GROUP"] for each in environments] == ["head", "worker", "worker"]
    assert [each.get("PEER") for each in environments] == [None, "10.0.0.3:$", "10.0.0.3:$"]
    assert [(each["OWN"], each["BOTH"], each["F"]) for each in environments] == [
        ("task", "task", "fleet"),
        ("task", "group", "fleet"),
        ("task", "group", "fleet"),
    ]
    assert {each["DSTACK_MASTER_NODE_IP"] for each in environments} == {"10.0.0.1"}
    assert [each["DSTACK_GPUS_PER_NODE"] for each in environments] == ["0", "8", "8"]
    assert [each["WORLD_SIZE"] for each in environments] == ["17"] * 3
    assert plan.hostfile == "10.0.0.1 slots=1\n10.0.0.2 slots=8\n10.0.0.3 slots=8\n"


def test_ports_of_a_group_lead_to_its_first_rank() -> None:
    on = fleet(node(0), node(1), node(2), node(3))
    head, worker = {**HEAD, "ports": [8265]}, {"nodes": 2, "commands": ["x"]}
    last = {"commands": ["x"], "ports": ["*:8265", "9000:80"]}
    plan = compiled(on, groups=[head, worker, last]).plan
    assert requested_ports(plan) == (
        PortRequest(8265, 8265),
        PortRequest(8265, None, rank=3),
        PortRequest(80, 9000, rank=3),
    )


def test_a_port_of_a_group_that_is_taken_is_told_at_its_place(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, LocalPorts() as held:
        port = other.getsockname()[1]
        path = tmp_path / "task.yml"
        path.write_text(
            "type: task\ngroups:\n- commands: [a]\n  ports: ['*:1']\n- commands: [b]\n"
            f"  ports: ['*:80', '{port}:81']\n"
        )
        (document,) = load_paths([path], environ={}).documents
        with pytest.raises(PortTaken) as caught:
            hold_ports(held, document, ())
    assert caught.value.where == f"{path}:6:19"


def test_containers_have_their_group_and_the_tags_of_the_run_as_labels() -> None:
    plan, _ = plan_and_environments(tags={"team": "a b", "cost": ""})
    texts = [start_command(plan, rank, (b"",)).text for rank in range(3)]
    for rank, group in enumerate(["head", "worker", "worker"]):
        assert f"--label=orch.group={group}" in texts[rank]
        assert "'--label=orch.tag.team=a b'" in texts[rank] or "--label=orch.tag.team=a b" in texts[rank]
    assert ["--shm-size=16384m" in text for text in texts] == [False, True, True]


def test_a_group_without_commands_starts_its_image() -> None:
    made = compiled(fleet(node(0), node(1)), image="x", groups=[{"commands": ["a"]}, {"nodes": 1}])
    assert [made.plan.starts_image(rank) for rank in (0, 1)] == [False, True]
    entries = [stage_files(made.plan, rank, {}, None)["entry.sh"] for rank in (0, 1)]
    assert ["image-command" in text for text in entries] == [False, True]


def test_variables_of_groups_are_asked_for_too(tmp_path: Path) -> None:
    with pytest.raises(BadTask, match="GONE"):
        check_task(task(HEAD, {"commands": ["x"], "env": ["GONE"]}), tmp_path, {})


# --- what is shown


@pytest.fixture
def row(ledger: Ledger) -> RunRow:
    plan, _ = plan_and_environments(tags={"team": "research"})
    return ledger.create(
        "job",
        "lab",
        [each.name for each in plan.nodes],
        lambda n: plan.model_copy(update={"number": n}).model_dump_json(),
    )


def test_tables_json_and_logs_tell_the_group_of_a_rank(
    row: RunRow, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nodes_text(row) == "head: n0; worker: n[1-2]"
    data = run_json(row)
    assert [each["group"] for each in data["nodes"]] == ["head", "worker", "worker"]
    assert data["tags"] == {"team": "research"}
    assert "  rank 1  n1  worker  submitted" in summary(row).splitlines()
    import sys

    live = Live(sys.stdout, colour=False)
    live.handle(LogLine(1, "n1", "", "hello", "worker"))
    live.handle(LogLine(0, "n0", "", "hello", "0"))
    live.handle(LogLine(0, "n0", "", "hello"))
    assert capsys.readouterr().out == "[1 worker n1] hello\n[0 group 0 n0] hello\n[0 n0] hello\n"


def test_a_plan_that_knew_no_groups_is_read(row: RunRow) -> None:
    plan = RunPlan.model_validate_json(row.plan)
    former = plan.model_dump(mode="json")
    del former["tags"]
    for rank in former["ranks"]:
        del rank["group"], rank["shm_size_mib"]
    assert [rank.group for rank in RunPlan.model_validate(former).ranks] == [None] * 3
