"""`retry`: what is tried again, and for how long."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar.values import Problem
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.parsing import Reads
from orch.spec.models.fields.types import choice, duration, text, whole

EVENTS = ("no-capacity", "error", "interruption")
Event = Literal["no-capacity", "error", "interruption"]
RETRY_S = 3600


def _events(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise Problem("ORCH112", "a list of events is expected", hint=f"write `[{text(value, 'a list')}]`")
    one = choice(*EVENTS).read
    read: list[str] = []
    for index, item in enumerate(cast("list[object]", value)):
        try:
            read.append(cast(str, one(item)))
        except Problem as problem:
            problem.at = (index,)
            raise
    if not read:
        raise Problem("ORCH117", "no event is listed", hint="write `retry: false`, or list one")
    return tuple(dict.fromkeys(read))


Events = Annotated[
    tuple[Event, ...], Reads(_events, json_schema.rows(json_schema.words(*EVENTS), "list of events"))
]
Duration = Annotated[int | None, duration(RETRY_S, low=1)]


class Retry(Section):
    """Of a run: all its nodes start again."""

    noun: ClassVar[str] = "`retry`"

    on_events: Events = Field(
        default=EVENTS,
        description="`no-capacity`: no free nodes; `interruption`: a node was lost; `error`: all other "
        "failures, and the loss of a node that is not of the spot market.",
    )
    duration_s: Duration = Field(
        default=RETRY_S,
        validation_alias="duration",
        description="From the submission until commands begin, then from the first failure; an attempt "
        "that ran for as long begins a new count.",
    )
    max_attempts: Annotated[int | None, whole(1, 10_000)] = Field(
        default=None,
        description="Attempts in all; no bound if not given. Waiting for free nodes is none.",
    )

    @classmethod
    def form(cls) -> str:
        return "write `true`, or `{on_events: [error], duration: 2h}`"


class FleetRetry(Section):
    """Of provisioning; a gang is tried again as a whole."""

    noun: ClassVar[str] = "`retry`"

    on_events: Events = Field(default=("no-capacity",), description="`no-capacity` is what a fleet meets.")
    duration_s: Duration = Field(
        default=RETRY_S, validation_alias="duration", description="From the first attempt."
    )

    @classmethod
    def form(cls) -> str:
        return "write `true`, or `{on_events: [no-capacity], duration: 2h}`"
