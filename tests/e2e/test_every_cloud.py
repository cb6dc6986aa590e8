"""What every cloud of machines must do alike, with the real engine on simulated accounts.

The account's own list is the judge. What one cloud alone does is in a module of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import (
    H100,
    H200,
    KIND,
    L4,
    LAMBDA_H100,
    ZONES,
    Rehearsed,
    RehearsedCrusoe,
    RehearsedGcp,
    RehearsedLambda,
    RehearsedNebius,
    tries,
)

from orch.rehearsal.nodes.user_data import keys_of

pytestmark = pytest.mark.timeout(900)

Knobs = dict[str, Any]
REMOVAL = re.compile("delete|terminate|release|cancel", re.IGNORECASE)


@dataclass(frozen=True)
class Cloud:
    """How a simulated account is told what every account can do.

    `written`: more properties of the fleet, and `backend` of orch.yml, which restrict it to two places.
    `places`: those, in the order in which they are tried, as `nodes()` returns them; `names`: as messages
    have them. `full`: knobs by which launches of two nodes fail for want of room, in so many of the places.
    `code`: what the cloud says then. `stock`: knobs by which a cloud says beforehand that the first place has
    too little, where it says such things. `own`: a kind of resource that each fleet has one of. `trouble`:
    knobs by which calls fail that may be repeated. `lose` ends a machine behind orch's back, `lost` is what
    `drift` observes then. `sends_host_keys`: in user data, else a machine makes its own. `kills`: pairs of
    numbers of calls, at which an `up` of two nodes and then a `down` are killed; the first in each run of the
    suite, the rest in `make soak`.
    """

    rehearsed: type[Rehearsed]
    places: tuple[str, str]
    names: tuple[str, str]
    full: Callable[[int], Knobs]
    code: str
    own: str
    trouble: Knobs
    lose: Callable[[Any, str], None]
    lost: str
    stray: Callable[[Any], str]
    kills: Sequence[tuple[int, int]]
    written: dict[str, Any] = field(default_factory=dict)
    stock: Knobs = field(default_factory=dict)
    backend: str = ""
    sends_host_keys: bool = True
    has_tags: bool = True

    def make(self, path: Path, **knobs: Any) -> Rehearsed:
        there: Rehearsed = self.rehearsed.make(path, **knobs)
        there.write("orch.yml", f"project: tests\n{self.backend}")
        return there

    def fleet(self, there: Rehearsed, nodes: int, team: str = "a", **more: Any) -> str:
        tags = {"tags": {"team": team}} if self.has_tags else {}
        return there.fleet(nodes, **{**self.written, **tags, **more})


def lost_answers(*actions: str) -> list[Knobs]:
    return [{"code": "ANSWER_LOST", "action": action, "nth": 1} for action in actions]


def tagged_instance(there: Rehearsed) -> str:
    _, doc = next(iter(there.cloud.instances().items()))
    request = {
        **{key: doc[key] for key in ("ImageId", "SubnetId")},
        "InstanceType": "m7i.large",
        "MinCount": 1,
        "MaxCount": 1,
        "TagSpecifications": [{"ResourceType": "instance", "Tags": doc["Tags"]}],
    }
    return str(there.cloud.call("RunInstances", request)["Instances"][0]["InstanceId"])


def labelled_instance(there: Rehearsed) -> str:
    node, doc = next(iter(there.cloud.instances().items()))
    zone = node.rpartition("/instances/")[0]
    template = {"sourceInstanceTemplate": next(iter(there.cloud.things("instance-template")))}
    body = {"name": "stray", "labels": doc["labels"]}
    status, _ = there.cloud.request("POST", f"{zone}/instances", template, body)
    assert status == 200
    return f"{zone}/instances/stray"


def copied(kind: str, **changes: str) -> Callable[[Rehearsed], str]:
    """Makes a second resource of a kind, as somebody who restored an older state leaves it."""

    def copy(there: Rehearsed) -> str:
        store = there.cloud.store
        with store.transaction():
            _, doc = next(iter(store.each(kind)))
            store.put("stray", kind, str(doc.get("location", "")), {**doc, "id": "stray", **changes})
        return "stray"

    return copy


def nebius_instance(there: Rehearsed) -> str:
    _, doc = next(iter(there.cloud.instances().items()))
    token = next(iter(there.cloud.things("token"))).removeprefix("token ")
    marks = {key: doc["metadata"][key] for key in ("parent_id", "labels")}
    boot = {**doc["spec"]["boot_disk"]["managed_disk"], "name": "stray-boot"}
    spec = {**doc["spec"], "boot_disk": {**doc["spec"]["boot_disk"], "managed_disk": boot}}
    made = there.cloud.request(
        "nebius.compute.v1.InstanceService",
        "Create",
        {"metadata": {**marks, "name": "stray"}, "spec": spec},
        {"authorization": f"Bearer {token}"},
    )
    return str(made["resource_id"])


def scarce(kind: str, first: str, second: str) -> Callable[[int], Knobs]:
    """Room for one more node in the first place, or also in the second, where two are by then."""
    rooms = [(f"{kind}@{first}", 1), (f"{kind}@{second}", 3)]
    return lambda places: {"capacity": dict(rooms[:places])}


def out_of_stock(places: int) -> Knobs:
    """Two machines are refused in the first place, or there is room for none beside two that are there."""
    if places == 2:
        return scarce(H200, "h200-us-east1-1", "h200-us-east1-2")(2)
    refusal = {"action": "create instance", "code": "400", "message": "out_of_stock"}
    return {"failures": [{**refusal, "nth": number} for number in (1, 2)]}


CLOUDS = {
    "aws": Cloud(
        Rehearsed,
        places=("a", "b"),
        names=(ZONES["a"], ZONES["b"]),
        full=scarce(KIND, "us-east-1a", "us-east-1b"),
        code="InsufficientInstanceCapacity",
        own="placement-group",
        trouble={"failures": [{"code": "ServiceUnavailable", "action": "RunInstances", "nth": 2}]},
        lose=lambda cloud, machine: cloud.call("TerminateInstances", {"InstanceIds": [machine]}),
        lost="(gone)",
        stray=tagged_instance,
        kills=[(50, 40), (16, 14), (27, 22), (35, 34), (42, 46)],
        written={"availability_zones": ["us-east-1a", "us-east-1b"]},
        sends_host_keys=False,
    ),
    "crusoe": Cloud(
        RehearsedCrusoe,
        places=("ibn-h200-us-east1-1", "ibn-h200-us-east1-2"),
        names=("h200-us-east1-1", "h200-us-east1-2"),
        full=out_of_stock,
        code="crusoe:capacity",
        own="ib-partition",
        trouble={
            "failures": lost_answers(
                "create instance", "create ib-partition", "create firewall-rule", "create network"
            ),
            "rate": {"create firewall-rule": {"burst": 1, "per_second": 1.0}},
        },
        lose=lambda cloud, machine: cloud.lose_host(machine),
        lost="stopped",
        stray=copied("firewall-rule"),
        kills=[(26, 24), (9, 9), (14, 17), (20, 28), (30, 33)],
        written={"network": {"bastion": "auto"}},
        stock={"capacity": {f"{H200}@h200-us-east1-1": 1, f"{H200}@h200-us-east1-2": 5}},
        has_tags=False,
    ),
    "gcp": Cloud(
        RehearsedGcp,
        places=("a", "b"),
        names=("us-central1-a", "us-central1-b"),
        full=scarce(L4, "us-central1-a", "us-central1-b"),
        code="ZONE_RESOURCE_POOL_EXHAUSTED",
        own="network",
        trouble={
            "failures": [
                {
                    "code": "INTERNAL_ERROR",
                    "message": "Internal error. Please try again (Code: '4D15E1F2')",
                    "action": "compute.instances.insert",
                    "nth": 2,
                }
            ]
        },
        lose=lambda cloud, machine: cloud.request("DELETE", machine, {}, None),
        lost="(gone)",
        stray=labelled_instance,
        kills=[(29, 21), (7, 3), (13, 15), (20, 18), (23, 24)],
        written={"availability_zones": ["us-central1-a", "us-central1-b"]},
        sends_host_keys=False,
    ),
    "lambda": Cloud(
        RehearsedLambda,
        places=("us-east-1", "us-west-1"),
        names=("us-east-1", "us-west-1"),
        full=scarce(LAMBDA_H100, "us-east-1", "us-west-1"),
        code="lambda:capacity",
        own="rules",
        trouble={
            "failures": lost_answers("launchInstance", "create ssh-key", "firewallRulesSet"),
            "rate": {"launchInstance": {"burst": 1, "per_second": 1.0}},
        },
        lose=lambda cloud, machine: cloud.lose_host(machine),
        lost="unhealthy",
        stray=copied("ssh-key"),
        stock={"capacity": {f"{LAMBDA_H100}@us-east-1": 0}},
        kills=[(13, 9), (6, 3), (5, 1), (8, 5), (10, 7)],
    ),
    "nebius": Cloud(
        RehearsedNebius,
        places=("fabric-2", "fabric-3"),
        names=("fabric-2", "fabric-3"),
        full=lambda places: {
            **scarce(H100, "fabric-2", "fabric-3")(places),
            "denied": ["ResourceAdviceService.List"],
        },
        code="nebius:capacity",
        own="gpu-cluster",
        trouble={
            "failures": lost_answers("InstanceService.Create"),
            "rate": {"SecurityRuleService.Create": {"burst": 1, "per_second": 0.5}},
        },
        lose=lambda cloud, machine: cloud.take_back(machine),
        lost="stopped",
        stray=nebius_instance,
        kills=[(30, 30), (15, 3), (21, 18), (28, 33), (37, 50)],
        written={"network": {"bastion": True}},
        stock={"capacity": {f"{H100}@fabric-2": 1, f"{H100}@fabric-3": 5}},
        backend="backends: [{type: nebius, fabrics: [fabric-2, fabric-3]}]\n",
    ),
}


@pytest.fixture(params=sorted(CLOUDS))
def cloud(request: pytest.FixtureRequest) -> Cloud:
    return CLOUDS[request.param]


def kill_cases() -> list[Any]:
    return [
        pytest.param(cloud, *calls, marks=[pytest.mark.soak][:number], id=f"{name} {calls}")
        for name, cloud in CLOUDS.items()
        for number, calls in enumerate(cloud.kills)
    ]


def named(there: Rehearsed, *numbers: int) -> list[str]:
    return [f"{there.called}-{number}" for number in numbers]


def machine_ids(there: Rehearsed) -> dict[str, str]:
    """The machines of the fleet, each with the id that no other machine ever gets."""
    return {each: str(there.cloud.instances()[each].get("id", each)) for each in there.nodes()}


def host_keys(there: Rehearsed) -> set[str]:
    """The host keys in the user data of the fleet's machines."""
    machines = [there.cloud.machine(each) for each in there.nodes()]
    keys = [keys_of(machine.user_data) for machine in machines if machine is not None]
    return {each.host_public for each in keys if each is not None}


