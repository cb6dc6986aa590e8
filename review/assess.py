"""From plans to their reviews: verdict, dangers, approvals, losses, cost, drift, groups. Start at
`fleet_review`.

Values that are secret are hidden in a plan already. What is named like one (`API_TOKEN`) is hidden here
too, for a comment is read by more people than a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orch.components.deployment import Deployment
from orch.policies.resource_rules import SSH_OPEN
from orch.review.impact import (
    cost_of,
    gpus_of,
    is_open,
    losses,
    opened,
    planned_groups,
    recorded_groups,
    run_dangers,
)
from orch.review.model import (
    OPS,
    Approval,
    ChangeGroup,
    Cost,
    Danger,
    DriftRow,
    Failure,
    Kind,
    Loss,
    PolicyResult,
    Remark,
    StackReview,
    Verdict,
)
from orch.review.tree import WIDEST, folded, groups, leaf_text, value_text
from orch.spec.confidential import SECRET_NAME
from orch.spec.diagnostics import Diagnostic, Severity
from orch.spec.errors import ExitCode, OrchError
from orch.spec.loader.load import InvalidConfiguration
from orch.spec.models import Fleet
from orch.stacks.events.changes import GONE, Change, PropertyChange, PropertyDrift, summary
from orch.stacks.events.kinds import kind_of
from orch.stacks.events.masking import HIDDEN
from orch.stacks.events.notation import fold, type_of
from orch.stacks.plans.headline import NO_HEADLINE, Headline
from orch.stacks.plans.plan import Plan
from orch.stacks.provisioning.busy_nodes import Occupant
from orch.stacks.volumes.operations import VolumeOutcome

CAPACITY = frozenset(
    f"ORCH{number}" for number in (*range(214, 221), 304, *range(310, 314), *range(320, 326))
)
"""Codes of quotas, reservations, capacity, and of rights that decide whether a fleet comes up."""

DATA = frozenset({"ORCH264", "ORCH275", "ORCH348"})
"""Codes of refusals that keep data."""

_NO_SECRET = ("httpTokens", "http_tokens")
"""Properties of AWS that say whether tokens are asked for, which is what IMDSv1 is about."""

OPEN_TO_ALL = "ORCH224"
BUDGET = "ORCH281"
LEASED = "ORCH395"


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


def fleet_review(subject: FleetSubject) -> StackReview:
    plan = _covered_plan(subject.plan)
    title = f"fleet {plan.fleet}"
    makers = {str(node["name"]): str(node.get("made_by") or node["name"]) for node in subject.recorded}
    lost = tuple(losses(plan, gpus_of(subject.recorded), subject.occupants, makers))
    after = planned_groups(subject.compiled) if subject.compiled is not None else ()
    cost = cost_of(plan, subject.fleet, after, subject.prices)
    remarks = [_remark(each) for each in subject.diagnostics]
    remarks += [Remark("warning", "", each.node, cover_text(each.text)) for each in plan.warnings]
    dangers = [
        *_data_dangers(title, plan, lost),
        *run_dangers(title, subject.occupants),
        *_node_dangers(title, plan, lost),
        *_exposures(title, plan.changes, subject),
        *_policy_dangers(title, subject.policies),
        *_lease_dangers(title, subject.diagnostics),
        *_cost_dangers(title, cost),
        *_host_dangers(title, plan),
        *_drift_dangers(title, plan.drift),
    ]
    refused = bool(subject.occupants) or any(each.refuses for each in subject.policies)
    return StackReview(
        "fleet",
        plan.fleet,
        subject.where,
        _verdict(plan.pending, dangers, refused=refused),
        counts=summary(plan.changes),
        headline=tuple(map(cover_text, plan.headline.lines)),
        dangers=tuple(dangers),
        approvals=tuple(_approvals(plan, subject, dangers)),
        losses=lost,
        cost=cost,
        capacity=tuple(each for each in remarks if each.code in CAPACITY),
        remarks=tuple(each for each in remarks if each.code not in CAPACITY),
        reasons=tuple(map(cover_text, plan.reasons)),
        drift=tuple(drift_rows(plan.drift, plan.changes)),
        policies=tuple(subject.policies),
        groups=tuple(change_groups(plan.changes, plan.headline)),
        before=recorded_groups(subject.recorded),
        after=after,
    )


def volume_review(outcome: VolumeOutcome, where: str, diagnostics: Sequence[Diagnostic] = ()) -> StackReview:
    """The review of what `up` would do to a volume. Its price is by the month; a review tells it by the
    hour."""
    title = f"volume {outcome.name}"
    changes = tuple(map(_covered_change, outcome.changes))
    gone = [change for change in changes if change.op in ("delete", "replace")]
    dangers: list[Danger] = []
    for change in gone if outcome.loses_data else ():
        reason = "; ".join(_leaf(leaf) for leaf in change.diff if leaf.replaces)
        why = f" ({reason})" if reason else ""
        dangers.append(
            Danger("data", title, f"the volume is destroyed and made anew{why}: all data on it is lost")
        )
    dangers += [*_lease_dangers(title, diagnostics), *_drift_dangers(title, outcome.drift)]
    now, after = (round((each or 0.0) / 730, 6) for each in (outcome.was_monthly, outcome.monthly))
    unpriced = None in (outcome.was_monthly, outcome.monthly)
    unknown = (f"{outcome.name} (the volume)",) if unpriced else ()
    lost = tuple(
        Loss(
            "replace" if change.op == "replace" else "delete",
            change.name,
            kind_of(change.type),
            1,
            "; ".join(_leaf(leaf) for leaf in change.diff if leaf.replaces)
            or "the file no longer asks for it",
            "all data on it" if outcome.loses_data else "",
        )
        for change in gone
    )
    approvals = [
        Approval("who owns the data", f"that all data on the {title} is lost", "orch up FILE, after a copy")
        for _ in range(1 if outcome.loses_data else 0)
    ]
    recorded = [f"{each} is recorded anew" for each in outcome.recorded]
    return StackReview(
        "volume",
        outcome.name,
        where,
        _verdict(outcome.pending, dangers, refused=False),
        counts=summary(changes),
        headline=tuple(recorded),
        dangers=tuple(dangers),
        approvals=tuple(approvals),
        losses=lost,
        cost=Cost(now, after, None if unpriced else after, 0, 0, unknown=unknown),
        remarks=tuple(map(_remark, diagnostics)),
        reasons=tuple(map(cover_text, outcome.reasons)),
        drift=tuple(drift_rows(outcome.drift, changes)),
        groups=tuple(change_groups(changes, NO_HEADLINE)),
    )


def failed_review(kind: Any, name: str, where: str, error: OrchError) -> StackReview:
    """The review of a stack without a plan, or of a file that does not read."""
    diagnostics = error.diagnostics if isinstance(error, InvalidConfiguration) else ()
    codes = {each.code for each in diagnostics if each.severity.value == "error"} or {error.code or ""}
    title = f"{kind} {name}"
    errors = [each for each in diagnostics if each.severity.value == "error"]
    texts = [f"{cover_text(each.summary)} ({_place(each)})" for each in errors]
    kind_of_danger: Kind = "data" if codes & DATA else "cost" if BUDGET in codes else "failure"
    dangers = [Danger(kind_of_danger, title, text) for text in texts or [cover_text(error.summary)]]
    refused = codes & DATA or error.exit_code == ExitCode.POLICY
    # The text of diagnostics quotes lines of the file, which may hold a secret.
    detail = "" if diagnostics else cover_text(error.detail or "")
    return StackReview(
        kind,
        name,
        where,
        "refused" if refused else "failed",
        dangers=tuple(dangers),
        remarks=tuple(map(_remark, diagnostics)),
        failure=Failure(
            error.code or "",
            cover_text(error.summary),
            error.where or "",
            detail,
            cover_text(error.hint or ""),
            int(error.exit_code),
        ),
    )


def change_groups(changes: Iterable[Change], headline: Headline) -> Iterator[ChangeGroup]:
    """Resources with the same change, those first that lose the most."""
    changed = [change for change in changes if change.op != "same"]
    found = groups(changed, headline, verbose=False)
    for group in sorted(found, key=lambda each: OPS.index(each.members[0].op)):
        first, types = group.members[0], dict.fromkeys(each.type for each in group.members)
        kind = kind_of(first.type) if len(types) == 1 else f"resources of {len(types)} types"
        yield ChangeGroup(
            first.op,
            fold(dict.fromkeys(each.name for each in group.members)),
            kind,
            len(group.members),
            tuple(leaf_text(leaf, WIDEST) for leaf in folded(group.leaves, counting=True)),
            all(map(_mends_drift, group.members)),
        )


def drift_rows(drift: Iterable[PropertyDrift], changes: Iterable[Change]) -> Iterator[DriftRow]:
    """What differed before this change, equal rows of several resources once."""
    by_urn = {change.urn: change for change in changes}
    rows: dict[tuple[str, str, str, str, str], list[str]] = {}
    for each in map(_covered_drift, drift):
        then = _then(each, by_urn.get(each.urn))
        kind = kind_of(type_of(each.urn))
        registered, observed = value_text(each.registered, WIDEST), value_text(each.observed, WIDEST)
        rows.setdefault((kind, each.path, registered, observed, then), []).append(each.name)
    for (kind, path, registered, observed, then), names in rows.items():
        yield DriftRow(f"{kind} {fold(names)}", len(names), path, registered, observed, then)


def cover_text(text: str) -> str:
    """The text without values of what is named like a secret (`API_TOKEN=…`)."""
    return _ASSIGNED.sub(_covered_value, text) if "=" in text else text


_ASSIGNED = re.compile(r"(?<![\w.-])([\w.-]+)=([^\s,;\"'`]+)")


def _covered_value(match: re.Match[str]) -> str:
    return f"{match[1]}={HIDDEN}" if SECRET_NAME.search(match[1]) else match[0]


def _then(drift: PropertyDrift, change: Change | None) -> str:
    """What `up` makes of drift."""
    if change is None or change.op == "same":
        return "stays as found"
    if drift.observed == GONE:
        return "made again" if change.op == "create" else "stays gone"
    if change.op in ("delete", "replace"):
        return "goes with the resource"
    for leaf in change.diff:
        if leaf.drift is not None and leaf.drift.path == drift.path:
            put_back = value_text(leaf.new) == value_text(drift.registered)
            return "put back" if put_back else f"set to {value_text(leaf.new, WIDEST)}"
    return "stays as found"


def _mends_drift(change: Change) -> bool:
    """Whether drift is the only cause of a change."""
    if change.op == "create":
        return any(each.observed == GONE for each in change.drift)
    leaves = [leaf for leaf in change.diff if not leaf.follows]
    return bool(leaves) and all(
        leaf.drift is not None and leaf.drift.registered == leaf.new for leaf in leaves
    )


def _verdict(pending: bool, dangers: Iterable[Danger], *, refused: bool) -> Verdict:
    if refused:
        return "refused"
    if any(each.kind != "drift" for each in dangers):
        return "danger"
    return "changes" if pending else "unchanged"


# Dangers


def _data_dangers(title: str, plan: Plan, lost: Iterable[Loss]) -> Iterator[Danger]:
    held = {kind_of(type_) for type_ in plan.headline.explained.holds_data}
    for each in lost:
        if each.kind in held:
            again = " and made anew" if each.op == "replace" else ""
            why = f" ({each.forced_by})" if each.forced_by else ""
            yield Danger(
                "data", title, f"{each.kind} {each.names} is destroyed{again}{why}: all data on it is lost"
            )


def _node_dangers(title: str, plan: Plan, lost: Iterable[Loss]) -> Iterator[Danger]:
    explained = plan.headline.explained
    if explained.owned_by_user:
        return
    if plan.headline.moves and plan.headline.lines:
        yield Danger("nodes", title, cover_text(plan.headline.lines[0]))
    for each in lost:
        if not each.is_nodes:
            continue
        one = each.number == 1
        verb = f"{'is' if one else 'are'} destroyed" + (" and made anew" if each.op == "replace" else "")
        what = f"{each.number} running {explained.noun}{'' if one else 's'}"
        yield Danger(
            "nodes", title, f"{each.names}: {what} {verb}: {each.forced_by}; lost or stopped: {each.stops}"
        )


def _exposures(title: str, changes: Sequence[Change], subject: FleetSubject) -> Iterator[Danger]:
    for each in subject.diagnostics:
        if each.code == OPEN_TO_ALL:
            yield Danger("exposure", title, f"{each.summary} ({_place(each)})")
    for each in subject.policies:
        if each.name == SSH_OPEN.name and not each.refuses:  # one that refuses is told as a policy
            yield Danger("exposure", title, f"{each.message}{_where(each)}")
    for change, text in opened(changes):
        yield Danger(
            "exposure", title, f"{kind_of(change.type)} {change.name} lets the whole world in: {text}"
        )


def _policy_dangers(title: str, policies: Iterable[PolicyResult]) -> Iterator[Danger]:
    for each in policies:
        if each.refuses:
            yield Danger("policy", title, f"policy {each.name}: {each.message}{_where(each)}")


def _where(policy: PolicyResult) -> str:
    return f" ({policy.where})" if policy.where else ""


def _lease_dangers(title: str, diagnostics: Iterable[Diagnostic]) -> Iterator[Danger]:
    for each in diagnostics:
        if each.code == LEASED and each.severity is Severity.WARNING:
            yield Danger("lease", title, f"{each.summary} ({each.detail})")


def _cost_dangers(title: str, cost: Cost) -> Iterator[Danger]:
    if cost.budget is not None and cost.ceiling is not None and cost.ceiling > cost.budget:
        only = f"only with {cost.most_nodes} nodes; " if cost.after <= cost.budget else ""
        yield Danger(
            "cost",
            title,
            f"the budget of ${cost.budget:.2f} an hour is passed: {only}${cost.after:.2f} with {cost.nodes} "
            f"nodes, ${cost.ceiling:.2f} with the {cost.most_nodes} that the file allows",
        )
    if cost.unknown:
        yield Danger(
            "cost", title, f"no price is known of {', '.join(cost.unknown)}: they count as $0 in all sums"
        )


def _host_dangers(title: str, plan: Plan) -> Iterator[Danger]:
    if plan.problems:
        names = fold(dict.fromkeys(each.node for each in plan.problems))
        yield Danger("hosts", title, f"{names}: kept out: {cover_text(plan.problems[0].summary)}")


def _drift_dangers(title: str, drift: Sequence[PropertyDrift]) -> Iterator[Danger]:
    for each in drift:
        if is_open(each.observed) and not is_open(each.registered):
            kind = kind_of(type_of(each.urn))
            text = f"{kind} {each.name} lets the whole world in since somebody changed it outside orch"
            yield Danger("drift", title, f"{text}: {each.path}")
    if drift:
        names = fold(dict.fromkeys(each.name for each in drift))
        yield Danger(
            "drift", title, f"{names}: changed outside orch before this change; see the table of drift"
        )


# Approvals


def _approvals(plan: Plan, subject: FleetSubject, dangers: Iterable[Danger]) -> Iterator[Approval]:
    kinds, name = {each.kind for each in dangers}, plan.fleet
    owners = dict.fromkeys(each.by or "?" for each in subject.occupants)
    for owner in owners:
        runs = dict.fromkeys(each.run or "?" for each in subject.occupants if (each.by or "?") == owner)
        yield Approval(owner, f"that {', '.join(runs)} on {name} stops", "orch stop RUN, or orch up --force")
    if "data" in kinds:
        yield Approval(
            "who owns the data", f"that the data of {name} is lost", "orch up FILE --lose-data PATH"
        )
    if "nodes" in kinds and not owners:
        yield Approval(
            "who works on the fleet", f"that nodes of {name} go, and what is on them", "orch up FILE"
        )
    if "exposure" in kinds:
        yield Approval("security", f"that {name} is open to the world", "orch up FILE")
    for each in subject.policies:
        if each.refuses:
            yield Approval(f"who owns the policy {each.name}", each.message, "an exemption in orch.yml")
    if "cost" in kinds:
        yield Approval("who pays", f"the cost of {name}: see the table of cost", "orch up FILE")
    if plan.new_keys:
        hosts = fold(dict.fromkeys(each.host for each in plan.new_keys))
        yield Approval(
            "who knows the hosts", f"the new host keys of {hosts}", "orch up --accept-new-host-keys"
        )


# Remarks, and what is covered


def _remark(each: Diagnostic) -> Remark:
    return Remark(
        each.severity.value, each.code, _place(each), cover_text(each.summary), cover_text(each.hint or "")
    )


def _place(each: Diagnostic) -> str:
    return f"{each.span.file}:{each.span.line}:{each.span.column}"


def _leaf(leaf: PropertyChange) -> str:
    return leaf_text(leaf, WIDEST).removesuffix(" (replaces it)")


def _covered_plan(plan: Plan) -> Plan:
    return replace(plan, changes=tuple(map(_covered_change, plan.changes)))


def _covered_change(change: Change) -> Change:
    leaves = tuple(map(_covered_leaf, change.diff))
    return replace(change, diff=leaves, drift=tuple(map(_covered_drift, change.drift)))


def _covered_leaf(leaf: PropertyChange) -> PropertyChange:
    old, new = _covered(leaf.old, leaf.path), _covered(leaf.new, leaf.path)
    if old == new and leaf.old != leaf.new:
        old = new = HIDDEN  # only secrets within differ
    return replace(leaf, old=old, new=new, drift=leaf.drift and _covered_drift(leaf.drift))


def _covered_drift(drift: PropertyDrift) -> PropertyDrift:
    if drift.observed == GONE:
        return drift
    registered, observed = _covered(drift.registered, drift.path), _covered(drift.observed, drift.path)
    return replace(drift, registered=registered, observed=observed)


def _covered(value: Any, key: str) -> Any:
    """A value as it may be shown under this key."""
    if isinstance(value, Mapping):
        named = value.get("name") if "value" in value else None
        return {
            each: _covered(item, f"{named}" if each == "value" and isinstance(named, str) else str(each))
            for each, item in value.items()
        }
    if isinstance(value, list):
        return [_covered(item, key) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if SECRET_NAME.search(key) and not key.endswith(_NO_SECRET):
        return HIDDEN
    return cover_text(value) if isinstance(value, str) else value
