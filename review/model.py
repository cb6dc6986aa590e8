"""What a reviewer must know of plans, as data. Text in it is plain: whoever renders it escapes it.

`assess.py` makes it; `markdown.py` and `html.py` show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from orch.components.deployment import Deployment
    from orch.spec.diagnostics import Diagnostic
    from orch.spec.models import Fleet
    from orch.stacks.plans.plan import Plan
    from orch.stacks.provisioning.busy_nodes import Occupant

Verdict = Literal["failed", "refused", "danger", "changes", "unchanged"]

VERDICTS: tuple[Verdict, ...] = ("failed", "refused", "danger", "changes", "unchanged")
"""The worst first."""

Kind = Literal["data", "runs", "nodes", "exposure", "policy", "lease", "cost", "failure", "hosts", "drift"]

KINDS: tuple[Kind, ...] = (
    "data",
    "runs",
    "nodes",
    "exposure",
    "policy",
    "lease",
    "cost",
    "failure",
    "hosts",
    "drift",
)
"""Kinds of dangers, the worst first."""

OPS = ("delete", "replace", "create", "update", "same")


@dataclass(frozen=True)
class Danger:
    """One reason to look twice, as a sentence."""

    kind: Kind
    stack: str
    text: str


@dataclass(frozen=True)
class Approval:
    """Agreement that is needed: by whom, to what, and how `up` gets it."""

    who: str
    to: str
    how: str


@dataclass(frozen=True)
class Loss:
    """Resources of one kind that are destroyed, or destroyed and made anew. `forced_by`: the property that
    forces it; `stops`: what ends or is lost with them. `is_nodes`: they are nodes of the fleet."""

    op: Literal["delete", "replace"]
    names: str
    kind: str
    number: int
    forced_by: str
    stops: str
    is_nodes: bool = False


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one type in one place. `gpus` of each; `price`: US dollars an hour of each, None: not
    known."""

    names: tuple[str, ...]
    machine: str
    place: str
    market: Literal["on-demand", "spot", "reserved", "none"] = "none"
    price: float | None = 0.0
    gpus: int = 0
    gpu: str = ""


@dataclass(frozen=True)
class Cost:
    """US dollars an hour. `ceiling`: with as many nodes as the file allows, None where a price is not known.

    `spot` and `on_demand` are what nodes cost after the change by their market, `reserved` is what those of
    a reservation would cost on demand, which is not in `after` where the cloud has it paid for. `unknown`:
    nodes whose price no list has; `not_counted`: what else costs money. `prices`: which list they are from,
    and of when.
    """

    now: float
    after: float
    ceiling: float | None
    nodes: int
    most_nodes: int
    on_demand: float = 0.0
    spot: float = 0.0
    reserved: float = 0.0
    reserved_nodes: int = 0
    unknown: tuple[str, ...] = ()
    not_counted: tuple[str, ...] = ()
    budget: float | None = None
    prices: str = ""

    @property
    def delta(self) -> float:
        return round(self.after - self.now, 6) + 0.0


@dataclass(frozen=True)
class Remark:
    """A finding of a plan. `where`: file:line:col, or the host that it is about."""

    severity: str
    code: str
    where: str
    text: str
    hint: str = ""


@dataclass(frozen=True)
class DriftRow:
    """A difference that was there before this change. `then`: what `up` makes of it."""

    names: str
    number: int
    path: str
    registered: str
    observed: str
    then: str


@dataclass(frozen=True)
class PolicyResult:
    """Verdict of a policy on a plan, as the list `policies` of a plan's JSON has it. `exempt`: who answers
    for an exemption, until when and why; then the policy refuses nothing."""

    name: str
    level: str
    message: str
    urn: str = ""
    file: str = ""
    line: int | None = None
    exempt: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> PolicyResult:
        line, exempt = record.get("line"), record.get("exempt")
        return cls(
            str(record["name"]),
            str(record["level"]),
            str(record["message"]),
            str(record.get("urn") or ""),
            str(record.get("file") or ""),
            int(line) if line else None,
            f"{exempt['owner']} until {exempt['expires']}: {exempt['reason']}" if exempt else "",
        )

    @property
    def refuses(self) -> bool:
        return self.level == "mandatory" and not self.exempt

    @property
    def level_words(self) -> str:
        return f"exempt ({self.exempt})" if self.exempt else self.level

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.file and self.line else self.file or self.urn


