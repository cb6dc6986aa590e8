"""The plans that rows of the ledger hold, and what their nodes cost."""

from __future__ import annotations

import json
import re

from orch.runner.errors import RunnerError
from orch.runner.ledger.records import RunRow
from orch.runner.plan.run_names import RunName
from orch.runner.plan.run_plan import RunPlan
from orch.spec.access import KUBERNETES
from orch.spec.state import hourly_price


def plan_of(row: RunRow) -> RunPlan:
    """The plan a run was submitted with.

    Raises BadRunName for a run that no node can hold, RunnerError for a plan this orch cannot read.
    """
    RunName.from_ledger(row.name)
    try:
        plan = RunPlan.model_validate_json(row.plan)
    except ValueError as error:
        raise RunnerError(
            f"the plan of run {row.name} cannot be read", detail="it was written by another version of orch"
        ) from error
    if (plan.run, plan.number) != (row.name, row.id):
        raise RunnerError(
            f"the plan of run {row.name} cannot be read",
            detail=f"it is of run {plan.run}, number {plan.number}",
        )
    return plan


def groups_and_tags(row: RunRow) -> tuple[dict[int, str], dict[str, str]]:
    """Rank -> its group, and the tags of a run; none where the plan has none or cannot be read.

    Most plans have neither, which their text shows without reading it all.
    """
    if '"group":"' not in row.plan and '"tags":{"' not in row.plan:
        return {}, {}
    try:
        plan = plan_of(row)
    except RunnerError:
        return {}, {}
    return {rank.rank: rank.group for rank in plan.ranks if rank.group is not None}, plan.tags


def waits_for_pods(plan: str) -> bool:
    """Whether the nodes of a plan stand for pods that are not there yet (placement/slots.py). By its text,
    for there may be many plans."""
    of_pods = re.search(f'"kind": ?"{KUBERNETES}"', plan) is not None
    return of_pods and not re.search(r'"made_for": ?"', plan)


def hourly_of(plan: str) -> float | None:
    """What the nodes of a plan cost in US dollars an hour, of a shared node the part of its blocks.

    By the prices that were recorded when they were made; None where one is not known. Plans of other versions
    have that too, and the rest of a plan is not looked at, for there may be many.
    """
    try:
        told = json.loads(plan)
        backend, ranks = str(told["backend"]), list(told["ranks"])
        parts = [
            (hourly_price(backend, each["node"]["price_hourly"]), each["blocks"], each["node"]["blocks"])
            for each in ranks
        ]
        if any(price is None for price, _, _ in parts):
            return None
        return sum(float(price or 0.0) * taken / max(1, of) for price, taken, of in parts)
    except (ValueError, TypeError, KeyError):
        return None


def cost_of(row: RunRow) -> float | None:
    """What the nodes of a run have cost in US dollars while its commands ran, earlier attempts included; None
    where a price is not known."""
    spans = [(each.plan, each.started_at, each.finished_at) for each in row.attempts]
    if all(each.attempt != row.attempt for each in row.attempts):
        spans.append((row.plan, row.started_at, row.finished_at or row.now))
    hourly = [hourly_of(plan) for plan, _, _ in spans]
    if any(price is None for price in hourly):
        return None
    seconds = (0.0 if began is None else max(0.0, ended - began) for _, began, ended in spans)
    return sum((price or 0.0) * each / 3600 for price, each in zip(hourly, seconds, strict=True))
