"""Calls of simulated accounts: as they arrive, as the log has them, and how they are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orch.rehearsal.scenario import Failure, Hook
from orch.rehearsal.store import Doc


class Refusal(Exception):
    """A cloud refuses a call. `code` is the cloud's own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


LOST = "ANSWER_LOST"
"""A failure of this code does what the call asks for, and loses the answer, where a cloud is asked over the
wire."""


class AnswerLost(Exception):
    """The call was done, and the connection is closed before its answer."""


@dataclass(frozen=True)
class ApiCall:
    """One call of the log. `done` False: the caller died before the answer. `error`: the cloud's code of a
    refusal."""

    number: int
    service: str
    action: str
    region: str
    caller: str
    params: Mapping[str, Any]
    done: bool
    error: str | None


@dataclass(frozen=True)
class IncomingCall:
    """A call as it arrives. `params` go into the log; `aliases`: other names of the action for `denied`."""

    service: str
    action: str
    region: str
    caller: str
    params: Doc
    aliases: tuple[str, ...] = ()


def concerns(failure: Failure, call: IncomingCall, number: int, nth: int) -> bool:
    return failure.region in (None, call.region) and hits(failure, call.action, number, nth)


def hits(trigger: Failure | Hook, action: str, number: int, nth: int) -> bool:
    """Whether a failure or a hook applies to this call. One that names no call applies to none."""
    return (
        trigger.action in (None, action)
        and trigger.at in (None, number)
        and trigger.nth in (None, nth)
        and (trigger.action, trigger.at, trigger.nth) != (None, None, None)
    )
