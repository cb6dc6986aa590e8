"""Rules over a plan as a whole, and over tasks: what no policy of Pulumi sees.

These are operations, prices, deletes, numbers of nodes, and who is on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orch.policies.rule import COUNT, DURATION, MONEY, TEXTS, Breach, Parameter, Parameters, Rule, matches
from orch.spec.grammar.values import render_duration
from orch.spec.models import Fleet, Task
from orch.spec.suggest import counted, few

HOURS = 730
"""Of a month, as clouds bill it."""


@dataclass(frozen=True)
class NodePrice:
    """Nodes of one type at one price. `price`: US dollars an hour of each, None where no list has it;
    `reserved`: they run in a reservation, which is paid for."""

    machine: str
    count: int
    price: float | None
    reserved: bool = False


@dataclass(frozen=True)
class Loss:
    """A resource that a plan deletes or replaces."""

    name: str
    urn: str
    op: str
    what: str = ""


@dataclass(frozen=True)
class PlanFacts:
    """Facts of a plan for rules. Amounts are US dollars an hour.

    `hourly` of the fleet afterwards, `delta` the change of it, `others` of the project's other fleets.
    `most_nodes`: as many as the file allows. `lost`: nodes that are deleted or replaced; `lost_data`:
    resources with data that are. `runs`: those on nodes that go. `slow`: the finding about a cluster whose
    nodes have Ethernet only, although nobody asked for that. `endless`: whether the nodes run until somebody
    stops them.
    """

    hourly: float = 0.0
    delta: float = 0.0
    others: float = 0.0
    nodes: tuple[NodePrice, ...] = ()
    most_nodes: int = 0
    lost: tuple[Loss, ...] = ()
    lost_data: tuple[Loss, ...] = ()
    runs: tuple[str, ...] = ()
    slow: str = ""
    endless: bool = False

    @property
    def ceiling(self) -> float:
        """The cost with as many nodes as the file allows, further ones at the price of the dearest."""
        prices = [each.price for each in self.nodes if each.price is not None]
        more = max(0, self.most_nodes - sum(each.count for each in self.nodes))
        return round(self.hourly + more * max(prices, default=0.0), 6)


PlanCheck = Callable[[PlanFacts, Parameters], Iterator[Breach]]
TaskCheck = Callable[[Task, Parameters], Iterator[Breach]]

# Money

BUDGET = Rule(
    "budget",
    "plan",
    "high",
    "mandatory",
    "The cost stays within these amounts, with as many nodes as the file allows; a month has 730 hours. A "
    "price that no list has counts as too much, but for types that `unknown_prices` names.",
    "ask for fewer or cheaper nodes, or have the budget raised in `orch.yml`",
    (
        Parameter("hourly", MONEY, "Of one fleet, an hour."),
        Parameter("monthly", MONEY, "Of one fleet, a month."),
        Parameter("project_hourly", MONEY, "Of all fleets of the project that are up, with this one."),
        Parameter("project_monthly", MONEY, "The same, a month."),
        Parameter("change_hourly", MONEY, "By how much one change may raise the cost of a fleet."),
        Parameter("change_monthly", MONEY, "The same, a month."),
        Parameter("unknown_prices", TEXTS, "Machine types whose price nobody needs to know: `p6-*`."),
    ),
    needs=(
        "hourly",
        "monthly",
        "project_hourly",
        "project_monthly",
        "change_hourly",
        "change_monthly",
    ),
)


def budget(facts: PlanFacts, parameters: Parameters) -> Iterator[Breach]:
    allowed: tuple[str, ...] = parameters["unknown_prices"] or ()
    unknown = {
        each.machine: each.count
        for each in facts.nodes
        if each.price is None and not each.reserved and each.count and not matches(each.machine, allowed)
    }
    if unknown:
        names = ", ".join(f"{counted(count, 'node')} of {machine}" for machine, count in unknown.items())
        yield Breach(f"no price is known of {names}: the budget cannot be kept", "resources")
    before = facts.hourly - facts.delta
    more = f" with {facts.most_nodes} nodes" if facts.most_nodes else ""
    for name, amount, what in (
        ("", facts.ceiling, f"the fleet costs {{}}{more}"),
        ("project_", facts.others + facts.ceiling, f"the project costs {{}}{more}"),
        ("change_", facts.ceiling - before, f"the change adds {{}}{more}"),
    ):
        for period, hours in (("hourly", 1), ("monthly", HOURS)):
            bound = parameters[name + period]
            if bound is not None and amount * hours > float(bound) + 1e-6:
                word = "an hour" if hours == 1 else "a month"
                text = what.format(f"${amount * hours:,.2f} {word}")
                yield Breach(f"{text}, ${float(bound):,.2f} are allowed", "nodes")


ENDLESS = Rule(
    "endless-fleet",
    "plan",
    "medium",
    "advisory",
    "A fleet that costs this much ends by itself: it has a `ttl`, or nodes that end when they are idle.",
    "set `ttl`, or `nodes: 0..N` with an `idle_duration`",
    (Parameter("hourly", MONEY, "US dollars an hour from which on it holds.", 1000),),
)


def endless(facts: PlanFacts, parameters: Parameters) -> Iterator[Breach]:
    if facts.endless and facts.hourly >= float(parameters["hourly"]) and facts.hourly > 0:
        yield Breach(f"it costs ${facts.hourly:,.2f} an hour, and nothing ends it", "ttl")


# What goes

REPLACED = Rule(
    "replaced-nodes",
    "plan",
    "high",
    "mandatory",
    "One change deletes or replaces at most this many nodes.",
    "make the change in steps, or have the number raised in `orch.yml`",
    (Parameter("most", COUNT, "How many nodes at once."),),
    needs=("most",),
    operations=True,
)


def replaced(facts: PlanFacts, parameters: Parameters) -> Iterator[Breach]:
    if len(facts.lost) > parameters["most"]:
        names = few([each.name for each in facts.lost])
        yield Breach(
            f"{counted(len(facts.lost), 'node')} are deleted or replaced at once, {parameters['most']} are "
            f"allowed: {names}",
            "nodes",
        )


DATA = Rule(
    "data-loss",
    "plan",
    "critical",
    "advisory",
    "Nothing that holds data is deleted or replaced: volumes and file systems. Where this is mandatory, "
    "`--lose-data` does not help.",
    "copy the data first and exempt the resource until then, or leave its properties as they are",
    operations=True,
)


def data_loss(facts: PlanFacts, parameters: Parameters) -> Iterator[Breach]:
    for each in facts.lost_data:
        yield Breach(
            f"{each.what or 'it'} is {each.op}d, and all data on it is lost", "mounts", each.name, each.urn
        )


RUNS = Rule(
    "runs-on-nodes",
    "plan",
    "high",
    "advisory",
    "No node is deleted or replaced while a run is on it. orch refuses that without `--force`; where this is "
    "mandatory, with it too.",
    "wait for the runs, or end them with `orch stop`",
    operations=True,
)


def runs(facts: PlanFacts, parameters: Parameters) -> Iterator[Breach]:
    if facts.runs:
        yield Breach(f"nodes go under {few(facts.runs)}", "nodes")


# What a fleet is for

SLOW = Rule(
    "slow-cluster",
    "plan",
    "medium",
    "advisory",
    "Nodes of a cluster (`placement: cluster`) have a fast interconnect: EFA, RoCE, GPUDirect or InfiniBand. "
    "One whose file writes `interconnect: ethernet` wants none.",
    "choose a type with one, or write `network: {interconnect: ethernet}`",
    code="ORCH223",
)


def slow(facts: PlanFacts, parameters: Parameters) -> Iterator[Breach]:
    if facts.slow:
        yield Breach(facts.slow, "placement")


SPOT = Rule(
    "spot-without-checkpoint",
    "task",
    "medium",
    "advisory",
    "A task on spot instances that runs for long keeps checkpoints: an instance may be taken back any time.",
    "write `checkpoint: /PATH` on a volume, or `spot_policy: on-demand`",
    (Parameter("longer_than", DURATION, "Run time (`max_duration`) from which on it holds.", "4h"),),
)


def spot(task: Task, parameters: Parameters) -> Iterator[Breach]:
    if task.spot_policy not in ("spot", "auto") or "spot_policy" not in task.model_fields_set:
        return
    if task.checkpoint is None and (
        task.max_duration_s is None or task.max_duration_s > parameters["longer_than"]
    ):
        longest = render_duration(task.max_duration_s) if task.max_duration_s is not None else "any time"
        yield Breach(f"it may run for {longest} on spot instances, and keeps no checkpoint", "spot_policy")


PLAN_CHECKS: tuple[tuple[Rule, PlanCheck], ...] = (
    (BUDGET, budget),
    (ENDLESS, endless),
    (REPLACED, replaced),
    (DATA, data_loss),
    (RUNS, runs),
    (SLOW, slow),
)
TASK_CHECKS: tuple[tuple[Rule, TaskCheck], ...] = ((SPOT, spot),)


def ends_itself(fleet: Fleet) -> bool:
    """Return True if a fleet has an end, or nodes that end when they are idle: those above its minimum."""
    least = fleet.nodes.min if fleet.nodes is not None else None
    idle = fleet.idle_duration_s is not None and fleet.nodes is not None and least == 0
    return fleet.ttl_s is not None or idle or fleet.ssh_config is not None
