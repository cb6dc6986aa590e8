"""Fleets planned without a stack: a request as `up` makes it, of a model, settings and a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orch.components.request import PlanRequest, PriorState
from orch.spec.models import Fleet
from orch.spec.models.backends.base import BackendSettings


def request_of(
    fleet: Fleet,
    *settings: BackendSettings,
    previous: PriorState = PriorState(),  # noqa: B008 - frozen
    session: Any = None,
    folder: Path | None = None,
    **more: Any,
) -> PlanRequest:
    here = folder or Path.cwd()
    return PlanRequest(
        fleet, settings, previous, "abc123", root=here, folder=here, session=lambda name: session, **more
    )
