"""A run of a runbook: one change of the project's log, whose journal has a step for each step of the text.

A step is written before it is done and after. Who goes on with a run does no step again that is done. A step
that was in the middle is waited for while its program lives, then asked by its check whether it is done.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from orch.runbooks.model import Runbook, Step
from orch.runbooks.parameters import Parameter
from orch.runbooks.plan import Action, Gate, PlannedStep, RunPlan, gate_of, in_words, planned_step
from orch.runbooks.process import program_of, run
from orch.runner.ledger.changes import Step as Written
from orch.runner.private import private_file, private_folder
from orch.runner.processes import can_be_checked, describe_owner, is_dead_owner, owner_of
from orch.spec.errors import ExitCode, OrchError
from orch.stacks.record.change_log import Journal

CHECK_AGAIN_S = 3


class RunbookError(OrchError):
    """The root of this package's errors."""

    exit_code = ExitCode.RUN_FAILED


class StepFailed(RunbookError):
    """A step ended with an exit code that is none of its own, or its check does not hold."""


class Waits(RunbookError):
    """The run waits for a person: an approval or an answer. Nothing failed."""

    exit_code = ExitCode.CHANGES


@dataclass(frozen=True)
class Consent:
    """An approval. `by`: who gave it; `proof`: what it can be told by, so that it is used once; "" for a word
    that was said to this process."""

    by: str
    proof: str = ""


class Audience(Protocol):
    """Person at the command line, who sees what happens, answers and approves."""

    def begins(self, at: int, step: PlannedStep, *, again: bool) -> None: ...

    def shows(self, output: bytes) -> None: ...

    def tells(self, text: str) -> None: ...

    def answer(self, question: Parameter) -> str | None:
        """The final form of an answer; None where there is nobody to ask."""
        ...

    def approval(self, gate: Gate) -> Consent | None:
        """Return who approved what the gate says; None when nobody did. Raises OrchError for a no."""
        ...


class Refused(RunbookError):
    """Somebody said no."""

    exit_code = ExitCode.POLICY