def test_a_fleet_comes_up_stays_grows_shrinks_is_mended_and_goes(tmp_path: Path, cloud: Cloud) -> None:
    there = cloud.make(tmp_path, **cloud.trouble, **cloud.stock)
    cloud.fleet(there, 2)
    first, second = there.preview(), there.preview()
    assert first.code == 0, first.err
    assert first.out == second.out
    assert there.cloud.everything() == {}

    # Lost answers make no second machine, rate limits are waited for, and what is to be repeated is.
    said = there.up()
    assert said.code == 0, said.err
    assert tries(said.err) == 1
    assert not [call.action for call in there.cloud.calls if REMOVAL.search(call.action)]
    assert there.names() == named(there, 0, 1)
    assert set(there.nodes().values()) == {cloud.places[1 if cloud.stock else 0]}
    assert there.unrecorded() == {}
    assert len(host_keys(there)) == (2 if cloud.sends_host_keys else 0)
    nodes, kinds = there.nodes(), there.kinds()
    assert {node["machine"] for node in there.outputs()["fleet"]["nodes"]} == set(machine_ids(there).values())
    assert there.preview(None, "--exit-code").code == 0

    cloud.fleet(there, 3)
    said = there.up()
    assert said.code == 0, said.err
    assert nodes.items() < there.nodes().items()
    assert set(there.nodes().values()) == set(nodes.values())
    assert there.names() == named(there, 0, 1, 2)
    cloud.fleet(there, 2, team="b")
    said = there.up()
    assert said.code == 0, said.err
    assert there.nodes() == nodes
    assert there.kinds() == kinds
    assert there.unrecorded() == {}

    lost, _ = sorted(nodes, key=lambda each: there.cloud.machine(each).hostname)
    before = machine_ids(there)
    cloud.lose(there.cloud, lost)
    told = there.orch("drift", there.called, "--rehearse", "--json").json["drift"]
    assert [(each["name"], each["observed"]) for each in told] == [(*named(there, 0), cloud.lost)]
    assert there.preview(None, "--exit-code").code == 10
    said = there.up()
    assert said.code == 0, said.err
    after = machine_ids(there)
    kept = set(before) - {lost}
    assert {before[each] for each in kept} == set(before.values()) & set(after.values())
    assert there.names() == named(there, 0, 1)
    assert there.unrecorded() == {}

    # What bears the stack's mark and is older than what the stack records was forgotten: `gc` removes it.
    stray = cloud.stray(there)
    there.write_state_later()
    assert set(there.unrecorded()) == {stray}
    found = there.orch("gc", "--rehearse", "--json").json["orphans"]
    assert [each["id"] for each in found] == [stray]
    said = there.orch("gc", "--rehearse", "--yes")
    assert said.code == 0, said.err
    assert there.unrecorded() == {}
    assert there.preview(None, "--exit-code").code == 0
    said = there.down()
    assert said.code == 0, said.err
    assert there.cloud.everything() == {}


