"""The present status of nodes: whether they answer, their cordon, their claimed blocks. Read only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from orch.runner.errors import CommandTimeout, HostUnreachable
from orch.runner.node.runtime import JobRuntime
from orch.runner.node.runtimes import RUNTIMES, runtime_of
from orch.runner.node_api import first_boot, verdict
from orch.runner.node_api.claims import ABANDONED_AFTER_S, Claim
from orch.runner.node_api.commands import NODE_HOME, Command, as_root
from orch.runner.node_api.connector import Connector, fan_out
from orch.runner.node_api.cordon import MARK, Cordon
from orch.runner.node_api.status import NodeStatus
from orch.runner.node_api.verdict import read_verdict
from orch.spec.state import FleetState, NodeState
from orch.templates import render

LOOK_S = 10.0
# A node that does not answer within this time is used only when no other fits.
CHOICE_S = 5.0


@cache
def status_script() -> str:
    """Tells a node's claims, its cordon, and how its preparation stands; `read_status` reads the answer.

    Claims come first, so that a node whose Docker hangs still tells who uses it, and without those that are
    over: they keep nobody off. Docker is asked for that only where there are any.
    """
    return f"""\
H={NODE_HOME}
[ ! -x "$H/pod/docker" ] || PATH=$H/pod:$PATH
set -- "$H"/claims/*
if [ -e "$1" ] || [ -L "$1" ]; then
{render("claim-over.sh.j2", left_after_s=ABANDONED_AFTER_S)}
for c; do held=$(readlink "$c") && {{ over "$c" "$held" || echo "claim $held$after"; }}; done
fi
[ ! -s {MARK} ] || sed 's/^/cordon /;q' {MARK}
{first_boot.STATUS_SCRIPT}{verdict.SCRIPT}"""


def node_statuses(
    fleet: FleetState,
    connector: Connector,
    *,
    deadline_s: float = LOOK_S,
    runtimes: Mapping[str, JobRuntime] = RUNTIMES,
) -> tuple[NodeStatus, ...]:
    """The status of each node of `fleet`, in its order. A node that does not answer is `unreachable`."""
    results = fan_out(
        fleet.nodes, lambda node: node_status(node, connector, deadline_s=deadline_s, runtimes=runtimes)
    )
    return tuple(
        result.value or NodeStatus("failure", result.error.summary if result.error else None)
        for result in results
    )


def node_status(
    node: NodeState, connector: Connector, *, deadline_s: float, runtimes: Mapping[str, JobRuntime] = RUNTIMES
) -> NodeStatus:
    """The status of one node; see `node_statuses`. Raises OrchError where nobody here can ask it."""
    command = Command(as_root(script_of(node, runtimes)), "look at the node", timeout_s=15.0)
    try:
        result = connector.run(node, command, deadline_s=deadline_s)
    except (HostUnreachable, CommandTimeout) as error:
        return NodeStatus("unreachable", error.detail or error.summary)
    return read_status(result.stdout)


def script_of(node: NodeState, runtimes: Mapping[str, JobRuntime] = RUNTIMES) -> str:
    """What a node is asked, as root; `read_status` reads the answer. Raises RunnerError."""
    return f"{status_script()}{{ {runtime_of(node, runtimes).health_check()}\n}} | sed 's/^/runtime /'\n"


def claims_of(
    nodes: Sequence[NodeState], connector: Connector, *, deadline_s: float
) -> tuple[tuple[Claim, ...] | None, ...]:
    """The claims on each node, in the order of `nodes`; None for a node that does not answer.

    Claims of ended jobs, which stay until their owner collects them, are left out.
    """
    command = claims_command()

    def ask(node: NodeState) -> tuple[Claim, ...] | None:
        result = connector.run(node, command, deadline_s=deadline_s)
        return read_claims(result.stdout) if result.ok else None

    return tuple(result.value for result in fan_out(nodes, ask))


def claims_command() -> Command:
    """Asks a node for its claims; `read_claims` reads the answer."""
    text = render("node-holders.sh.j2", home=NODE_HOME, left_after_s=ABANDONED_AFTER_S)
    return Command(as_root(text), "ask for claims", timeout_s=15.0)


def read_claims(text: str) -> tuple[Claim, ...]:
    """The claims in a node's answer; none if several fleets have the host, which stays in the others."""
    lines = text.splitlines()
    if lines.count("registered") > 1:
        return ()
    return tuple(Claim.parse(line[6:]) for line in lines if line.startswith("claim "))


def read_status(text: str) -> NodeStatus:
    """The status in a node's answer."""
    lines = text.splitlines()
    return replace(_without_health(lines), health=read_verdict(lines))


def _without_health(lines: Sequence[str]) -> NodeStatus:
    claims = tuple(Claim.parse(line[6:]) for line in lines if line.startswith("claim "))
    cordon = next((Cordon.parse(line[7:]) for line in lines if line.startswith("cordon ")), None)
    problem = next((line[8:] for line in lines if line.startswith("runtime ")), None)
    boot = next((line[5:].partition("failed ") for line in lines if line.split(" ")[0] == "boot"), None)
    if boot is not None:
        _, failed, why = boot
        if not failed:
            return NodeStatus("provisioning", "its preparation is under way", len(claims), claims, cordon)
        return NodeStatus("failure", f"its preparation failed: {why}", len(claims), claims, cordon, why)
    if problem is not None:
        return NodeStatus("failure", problem, len(claims), claims, cordon)
    if cordon is not None:
        return NodeStatus("cordoned", str(cordon), len(claims), claims, cordon)
    if claims:
        return NodeStatus("busy", ", ".join(dict.fromkeys(map(str, claims))), len(claims), claims)
    return NodeStatus("idle")
