"""Conditions in the status of an object: what is true of it, since when, and why."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from orch.rehearsal.kubernetes.api import Doc

_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


def condition(status: Doc, *kinds: str) -> Doc:
    """The first condition of these kinds that is true, empty where none is."""
    rows: list[Any] = status.get("conditions") or []
    return next((row for row in rows if row["type"] in kinds and row["status"] == "True"), {})


def set_condition(status: Doc, kind: str, reason: str, message: str, *, true: bool = True) -> None:
    """Set a condition; the moment of its last transition stays where it is as it was."""
    rows: list[Doc] = status.get("conditions") or []
    former = next((row for row in rows if row["type"] == kind), None)
    text = "True" if true else "False"
    now = datetime.now(timezone.utc).strftime(_MOMENT)
    since = former["lastTransitionTime"] if former is not None and former["status"] == text else now
    row = {"type": kind, "status": text, "reason": reason, "message": message, "lastTransitionTime": since}
    status["conditions"] = [*(each for each in rows if each["type"] != kind), row]


def age_s(row: Doc) -> float:
    """Seconds since a condition became what it is; 0 without one."""
    if not row:
        return 0.0
    since = datetime.fromisoformat(str(row["lastTransitionTime"]).replace("Z", "+00:00"))
    return (datetime.now(timezone.utc) - since).total_seconds()