def test_all_nodes_are_in_a_place_with_room_or_none_is_anywhere(tmp_path: Path, cloud: Cloud) -> None:
    _, second = cloud.places
    there = cloud.make(tmp_path, **cloud.full(1))
    cloud.fleet(there, 2)
    said = there.up()
    assert said.code == 0, said.err
    tried = [line for line in said.err.splitlines() if line.startswith("trying ")]
    assert [name for line in tried for name in cloud.names if name in line] == list(cloud.names)
    assert f"no room there: {cloud.code}" in said.err
    assert list(there.nodes().values()) == [second, second]
    assert there.no_room() == {cloud.names[0]}
    assert "NO ROOM" in there.orch("offers", f"{there.called}.yml", "--rehearse").out
    assert there.unrecorded() == {}

    # Room in the place before moves nothing that is up.
    there.cloud.turn(capacity={}, failures=[])
    nodes, everything = there.nodes(), there.cloud.everything()
    assert there.preview(None, "--exit-code").code == 0
    there.cloud.turn(**cloud.full(2))
    file = cloud.fleet(there, 2, name="more")
    said = there.up(file)
    assert said.code == 5, said.err
    assert "ORCH325" in said.err
    reasons = [line for line in said.err.splitlines() if line.startswith("  ") and cloud.code in line]
    assert {name for line in reasons for name in cloud.names if name in line} == set(cloud.names)
    assert there.nodes() == nodes
    assert there.cloud.everything() == everything


