"""What a fleet of existing hosts becomes, decided from what the hosts said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orch.components.request import Approvals, PlanRequest, PriorState
from orch.components.ssh.facts import SshFacts
from orch.components.ssh.plan import SshPlan, host_names, plan
from orch.components.ssh.problems import KeysUnaccepted, Unfit, new_keys_of
from orch.runner.errors import HostKeyUnaccepted, HostUnreachable
from orch.runner.hosts.checks.types import CheckResult, HostReport, Result
from orch.runner.hosts.host_facts import Docker, Gpu, HostFacts
from orch.runner.hosts.network import ClusterAddress, ClusterNetwork, NetworkProblem
from orch.runner.hosts.survey import Survey
from orch.runner.node_api.target import TargetError
from orch.runner.placement.placement import place_task
from orch.runner.ssh.host_keys import HostKey
from orch.runner.ssh.naming import names
from orch.runner.ssh.targets import SshTarget
from orch.spec.access import Jump
from orch.spec.findings import PlanError
from orch.spec.models import Fleet, Task
from orch.spec.state import FleetState, NodeState

ROOT = Path("/project")


def fleet(*hosts: Any, **more: Any) -> Fleet:
    config = {"hosts": list(hosts), **more.pop("ssh_config", {})}
    return Fleet.model_validate({"name": "lab", "ssh_config": config, "placement": "cluster", **more})


def facts_of(gpus: int = 8, cpus: int = 64) -> HostFacts:
    cards = (Gpu(vendor="nvidia", name="H100", count=gpus, memory_mib=81_559),) if gpus else ()
    return HostFacts(cpus=cpus, memory_mib=1 << 20, gpus=cards, docker=Docker(version="27"), machine_id="m")


def said(
    of: Fleet,
    *,
    facts: dict[str, HostFacts] | None = None,
    checks: dict[str, Sequence[CheckResult]] | None = None,
    silent: Sequence[str] = (),
    keys: dict[str, str] | None = None,
    problems: tuple[NetworkProblem, ...] = (),
    identity: str | None = None,
) -> SshFacts:
    """What hosts may have said: all fit with eight GPUs, but for what is given."""
    assert of.ssh_config is not None
    reports: list[HostReport] = []
    targets: dict[str, SshTarget] = {}
    called = names(of.ssh_config)
    for index, name in enumerate(called):
        if name in silent:
            error = HostUnreachable("connection refused", hint="start sshd", code="ORCH364")
            down = CheckResult("ssh.connect", Result.FAIL, "connection refused", "start sshd", "ORCH364")
            reports.append(HostReport(TargetError(index, name, name, error), None, (down,)))
            continue
        node = NodeState(
            index=index,
            name=name,
            address=f"10.0.0.{index + 1}",
            user="ops",
            identity=identity,
            host_key=(keys or {}).get(name, f"ssh-ed25519 {name}"),
        )
        targets[name] = SshTarget(node, "scanned", f"SHA256:{name}")
        found = (facts or {}).get(name, facts_of())
        reports.append(HostReport(targets[name], found, tuple((checks or {}).get(name, ()))))
    places = tuple(ClusterAddress(n, f"192.168.1.{i + 1}", "eth1", 1500) for i, n in enumerate(called))
    network = None if problems else ClusterNetwork("192.168.1.0/24", places)
    return SshFacts(Survey(tuple(reports), network, problems), targets)


def order(of: Fleet, previous: PriorState | None = None, **consent: Any) -> PlanRequest:
    return PlanRequest(
        of,
        (),
        previous or PriorState(),
        "abc123",
        root=ROOT,
        folder=ROOT / "fleets",
        consent=Approvals(**consent),
    )


def after(made: SshPlan) -> PriorState:
    """What the stack knows once the plan was carried out."""
    return PriorState(pins=made.pins, nodes=tuple(host.node for host in made.hosts))


FAILED = CheckResult("docker.engine", Result.FAIL, "the Docker server does not answer", "start it", "ORCH371")
DOUBT = CheckResult("gpu.health", Result.WARN, "no health data", "install DCGM", "ORCH384")


def test_every_fit_host_is_a_node_at_its_address_in_the_network() -> None:
    of = fleet("gpu[1-3]")
    made = plan(order(of), said(of))
    found = [(h.node.index, h.node.name, h.node.internal_ip, h.node.gpus.count) for h in made.hosts]
    assert found == [
        (0, "gpu1", "192.168.1.1", 8),
        (1, "gpu2", "192.168.1.2", 8),
        (2, "gpu3", "192.168.1.3", 8),
    ]
    assert made.network == "192.168.1.0/24"
    assert [key.host for key in made.new_keys] == ["gpu1", "gpu2", "gpu3"]
    assert made.problems == ()


def test_the_same_hosts_make_the_same_plan_again() -> None:
    of = fleet("gpu[1-3]")
    first = plan(order(of), said(of))
    again = plan(order(of, after(first)), said(of))
    assert again.hosts == first.hosts
    assert again.pins == first.pins
    assert again.new_keys == ()


def test_a_host_that_fails_a_check_is_kept_out_by_name() -> None:
    of = fleet("gpu1", "gpu2")
    made = plan(order(of), said(of, checks={"gpu2": [FAILED]}))
    assert [host.node.name for host in made.hosts] == ["gpu1"]
    (problem,) = made.problems
    assert (problem.node, problem.code, problem.hint) == ("gpu2", "ORCH371", "start it")
    assert "docker.engine" in problem.summary


def test_a_silent_host_is_kept_out_by_name() -> None:
    of = fleet("gpu1", "gpu2")
    made = plan(order(of), said(of, silent=["gpu2"]))
    assert [host.node.name for host in made.hosts] == ["gpu1"]
    assert [problem.node for problem in made.problems] == ["gpu2"]


def test_a_fleet_of_which_no_host_is_fit_is_refused_whole() -> None:
    of = fleet("gpu1")
    with pytest.raises(Unfit) as refused:
        plan(order(of), said(of, silent=["gpu1"]))
    assert refused.value.exit_code == 7
    assert "connection refused" in (refused.value.detail or "")


@pytest.mark.parametrize(("preflight", "told"), [("warn", True), ("off", False)])
def test_without_strict_preflight_a_host_that_answers_is_taken(preflight: str, told: bool) -> None:
    of = fleet("gpu1", "gpu2", ssh_config={"preflight": preflight})
    made = plan(order(of), said(of, checks={"gpu2": [FAILED, DOUBT]}, silent=["gpu1"]))
    assert [host.node.name for host in made.hosts] == ["gpu2"]
    assert [problem.node for problem in made.problems] == ["gpu1"]
    assert bool(made.warnings) is told


def test_a_registered_host_that_is_silent_stays_as_it_was() -> None:
    of = fleet("gpu1", "gpu2")
    first = plan(order(of), said(of))
    again = plan(order(of, after(first)), said(of, silent=["gpu2"]))
    assert again.hosts == first.hosts
    assert [problem.node for problem in again.problems] == ["gpu2"]


def test_a_lost_gpu_changes_the_plan_only_when_it_is_accepted() -> None:
    of = fleet("gpu1", blocks="auto")
    first = plan(order(of), said(of))
    seven = said(of, facts={"gpu1": facts_of(7)})
    kept = plan(order(of, after(first)), seven)
    assert kept.hosts == first.hosts
    taken = plan(order(of, after(first), accept_drift=True), seven)
    assert (taken.hosts[0].node.gpus.count, taken.hosts[0].node.blocks) == (7, 7)


def test_a_host_keeps_its_index_when_another_leaves_and_a_new_one_fills_the_gap() -> None:
    three, two, other = fleet("a", "b", "c"), fleet("a", "c"), fleet("d", "a", "c")
    first = plan(order(three), said(three))
    second = plan(order(two, after(first)), said(two))
    assert {h.node.name: h.node.index for h in second.hosts} == {"a": 0, "c": 2}
    third = plan(order(other, after(second)), said(other))
    assert {h.node.name: h.node.index for h in third.hosts} == {"a": 0, "c": 2, "d": 1}


def test_a_changed_key_is_told_again_as_one_to_be_pinned() -> None:
    of = fleet("gpu1", "gpu2")
    first = plan(order(of), said(of))
    again = plan(
        order(of, after(first), rekeyed=frozenset({"gpu2"})), said(of, keys={"gpu2": "ssh-ed25519 new"})
    )
    assert [(key.host, key.key) for key in again.new_keys] == [("gpu2", "ssh-ed25519 new")]


def test_blocks_of_a_host_win_over_those_of_the_fleet() -> None:
    of = fleet("gpu1", {"hostname": "gpu2", "blocks": 2}, {"hostname": "cpu1", "blocks": "auto"}, blocks=4)
    made = plan(order(of), said(of, facts={"cpu1": facts_of(0, cpus=16)}))
    assert [host.node.blocks for host in made.hosts] == [4, 2, 16]


def test_blocks_that_do_not_divide_the_gpus_are_refused_at_their_place() -> None:
    of = fleet("gpu1", {"hostname": "gpu2", "blocks": 3})
    with pytest.raises(PlanError) as refused:
        plan(order(of), said(of))
    assert (refused.value.code, refused.value.path) == ("ORCH147", "ssh_config.hosts[1].blocks")


@pytest.mark.parametrize(
    ("config", "hosts", "code", "path"),
    [
        ({"network": "10.0.0.0/24"}, ["a", "b"], "ORCH361", "ssh_config.network"),
        (
            {},
            ["a", {"hostname": "b", "internal_ip": "10.0.0.9"}],
            "ORCH361",
            "ssh_config.hosts[1].internal_ip",
        ),
        ({}, ["a", "b"], "ORCH362", "ssh_config"),
        ({}, ["a", "b"], "ORCH368", "ssh_config.hosts[1]"),
    ],
)
def test_a_network_that_cannot_be_decided_is_an_error_of_the_whole_file(
    config: dict[str, str], hosts: list[Any], code: str, path: str
) -> None:
    of = fleet(*hosts, ssh_config=config)
    problem = NetworkProblem(code, "it cannot be decided", ("b",))
    with pytest.raises(PlanError) as refused:
        plan(order(of), said(of, problems=(problem,)))
    assert (refused.value.code, refused.value.path) == (code, path)
    assert "hosts: b" in (refused.value.detail or "")


def test_key_files_are_recorded_relative_to_the_project() -> None:
    of = fleet("gpu1")
    for written, recorded in (("keys/id", "fleets/keys/id"), ("~/.ssh/id", "~/.ssh/id"), ("/k/id", "/k/id")):
        made = plan(order(of), said(of, identity=written))
        assert made.hosts[0].node.ssh.identity == recorded


def test_a_host_of_another_address_is_registered_anew() -> None:
    of = fleet("gpu1")
    first = plan(order(of), said(of))
    moved = PriorState(
        pins=first.pins,
        nodes=tuple(h.node.reached(address="10.9.9.9", jump=()) for h in first.hosts),
    )
    again = plan(order(of, moved), said(of, facts={"gpu1": facts_of(4)}))
    assert again.hosts[0].node.gpus.count == 4


def test_jump_hosts_are_among_the_names_whose_key_may_be_accepted() -> None:
    of = fleet("gpu[1-2]", ssh_config={"proxy_jump": {"hostname": "login.example.com"}})
    assert host_names(of) == ("gpu1", "gpu2", "login.example.com")


def test_what_is_pinned_is_read_back_from_the_stack() -> None:
    of = fleet("gpu1")
    made = plan(order(of), said(of))
    outputs = {"pins": made.pins, "fleet": {"nodes": [h.node.model_dump(mode="json") for h in made.hosts]}}
    assert PriorState.of_outputs(json.loads(json.dumps(outputs))) == after(made)
    assert Jump(address="hop", user="ops") not in made.hosts[0].node.ssh.jump


def test_a_proxy_command_of_the_user_s_own_configuration_is_not_recorded() -> None:
    of = fleet("gpu1", "gpu2")
    found = said(of)
    hop = Jump(address="gate", user="me", host_key="ssh-ed25519 gate", proxy_command="nc gate 22")
    ways = ({"proxy_command": "nc %h %p", "ssh_alias": "gpu1"}, {"jump": (hop,)})
    targets = {
        name: replace(target, node=target.node.reached(**way), hops=())
        for (name, target), way in zip(found.targets.items(), ways, strict=True)
    }
    keyed = {
        **targets,
        "gpu2": replace(targets["gpu2"], hops=((hop, HostKey("ssh-ed25519 gate", "pinned")),)),
    }
    first = replace(found, targets=keyed)
    # A state of the former version, whose host is silent now.
    old = plan(order(of), said(of))
    before = PriorState(
        pins=old.pins,
        nodes=tuple(h.node.reached(proxy_command="touch x") for h in old.hosts),
    )
    for made in (plan(order(of), first), plan(order(of, before), said(of, silent=["gpu1", "gpu2"]))):
        for host in made.hosts:
            told = host.node.model_dump_json()
            assert "nc " not in told
            assert "touch" not in told


def waiting(*names: str, behind: str | None = None) -> dict[str, HostKeyUnaccepted]:
    return {
        name: HostKeyUnaccepted(
            "not looked at",
            host=behind or name,
            key=f"ssh-ed25519 {behind or name}",
            fingerprint="SHA256:x",
            code="ORCH388",
        )
        for name in names
    }


def unaccepted(found: SshFacts, errors: dict[str, HostKeyUnaccepted]) -> SshFacts:
    """The same, but for hosts whose keys nobody has accepted."""
    reports = tuple(
        HostReport(
            TargetError(at, report.name, "10.0.0.9", errors[report.name]),
            None,
            (CheckResult("ssh.connect", Result.FAIL, "not looked at", None, "ORCH388"),),
        )
        if report.name in errors
        else report
        for at, report in enumerate(found.survey.hosts)
    )
    targets = {name: target for name, target in found.targets.items() if name not in errors}
    return SshFacts(replace(found.survey, hosts=reports), targets)


def test_hosts_whose_keys_nobody_has_accepted_are_kept_out_and_told_with_them() -> None:
    of = fleet("gpu[1-3]")
    made = plan(order(of), unaccepted(said(of), waiting("gpu2", "gpu3", behind="jump gate")))
    assert [host.node.name for host in made.hosts] == ["gpu1"]
    assert [(problem.node, problem.code) for problem in made.problems] == [
        ("gpu2", "ORCH388"),
        ("gpu3", "ORCH388"),
    ]
    assert [key.host for key in new_keys_of(made.problems)] == ["jump gate"]
    assert [key.host for key in made.new_keys] == ["gpu1"]


def test_a_fleet_of_such_hosts_alone_is_refused_with_every_fingerprint() -> None:
    of = fleet("gpu[1-2]")
    with pytest.raises(KeysUnaccepted) as refused:
        plan(order(of), unaccepted(said(of), waiting("gpu1", "gpu2")))
    assert (refused.value.code, int(refused.value.exit_code)) == ("ORCH388", 7)
    assert "gpu1: ssh-ed25519 SHA256:x\ngpu2: ssh-ed25519 SHA256:x" in (refused.value.detail or "")
    assert [key.host for key in refused.value.keys] == ["gpu1", "gpu2"]


@pytest.mark.parametrize(
    ("written", "ranks"),
    [
        ({}, ["b", "d", "a", "c"]),
        ({"topology": "rank-ordered"}, ["b", "d", "a", "c"]),
        ({"topology": "any"}, ["a", "b", "c", "d"]),
    ],
)
def test_ranks_of_one_rack_are_neighbours_unless_the_file_wants_any_order(
    written: dict[str, str], ranks: list[str]
) -> None:
    racks = {"a": "r2", "b": "r1", "c": "r2", "d": "r1"}
    of = fleet(*({"hostname": name, "rack": rack} for name, rack in racks.items()), **written)
    hosts = plan(order(of), said(of)).hosts
    state = FleetState(
        name="lab", stack="lab", backend="ssh", placement="cluster", nodes=tuple(h.node for h in hosts)
    )
    task = Task.model_validate({"nodes": 4, "commands": ["true"]})
    assert [seat.node.name for seat in place_task(task, state)] == ranks


def test_steps_of_init_are_told_and_what_changes_of_them_on_hosts_that_are_registered() -> None:
    of = fleet("gpu[1-3]", init=[{"file": "setup.sh", "name": "set up", "env": {"KEY": "hR3vK"}}])
    made = plan(order(of), said(of), {"setup.sh": "echo Wq8xT\n"})
    (step,) = made.init
    assert (step.key, step.content) == ("00 set up", "echo Wq8xT\n")
    once = "init: 1 step on each host, once, before it takes jobs (set up)"
    assert [each for each in made.reasons if "init" in each] == [once]
    for secret in ("hR3vK", "Wq8xT"):
        assert secret not in repr((made.pins, made.reasons))
    again = plan(order(of, after(made)), said(of), {"setup.sh": "echo Wq8xT\n"})
    assert (again.pins, [each for each in again.reasons if "init" in each]) == (made.pins, [once])
    # A host that is new runs them with the others.
    more = fleet("gpu[1-4]", init=[{"file": "setup.sh", "when": "create"}])
    found = plan(order(more, after(made)), said(more), {"setup.sh": "echo 2\n"})
    assert [each for each in found.reasons if "init" in each or "create" in each] == [
        "init: 1 step on each host, once, before it takes jobs (step 0)",
        "`init` changes: its new or changed steps run on the 3 hosts that are there",
        "those `when: create` run on a new host only",
    ]
