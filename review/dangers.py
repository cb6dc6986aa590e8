"""Dangers of a plan, the worst kinds first, and who has to approve them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orch.policies.resource_rules import SSH_OPEN
from orch.review.covering import cover_text
from orch.review.impact import is_open, opened
from orch.review.model import Approval, Cost, Danger, FleetSubject, Loss, PolicyResult
from orch.spec.diagnostics import Diagnostic, Severity
from orch.stacks.events.changes import Change, PropertyDrift
from orch.stacks.events.kinds import kind_of
from orch.stacks.events.notation import fold, type_of
from orch.stacks.plans.plan import Plan

OPEN_TO_ALL = "ORCH224"
LEASED = "ORCH395"


def data_dangers(title: str, plan: Plan, lost: Iterable[Loss]) -> Iterator[Danger]:
    held = {kind_of(type_) for type_ in plan.headline.explained.holds_data}
    for each in lost:
        if each.kind in held:
            again = " and made anew" if each.op == "replace" else ""
            why = f" ({each.forced_by})" if each.forced_by else ""
            yield Danger(
                "data", title, f"{each.kind} {each.names} is destroyed{again}{why}: all data on it is lost"
            )


def node_dangers(title: str, plan: Plan, lost: Iterable[Loss]) -> Iterator[Danger]:
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


def exposures(title: str, changes: Sequence[Change], subject: FleetSubject) -> Iterator[Danger]:
    for each in subject.diagnostics:
        if each.code == OPEN_TO_ALL:
            yield Danger("exposure", title, f"{each.summary} ({place(each)})")
    for each in subject.policies:
        if each.name == SSH_OPEN.name and not each.refuses:  # one that refuses is told as a policy
            yield Danger("exposure", title, f"{each.message}{_where(each)}")
    for change, text in opened(changes):
        yield Danger(
            "exposure", title, f"{kind_of(change.type)} {change.name} lets the whole world in: {text}"
        )


def policy_dangers(title: str, policies: Iterable[PolicyResult]) -> Iterator[Danger]:
    for each in policies:
        if each.refuses:
            yield Danger("policy", title, f"policy {each.name}: {each.message}{_where(each)}")


def _where(policy: PolicyResult) -> str:
    return f" ({policy.where})" if policy.where else ""


def lease_dangers(title: str, diagnostics: Iterable[Diagnostic]) -> Iterator[Danger]:
    for each in diagnostics:
        if each.code == LEASED and each.severity is Severity.WARNING:
            yield Danger("lease", title, f"{each.summary} ({each.detail})")


def cost_dangers(title: str, cost: Cost) -> Iterator[Danger]:
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


def host_dangers(title: str, plan: Plan) -> Iterator[Danger]:
    if plan.problems:
        names = fold(dict.fromkeys(each.node for each in plan.problems))
        yield Danger("hosts", title, f"{names}: kept out: {cover_text(plan.problems[0].summary)}")


def drift_dangers(title: str, drift: Sequence[PropertyDrift]) -> Iterator[Danger]:
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


def needed_approvals(plan: Plan, subject: FleetSubject, dangers: Iterable[Danger]) -> Iterator[Approval]:
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


def place(each: Diagnostic) -> str:
    return f"{each.span.file}:{each.span.line}:{each.span.column}"