@dataclass
class Run:
    """A run that goes on. `logs`: a folder for the output of steps, `folder`: where they are done;
    `more_words` completes commands of orch, `environment` is what shells on this machine have besides."""

    runbook: Runbook
    plan: RunPlan
    journal: Journal
    audience: Audience
    folder: Path
    logs: Path
    more_words: Callable[[tuple[str, ...]], tuple[str, ...]] = tuple
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def number(self) -> int:
        return self.journal.change.id

    def go(self) -> None:
        """Do all steps that are not done. Raises StepFailed, Waits, Refused, LeaseLost."""
        private_folder(self.logs)
        self._take_answers()
        for at, step in enumerate(self.runbook.steps, 1):
            written = {each.name: each for each in self.journal.steps}.get(step.name)
            planned = self._planned(step)
            status = None if written is None else written.status
            if status == "done" or (status == "skipped" and not planned.needed):
                continue
            self._step(at, planned, written)

    def _take_answers(self) -> None:
        """Write the answers that came with this call. An approval that was given for other answers is asked
        for again."""
        written = {each.name: each for each in self.journal.steps}
        changed = ""
        for step in self.runbook.steps:
            row = written.get(step.name)
            if row is None or row.status != "done":
                continue
            answer = self.plan.answers.get(step.name) if step.kind == "question" else None
            if answer is not None and answer != row.message:
                changed = step.name
                self.journal.end_step(row.host, step.name, "done", answer)
                self.audience.tells(f"{step.name} is {answer} now, and was {row.message}")
            elif step.kind == "approval":
                before = self.plan.passed.get(step.name, {})
                other = next(
                    (each for each in before if before[each] != self.plan.answers.get(each)), changed
                )
                if other:
                    self.journal.end_step(row.host, step.name, "undone", f"{other} was answered anew")
        if self.plan.as_json() != self.journal.change.plan:
            self.journal.set_plan(self.plan.as_json())

    def _keep(self, plan: RunPlan) -> None:
        if plan != self.plan:
            self.plan = plan
            self.journal.set_plan(plan.as_json())

    def _planned(self, step: Step) -> PlannedStep:
        return in_words(planned_step(step, self.plan.known), self.more_words)

    def next_gate(self) -> Gate | None:
        """Return the next gate of the run; None when there is none, or a question must be answered before."""
        ended = {each.name for each in self.journal.steps if each.status in ("done", "skipped")}
        for step in self.runbook.steps:
            needed = self._planned(step).needed
            if step.name in ended or needed is False:
                continue
            if needed is None or (step.kind == "question" and step.name not in self.plan.answers):
                return None
            if step.kind == "approval":
                return self._gate(step.name, step.text)
        return None

    def _gate(self, name: str, text: str) -> Gate:
        steps = [self._planned(each) for each in self.runbook.steps]
        project = self.journal.change.project
        where = {**self.environment, "project": project, "runbook": self.runbook.name}
        return gate_of(name, text, self.plan, steps, where)

    def _consent(self, gate: Gate) -> Consent | None:
        """Return the approval that lets the run pass a gate, written down so that it passes no other."""
        self._keep(replace(self.plan, waits=gate.mark))
        consent = self.audience.approval(gate)
        if consent is not None:
            passed = {**self.plan.passed, gate.name: self.plan.answers}
            used = (*self.plan.used, consent.proof) if consent.proof else self.plan.used
            self._keep(replace(self.plan, waits="", passed=passed, used=used))
        return consent

    def _step(self, at: int, planned: PlannedStep, written: Written | None) -> None:
        step = planned.step
        begun = written is not None and written.status in ("running", "failed")
        self.audience.begins(at, planned, again=begun and step.commands is not None)
        if not planned.needed:
            self.journal.begin_step(planned.host or "", step.name)
            self.journal.end_step(planned.host or "", step.name, "skipped", f"only where {step.when}")
            self.audience.tells(f"left out: it is only for where {step.when}")
            return
        if begun and written is not None and self._is_done_already(planned, written):
            return
        host = planned.host or ""
        self.journal.begin_step(host, step.name)
        if step.kind == "question":
            message = self._ask(step)
        elif step.kind == "approval":
            message = self._approve(step)
        else:
            message = self._do(planned)
        self.journal.end_step(host, step.name, "done", message)

    # Steps for people

    def _ask(self, step: Step) -> str:
        question = step.question
        assert question is not None
        answer = self.plan.answers.get(question.name) or self.audience.answer(question)
        if answer is None:
            raise Waits(
                f"runbook {self.runbook.name} waits for an answer: {question.description}",
                detail=f"step {step.name} in {step.span}; expected is {question.expected}",
                hint=f"`orch runbook resume {self.number} {question.name}=VALUE` goes on",
                code="ORCH418",
            )
        self._keep(replace(self.plan, answers={**self.plan.answers, question.name: answer}))
        return answer

    def _approve(self, step: Step) -> str:
        gate = self._gate(step.name, step.text)
        consent = self._consent(gate)
        if consent is None:
            raise Waits(
                f"runbook {self.runbook.name} waits for approval: {step.text}",
                detail=f"step {step.name} in {step.span}\nits mark for a pull request: {gate.mark}",
                hint=f"`orch runbook resume {self.number} --approve` goes on",
                code="ORCH418",
            )
        return f"approved by {consent.by}"

    # Steps for programs

    def _is_done_already(self, planned: PlannedStep, written: Written) -> bool:
        """Return True if a step that was started before is done by now. Waits for a process that still runs
        it."""
        step, host = planned.step, planned.host or ""
        if step.kind not in ("orch", "shell"):
            return False
        owner = written.message if written.status == "running" else None
        if owner and can_be_checked(owner) and not is_dead_owner(owner):
            self.audience.tells("what was begun is still at work: waiting for its end")
            while not is_dead_owner(owner):
                time.sleep(1)
        if planned.check is None or not self._check(planned):
            if owner and not can_be_checked(owner):
                self._require_ended(step, owner)
            return False
        self.journal.end_step(host, step.name, "done", "begun before; its check says that it is done")
        self.audience.tells("its check says that it is done")
        return True

    def _require_ended(self, step: Step, owner: str) -> None:
        """Raises Waits unless somebody says that a process of another machine has ended."""
        process = describe_owner(owner)
        what = f"{process}, which did step {step.name}, has ended: that machine cannot be seen from here."
        gate = self._gate(f"{step.name}/ended", what)
        if self._consent(gate) is None:
            raise Waits(
                f"nobody knows whether step {step.name} is still at work",
                where=str(step.span),
                detail=f"{process} began it, and cannot be seen from here\n"
                f"the mark for a pull request: {gate.mark}",
                hint=f"look there; once it has ended, `orch runbook resume {self.number} --approve` goes on",
                code="ORCH418",
            )

    def _do(self, planned: PlannedStep) -> str | None:
        step = planned.step
        assert planned.do is not None
        missing = [name for each in (planned.do, planned.check) if each is not None for name in each.missing]
        if missing:
            self._fail(planned, f"nobody was asked for {missing[0]}: its question was left out")
        code = self._run(planned, planned.do, "do", step.timeout_s)
        if step.ok is not None and code not in step.ok:
            self._fail(planned, f"it ended with exit code {code}")
        if planned.check is not None:
            end = time.monotonic() + planned.check.within_s
            while not self._check(planned):
                if time.monotonic() >= end:
                    within = f" within {planned.check.within_s} s" if planned.check.within_s else ""
                    self._fail(planned, f"its check does not hold{within}")
                time.sleep(CHECK_AGAIN_S)
        return f"exit code {code}" if code else None

    def _check(self, planned: PlannedStep) -> bool:
        assert planned.check is not None
        return self._run(planned, planned.check, "check", planned.step.timeout_s) == 0

    def _fail(self, planned: PlannedStep, why: str) -> None:
        step = planned.step
        self.journal.end_step(planned.host or "", step.name, "failed", why)
        raise StepFailed(
            f"step {step.name} failed: {why}",
            where=str(step.span),
            detail=f"{shown(planned)}\n{self._done()}; the output is in {self.log_of(step)}",
            hint=f"mend it, then `orch runbook resume {self.number}` goes on from here",
            code="ORCH417",
        )

    def _done(self) -> str:
        done = [each.name for each in self.journal.steps if each.status == "done"]
        return f"done: {', '.join(done)}" if done else "no step was done before it"

    def log_of(self, step: Step) -> Path:
        return self.logs / f"{step.name}.log"

    def _run(self, planned: PlannedStep, action: Action, what: str, timeout_s: int | None) -> int:
        program = program_of(
            planned, action, self.folder, self.more_words, timeout_s, environment=self.environment
        )
        log = self.log_of(planned.step)
        with private_file(log).open("a") as file:
            file.write(f"$ {what}: {shown(planned) if what == 'do' else what}\n")
        host = planned.host or ""

        def began(pid: int) -> None:
            self.journal.note_step(host, planned.step.name, owner_of(pid))

        try:
            return run(program, log, began if what == "do" else _nobody, self.audience.shows)
        except OSError as error:
            self._fail(planned, f"it cannot be started: {error.strerror or error}")
            raise

    # Back

    def can_undo(self) -> tuple[str, ...]:
        """The steps that can be taken back, the last first: those that were begun and have an undo."""
        begun = {each.name for each in self.journal.steps if each.status in ("done", "failed", "running")}
        return tuple(each.name for each in reversed(self.runbook.steps) if each.name in begun and each.undo)

    def undo(self) -> tuple[str, ...]:
        """Take back what was done, the last step first, and what was undone. Raises StepFailed."""
        undone: list[str] = []
        by_name = {each.name: each for each in self.runbook.steps}
        for name in self.can_undo():
            planned = self._planned(by_name[name])
            assert planned.undo is not None
            self.audience.tells(f"undo of step {name}")
            code = self._run(planned, planned.undo, "undo", planned.step.timeout_s)
            if code:
                raise StepFailed(
                    f"the undo of step {name} failed: it ended with exit code {code}",
                    where=str(planned.step.span),
                    detail=f"undone before it: {', '.join(undone) or 'nothing'}; the output is in "
                    f"{self.log_of(planned.step)}",
                    hint=f"undo it by hand; `orch runbook status {self.number}` shows the steps",
                    code="ORCH417",
                )
            self.journal.end_step(planned.host or "", name, "undone")
            undone.append(name)
        return tuple(undone)


def shown(planned: PlannedStep) -> str:
    """Return the action of a step as it would be typed."""
    action = planned.do
    if action is None:
        return planned.step.text
    if action.words is not None:
        return shlex.join(["orch", *action.words])
    lines = [f"{name}={shlex.quote(value)}" for name, value in action.environment]
    return "\n".join([*lines, action.script.rstrip()])


def _nobody(pid: int) -> None:
    """A check leaves no mark: it changes nothing."""
