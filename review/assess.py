"""From plans to their reviews: verdict, dangers, approvals, losses, cost, drift, groups. Start at
`fleet_review`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from orch.review.covering import cover_text, covered_change, covered_drift, covered_plan
from orch.review.dangers import (
    cost_dangers,
    data_dangers,
    drift_dangers,
    exposures,
    host_dangers,
    lease_dangers,
    needed_approvals,
    node_dangers,
    place,
    policy_dangers,
)
from orch.review.impact import (
    cost_of,
    gpus_of,
    losses,
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
    FleetSubject,
    Kind,
    Loss,
    Remark,
    StackReview,
    Verdict,
)
from orch.review.tree import WIDEST, folded, groups, leaf_text, value_text
from orch.spec.diagnostics import Diagnostic
from orch.spec.errors import ExitCode, OrchError
from orch.spec.loader.load import InvalidConfiguration
from orch.stacks.events.changes import GONE, Change, PropertyChange, PropertyDrift, summary
from orch.stacks.events.kinds import kind_of
from orch.stacks.events.notation import fold, type_of
from orch.stacks.plans.headline import NO_HEADLINE, Headline
from orch.stacks.volumes.operations import VolumeOutcome

CAPACITY = frozenset(
    f"ORCH{number}" for number in (*range(214, 221), 304, *range(310, 314), *range(320, 326))
)
"""Codes of quotas, reservations, capacity, and of rights that decide whether a fleet comes up."""

DATA = frozenset({"ORCH264", "ORCH275", "ORCH348"})
"""Codes of refusals that keep data."""

BUDGET = "ORCH281"


def fleet_review(subject: FleetSubject) -> StackReview:
    plan = covered_plan(subject.plan)
    title = f"fleet {plan.fleet}"
    makers = {str(node["name"]): str(node.get("made_by") or node["name"]) for node in subject.recorded}
    lost = tuple(losses(plan, gpus_of(subject.recorded), subject.occupants, makers))
    after = planned_groups(subject.compiled) if subject.compiled is not None else ()
    cost = cost_of(plan, subject.fleet, after, subject.prices)
    remarks = [_remark(each) for each in subject.diagnostics]
    remarks += [Remark("warning", "", each.node, cover_text(each.text)) for each in plan.warnings]
    dangers = [
        *data_dangers(title, plan, lost),
        *run_dangers(title, subject.occupants),
        *node_dangers(title, plan, lost),
        *exposures(title, plan.changes, subject),
        *policy_dangers(title, subject.policies),
        *lease_dangers(title, subject.diagnostics),
        *cost_dangers(title, cost),
        *host_dangers(title, plan),
        *drift_dangers(title, plan.drift),
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
        approvals=tuple(needed_approvals(plan, subject, dangers)),
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
    changes = tuple(map(covered_change, outcome.changes))
    gone = [change for change in changes if change.op in ("delete", "replace")]
    dangers: list[Danger] = []
    for change in gone if outcome.loses_data else ():
        reason = "; ".join(_leaf(leaf) for leaf in change.diff if leaf.replaces)
        why = f" ({reason})" if reason else ""
        dangers.append(
            Danger("data", title, f"the volume is destroyed and made anew{why}: all data on it is lost")
        )
    dangers += [*lease_dangers(title, diagnostics), *drift_dangers(title, outcome.drift)]
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
    texts = [f"{cover_text(each.summary)} ({place(each)})" for each in errors]
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
    """Yield what differed before this change, equal rows of several resources once."""
    by_urn = {change.urn: change for change in changes}
    rows: dict[tuple[str, str, str, str, str], list[str]] = {}
    for each in map(covered_drift, drift):
        then = _then(each, by_urn.get(each.urn))
        kind = kind_of(type_of(each.urn))
        registered, observed = value_text(each.registered, WIDEST), value_text(each.observed, WIDEST)
        rows.setdefault((kind, each.path, registered, observed, then), []).append(each.name)
    for (kind, path, registered, observed, then), names in rows.items():
        yield DriftRow(f"{kind} {fold(names)}", len(names), path, registered, observed, then)


def _then(drift: PropertyDrift, change: Change | None) -> str:
    """Return what `up` does about drift."""
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
    """Return True if drift is the only cause of a change."""
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


def _remark(each: Diagnostic) -> Remark:
    return Remark(
        each.severity.value, each.code, place(each), cover_text(each.summary), cover_text(each.hint or "")
    )


def _leaf(leaf: PropertyChange) -> str:
    return leaf_text(leaf, WIDEST).removesuffix(" (replaces it)")
