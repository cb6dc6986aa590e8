"""Hides values that are named like secrets (`API_TOKEN`): a comment is read by more people than a terminal.

Values that are secret are hidden in a plan already.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orch.spec.confidential import SECRET_NAME
from orch.stacks.events.changes import GONE, Change, PropertyChange, PropertyDrift
from orch.stacks.events.masking import HIDDEN
from orch.stacks.plans.plan import Plan

_NO_SECRET = ("httpTokens", "http_tokens")
"""Properties of AWS that say whether tokens are asked for, which is what IMDSv1 is about."""


def cover_text(text: str) -> str:
    """The text without values of what is named like a secret (`API_TOKEN=…`)."""
    return _ASSIGNED.sub(_covered_value, text) if "=" in text else text


_ASSIGNED = re.compile(r"(?<![\w.-])([\w.-]+)=([^\s,;\"'`]+)")


def _covered_value(match: re.Match[str]) -> str:
    return f"{match[1]}={HIDDEN}" if SECRET_NAME.search(match[1]) else match[0]


def covered_plan(plan: Plan) -> Plan:
    return replace(plan, changes=tuple(map(covered_change, plan.changes)))


def covered_change(change: Change) -> Change:
    leaves = tuple(map(_covered_leaf, change.diff))
    return replace(change, diff=leaves, drift=tuple(map(covered_drift, change.drift)))


def _covered_leaf(leaf: PropertyChange) -> PropertyChange:
    old, new = _covered(leaf.old, leaf.path), _covered(leaf.new, leaf.path)
    if old == new and leaf.old != leaf.new:
        old = new = HIDDEN  # only secrets within differ
    return replace(leaf, old=old, new=new, drift=leaf.drift and covered_drift(leaf.drift))


def covered_drift(drift: PropertyDrift) -> PropertyDrift:
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
