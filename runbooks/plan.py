"""What a run of a runbook does, step by step, in its final words. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orch.runbooks.model import Commands, Runbook, Step
from orch.runbooks.parameters import WrongValue
from orch.runbooks.shell import shell_text
from orch.runbooks.words import variable
from orch.spec.grammar.values import Problem

RUN = "runbook run"
"""The verb of a run in the log of changes."""


@dataclass(frozen=True)
class Action:
    """One thing to do. `words`: of an orch command, else None; `script`: for a shell, with the variables that
    it reads in `environment`. `missing`: parameters that are asked for before it is done."""

    words: tuple[str, ...] | None
    script: str
    environment: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    within_s: int = 0


@dataclass(frozen=True)
class PlannedStep:
    """`needed`: whether its condition holds, None while nobody knows. `host`: None for this machine."""

    step: Step
    needed: bool | None
    host: str | None
    do: Action | None
    check: Action | None
    undo: Action | None


def planned(runbook: Runbook, values: Mapping[str, str]) -> tuple[PlannedStep, ...]:
    """Every step with the values that are known. Raises WrongValue."""
    return tuple(planned_step(each, values) for each in runbook.steps)


def planned_step(step: Step, values: Mapping[str, str]) -> PlannedStep:
    """Raises WrongValue."""
    try:
        host = None if step.host is None else step.host.filled(values)
        return PlannedStep(
            step,
            step.when.holds(values) if step.when is not None else True,
            host,
            _action(step.commands, values),
            _action(step.check, values),
            _action(step.undo, values),
        )
    except Problem as problem:
        raise WrongValue(
            f"step {step.name}: {problem.summary}", where=str(step.span), hint=problem.hint, code=problem.code
        ) from problem


def in_words(planned: PlannedStep, complete: Callable[[tuple[str, ...]], tuple[str, ...]]) -> PlannedStep:
    """A step whose commands of orch are completed, so that what is shown is what is done."""

    def completed(action: Action | None) -> Action | None:
        if action is None or action.words is None:
            return action
        return replace(action, words=complete(action.words))

    return replace(
        planned, do=completed(planned.do), check=completed(planned.check), undo=completed(planned.undo)
    )


def _action(commands: Commands | None, values: Mapping[str, str]) -> Action | None:
    if commands is None:
        return None
    if commands.kind == "orch":
        names = tuple(dict.fromkeys(name for each in commands.words for name in each.names))
        words = tuple(each.filled(values) for each in commands.words)
        missing = tuple(name for name in names if name not in values)
        return Action(words, "", (), missing, commands.within_s)
    script = shell_text(commands.text)
    for word in script.words:
        word.filled(values)
    environment = tuple((variable(name), values[name]) for name in script.names if name in values)
    missing = tuple(name for name in script.names if name not in values)
    return Action(None, script.text, environment, missing, commands.within_s)


def subject(name: str, values: Mapping[str, str]) -> str:
    """Return the subject of a run in the log of changes: the same text each time the same is run."""
    shown = [f"{key}={json.dumps(value) if _odd(value) else value}" for key, value in sorted(values.items())]
    return " ".join([name, *shown])


def _odd(value: str) -> bool:
    return not value.isprintable() or not value or any(char in ' "=' for char in value)


def holds(name: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lock names of a run, which prevent that the same is run twice at once."""
    text = json.dumps(sorted(values.items()), ensure_ascii=True)
    return (f"runbook/{name}/{hashlib.sha256(text.encode()).hexdigest()[:16]}",)


@dataclass(frozen=True)
class RunPlan:
    """Record of a run in the log of changes. The run follows it even if the file has changed since.

    `values`: the parameters it was begun with; `answers`: those of questions since. `waits`: the mark of the
    gate at which it stopped last. `passed`: gates that it has passed, each with the answers of that moment.
    `used`: approvals of pull requests that it has spent.
    """

    file: str
    text: str
    values: Mapping[str, str]
    answers: Mapping[str, str]
    waits: str = ""
    passed: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    used: tuple[str, ...] = ()

    def as_json(self) -> str:
        return json.dumps({"schema": 1, **asdict(self)}, ensure_ascii=False)

    @classmethod
    def of(cls, text: str) -> RunPlan:
        kept = json.loads(text)
        return cls(
            kept["file"],
            kept["text"],
            dict(kept["values"]),
            dict(kept["answers"]),
            kept.get("waits", ""),
            dict(kept.get("passed", {})),
            tuple(kept.get("used", ())),
        )

    @property
    def known(self) -> dict[str, str]:
        return {**self.values, **self.answers}


@dataclass(frozen=True)
class Gate:
    """A point of a run that one approval lets it pass, once. `text`: what is approved.

    `mark`: the line by which an approval elsewhere names exactly this. `asked`: whether the run stopped here
    before, with the same mark.
    """

    name: str
    text: str
    mark: str
    asked: bool = False


def gate_of(
    name: str, text: str, plan: RunPlan, steps: Sequence[PlannedStep], where: Mapping[str, str]
) -> Gate:
    """Return a gate, whose mark covers the text of the runbook, its values and answers, and the final words
    of every step. `where`: the project, the runbook, and what else decides what is done."""
    kept = [name, text, plan.text, dict(plan.values), dict(plan.answers), plan_json(steps), dict(where)]
    # Whoever writes the runbook could find two texts with one short digest.
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:40]
    mark = f"orch-runbook: {where['runbook']} {name} {digest}"
    return Gate(name, text, mark, asked=plan.waits == mark)


def plan_json(steps: Sequence[PlannedStep]) -> list[dict[str, Any]]:
    """The steps for programs."""
    return [
        {
            "name": each.step.name,
            "kind": each.step.kind,
            "line": each.step.span.line,
            "heading": each.step.heading,
            "needed": each.needed,
            "when": None if each.step.when is None else str(each.step.when),
            "host": each.host,
            "takes_s": each.step.takes_s or None,
            "do": _action_json(each.do),
            "check": _action_json(each.check),
            "undo": _action_json(each.undo),
            "text": each.step.text or (each.step.question.description if each.step.question else None),
        }
        for each in steps
    ]


def _action_json(action: Action | None) -> dict[str, Any] | None:
    if action is None:
        return None
    what: dict[str, Any] = (
        {"script": action.script, "environment": dict(action.environment)}
        if action.words is None
        else {"words": ["orch", *action.words]}
    )
    return {**what, "missing": list(action.missing)}