@pytest.mark.parametrize(("cloud", "up", "down"), kill_cases())
def test_what_was_killed_is_gone_on_with(tmp_path: Path, cloud: Cloud, up: int, down: int) -> None:
    there = cloud.make(tmp_path)
    file = cloud.fleet(there, 2)
    there.killed(up, "up", file)
    said = there.up()
    assert said.code == 0, said.err
    assert there.names() == named(there, 0, 1)
    assert there.unrecorded() == {}
    there.killed(there.calls() + down, "down", there.called)
    said = there.down()
    assert said.code == 0, said.err
    assert there.cloud.everything() == {}


def test_two_fleets_come_and_go_at_once(tmp_path: Path, cloud: Cloud) -> None:
    there = cloud.make(tmp_path)
    files = [cloud.fleet(there, 2, name=name) for name in ("one", "two")]
    finish([there.start("up", file, "--yes", "--rehearse") for file in files])
    assert there.names() == ["one-0", "one-1", "two-0", "two-1"]
    assert there.kinds()[cloud.own] == 2
    finish([there.start("down", name, "--yes", "--rehearse") for name in ("one", "two")])
    assert there.cloud.everything() == {}


def finish(processes: Sequence[Any]) -> None:
    for process in processes:
        _, err = process.communicate(600)
        assert process.returncode == 0, err
