"""What `up` would do to a fleet, or did; and whether what was shown of it may be carried out as it is."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from orch.components.deployment import Deployment
from orch.components.explain import known
from orch.components.request import NewHostKey, NodeProblem, NodeWarning
from orch.spec.findings import Finding
from orch.stacks.provisioning.busy_nodes import going
from orch.stacks.pulumi.changes import Change, Drifted, changes, drifted
from orch.stacks.pulumi.operation import EngineCall
from orch.stacks.pulumi.recovery import same_state
from orch.stacks.state import StackExport, StackState
from orch.stacks.summary import NO_HEADLINE, Headline, Recorded, headline

FRESH_S = 30.0
"""For so long after it was made, a plan that was shown is carried out without asking the cloud or the hosts
again."""

FileMarks = Mapping[str, tuple[int, int] | None]
"""Files by their paths: when each was written, and its size; None where there is none."""


@dataclass(frozen=True)
class Prepared:
    """A plan as it can be carried out: what was asked of the cloud and the hosts, and what it was made from.

    `recorded` is what `stack` said then, `at` when that was. `as_recorded`: the engine's look before the plan
    found nothing that differs, so that it need not look again.
    """

    stack: StackState
    recorded: StackExport | None
    compiled: Deployment
    files: FileMarks
    as_recorded: bool
    at: float = field(default_factory=time.monotonic)

    def outdated(self, files: FileMarks) -> str | None:
        """Why it cannot be carried out as it was shown; None as long as it can."""
        if changed := [path for path in {*files, *self.files} if files.get(path) != self.files.get(path)]:
            return f"{', '.join(sorted(changed))} changed since"
        if not same_state(self.recorded or {}, self.stack.recorded or {}):
            return "somebody changed the fleet since"
        if time.monotonic() - self.at > FRESH_S:
            return f"it was made more than {FRESH_S:.0f} seconds ago"
        return None


@dataclass(frozen=True)
class Plan:
    """What `up` would do, or did. `reasons` are the plan's own words on its decisions.

    `hourly` is the price of the whole fleet afterwards, `delta` what changes in it, in US dollars an hour.
    `problems` are nodes that are kept out, or failed while the others did not; `unpriced` is what costs money
    that is not in `hourly`. `drift` is what the refresh before it found not to be as recorded; `headline`
    says what the changes come to for the fleet. `going`: nodes that are there and are removed, or made anew.
    `prepared`: what carries it out as it was shown.
    """

    fleet: str
    stack: str
    changes: tuple[Change, ...]
    reasons: tuple[str, ...]
    hourly: float
    delta: float
    problems: tuple[NodeProblem, ...] = ()
    warnings: tuple[NodeWarning, ...] = ()
    new_keys: tuple[NewHostKey, ...] = ()
    findings: tuple[Finding, ...] = ()
    unpriced: tuple[str, ...] = ()
    drift: tuple[Drifted, ...] = ()
    headline: Headline = NO_HEADLINE
    going: frozenset[str] = frozenset()
    prepared: Prepared | None = field(default=None, compare=False, repr=False)

    @property
    def pending(self) -> bool:
        return any(change.op != "same" for change in self.changes)


@dataclass(frozen=True)
class Before:
    """What a stack knew of its fleet before."""

    hourly: float
    fleet: Recorded


def before(stack: StackState) -> Before:
    return Before(stack.hourly, Recorded(known(stack.outputs), stack.makers))


def planned(stack: str, before: Before, compiled: Deployment, run: EngineCall) -> Plan:
    """The plan that a call of the engine made or carried out."""
    failed = run.node_errors() if run.isolated else {}
    told = {problem.node for problem in compiled.problems}
    late = [_node_problem(name, text) for name, text in failed.items()]
    # A host that was unfit when it was planned fails in the engine for the same reason; that it is not as
    # registered is said by the engine alone.
    problems = [*compiled.problems, *(p for p in late if p.node not in told or p.code == "ORCH385")]
    found = tuple(change for change in changes(run.events) if change.name not in failed)
    return Plan(
        stack,
        stack,
        found,
        compiled.reasons,
        compiled.hourly,
        money(compiled.hourly - before.hourly),
        problems=tuple(problems),
        warnings=compiled.warnings,
        new_keys=compiled.new_keys,
        findings=compiled.findings,
        unpriced=compiled.unpriced,
        drift=drifted(run.events),
        headline=headline(found, before.fleet, compiled),
        going=going(before.fleet.nodes, compiled, found),
    )


_ONE_LINE = re.compile(
    r"(?:(?P<where>\S+): )?(?:(?P<code>ORCH\d+) )?(?P<summary>[^;]*)(?:; (?P<detail>.*))?", re.S
)


def _node_problem(name: str, text: str) -> NodeProblem:
    """What a provider said in one line, taken apart again."""
    found = _ONE_LINE.fullmatch(text)
    if found is None:
        return NodeProblem(text, node=name)
    detail = found["detail"].replace("; ", "\n") if found["detail"] else None
    return NodeProblem(found["summary"], node=name, where=name, detail=detail, code=found["code"])


def money(amount: float) -> float:
    """US dollars without what floats leave of nothing: no -0.0."""
    return round(amount, 6) + 0.0