@dataclass(frozen=True)
class ChangeGroup:
    """Resources with the same change: their folded names, their kind, and the properties of one of them."""

    op: str
    names: str
    kind: str
    number: int
    leaves: tuple[str, ...] = ()
    mends_drift: bool = False


@dataclass(frozen=True)
class Failure:
    """Reason why there is no plan."""

    code: str
    summary: str
    where: str
    detail: str
    hint: str
    exit_code: int


@dataclass(frozen=True)
class StackReview:
    """The review of one stack. `where`: file:line of its document; `name`: of the fleet, volume or file.
    `serial`: how many updates its state has had, None where that is not known."""

    kind: Literal["fleet", "volume", "file"]
    name: str
    where: str
    verdict: Verdict
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    headline: tuple[str, ...] = ()
    dangers: tuple[Danger, ...] = ()
    approvals: tuple[Approval, ...] = ()
    losses: tuple[Loss, ...] = ()
    cost: Cost | None = None
    capacity: tuple[Remark, ...] = ()
    remarks: tuple[Remark, ...] = ()
    reasons: tuple[str, ...] = ()
    drift: tuple[DriftRow, ...] = ()
    policies: tuple[PolicyResult, ...] = ()
    groups: tuple[ChangeGroup, ...] = ()
    before: tuple[NodeGroup, ...] = ()
    after: tuple[NodeGroup, ...] = ()
    failure: Failure | None = None
    serial: int | None = None

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Basis:
    """Basis of a plan: commits of git, and until when a saved plan may be applied. "" if there is none.

    `plan`: the id of the saved plan.
    """

    commit: str = ""
    base: str = ""
    dirty: bool = False
    plan: str = ""
    valid_until: str = ""


@dataclass(frozen=True)
class Review:
    """The reviews of the stacks of a file or folder, the worst first.

    `project` and `path` tell which comment it is; `command` is what applies it.
    """

    project: str
    path: str
    stacks: tuple[StackReview, ...]
    command: str
    basis: Basis = Basis()

    @property
    def verdict(self) -> Verdict:
        found: list[Verdict] = [each.verdict for each in self.stacks] or ["unchanged"]
        return found[min(range(len(found)), key=lambda at: VERDICTS.index(found[at]))]

    @property
    def dangers(self) -> tuple[Danger, ...]:
        """Return the dangers of all stacks, the worst first."""
        found = [danger for each in self.stacks for danger in each.dangers]
        return tuple(sorted(found, key=lambda each: (KINDS.index(each.kind), each.stack, each.text)))

    @property
    def approvals(self) -> tuple[Approval, ...]:
        return tuple(dict.fromkeys(approval for each in self.stacks for approval in each.approvals))

    def number(self, verdict: Verdict) -> int:
        return sum(each.verdict == verdict for each in self.stacks)

    def total(self, op: str) -> int:
        return sum(each.counts.get(op, 0) for each in self.stacks)

    def costs(self) -> Iterator[tuple[StackReview, Cost]]:
        for each in self.stacks:
            if each.cost is not None:
                yield each, each.cost


def worst_first(stacks: Sequence[StackReview]) -> tuple[StackReview, ...]:
    order = {"volume": 0, "fleet": 1, "file": 2}
    return tuple(
        sorted(
            stacks, key=lambda each: (VERDICTS.index(each.verdict), order[each.kind], each.name, each.where)
        )
    )


@dataclass(frozen=True)
class FleetSubject:
    """A fleet and all that its review is made from.

    `where`: file:line of its document; `recorded`: its nodes as the state has them; `diagnostics`: the
    findings of the plan and of the file, each with its place; `prices`: which price list, and of when.
    """

    plan: Plan
    fleet: Fleet
    where: str
    compiled: Deployment | None
    recorded: Sequence[Mapping[str, Any]] = ()
    occupants: Sequence[Occupant] = ()
    diagnostics: Sequence[Diagnostic] = ()
    policies: Sequence[PolicyResult] = ()
    prices: str = ""
