"""One fleet in the engine: apply its steps, retry where a cloud asks for it, roll back."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from orch.components.deployment import Deployment, Queue
from orch.components.file_systems import words_of
from orch.components.request import CloudAnswer, RecordedFileSystem
from orch.spec.grammar.values import render_duration
from orch.stacks.engine.process import Event, pause
from orch.stacks.errors import EngineFailed, Interrupted, StackError
from orch.stacks.events.notation import name_of, type_of
from orch.stacks.plans.guard import Guard
from orch.stacks.plans.program import program
from orch.stacks.plans.request import FleetRequest
from orch.stacks.provisioning.kept_data import unprotect
from orch.stacks.provisioning.shared_networks import bring_shared, release, shared_by
from orch.stacks.pulumi.leasing import StackFence
from orch.stacks.pulumi.operation import EngineCall, engine
from orch.stacks.pulumi.orphans import snapshot_of
from orch.stacks.pulumi.progress import Activity, Listener, Note
from orch.stacks.pulumi.recovery import delete_unrecorded
from orch.stacks.stack.state import StackState

# Pauses between requests to a queue, longer the longer it lasts.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0

# Pauses before each retry. By then the providers have repeated single calls for minutes.
PAUSES_S = (2, 5, 15, 30, 60)

_TEMPLATES = ("LaunchTemplate", "InstanceTemplate")
"""How the types of resources are called that nodes are launched from, in any cloud."""

T = TypeVar("T")


@dataclass(frozen=True)
class Gang:
    """One fleet that is brought up.

    `before`: its existing nodes, each with the resource that made it. `classify`: what a cloud's error means.
    `data`: urns of the file systems that it had before. `guard` holds it to an approved plan;
    `fence` keeps it from what another owner has leased meanwhile, and from another account. `began`: when, in
    seconds since the epoch.
    """

    stack: StackState
    request: FleetRequest
    listener: Listener
    before: Mapping[str, str] = field(default_factory=dict[str, str])
    classify: Callable[[str], CloudAnswer | None] = lambda text: None
    data: frozenset[str] = frozenset()
    guard: Guard | None = None
    fence: StackFence | None = None
    began: float = field(default_factory=time.time)

    @property
    def kept_data(self) -> tuple[RecordedFileSystem, ...]:
        """Its file systems that were there before and are recorded still: nothing here deletes them."""
        return tuple(each for each in self.stack.file_systems if each.urn in self.data)

    @property
    def stays(self) -> bool:
        """Return True if it had nodes or data before, so that it remains where it is."""
        return bool(self.before) or bool(self.kept_data)

    def apply_with_retries(
        self, compiled: Deployment, earlier: Sequence[Event] = (), *, skip_refresh: bool = False
    ) -> tuple[EngineCall, EngineFailed | None]:
        """Apply a plan, and retry from what exists as long as the cloud asks for it.

        `skip_refresh`: the engine has just found no drift. Returns the last call, with the events of all
        calls (`earlier` ones first), and the failure unless only single nodes failed.
        """
        events = list(earlier)

        def between(outcome: tuple[EngineCall, EngineFailed | None]) -> None:
            nonlocal events
            call, _ = outcome
            events = events_except(call.events, call.errors)
            # A request refused half way may leave unrecorded resources: a retry would make them twice.
            delete_unrecorded(self.stack, self.began, self.listener)

        return retry(
            self.request.name,
            lambda: self.apply(compiled, events, skip_refresh=skip_refresh and not events),
            lambda outcome: self.answer(*outcome),
            self.listener,
            between=between,
        )

    def answer(self, call: EngineCall, failed: EngineFailed | None) -> CloudAnswer | None:
        """Return the joint meaning of the errors of a call; None if the cloud's backend knows none of
        them."""
        if failed is not None and failed.answer is not None:
            return failed.answer
        return self._decisive_answer(call.errors)

    def _decisive_answer(self, errors: Mapping[str, str]) -> CloudAnswer | None:
        """An error that stops comes first, then one that leads elsewhere, then one worth a retry."""
        answers = [self.classify(text) for text in errors.values() if text]
        classified = [answer for answer in answers if answer is not None]
        return min(classified, key=lambda each: 2 if each.again else int(each.elsewhere), default=None)

    def apply(
        self, compiled: Deployment, earlier: Sequence[Event] = (), *, skip_refresh: bool = False
    ) -> tuple[EngineCall, EngineFailed | None]:
        """Apply a plan once, step by step. Returns the last call, with the events of all calls (`earlier`
        ones first), and the failure unless only single nodes failed."""
        call = EngineCall(self.listener, planning=False, events=list(earlier))
        if self.guard is not None:
            self.guard.begin()
        makes = {compiled.pins["backend"]} if "backend" in compiled.pins else set[str]()
        try:
            if compiled.shared is not None:
                bring_shared(self.stack, compiled.shared, call, makes)
            for step in (*compiled.before, compiled):
                call = EngineCall(self.listener, planning=False, isolated=step.isolated, events=call.events)
                # A refresh takes no target that the stack does not have yet.
                new = not are_recorded(self.stack, self.request.only)
                words, code = up_arguments(step, skip_refresh=skip_refresh or new), program(step)
                words += targets(self.stack, self.request.only)
                if self.guard is not None:
                    words, code = self.guard.guarded(words, code)
                if self.fence is not None:
                    code = self.fence.guarded(code, makes, compiled.account)
                if self.request.only and (made_of := templates(self.stack)):
                    # First and alone: with what stands on them, all nodes would be targets.
                    named = [word for urn in made_of for word in ("--target", urn)]
                    engine(self.stack, [*up_arguments(step, skip_refresh=True), *named], call, code)
                engine(self.stack, words, call, code)
                skip_refresh = False
                if step.queue is not None:
                    self._wait(step.queue)
                    self.listener(Activity("making the nodes that the queue gave"))
        except EngineFailed as failed:
            if self.fence is not None and (refusal := self.fence.refusal(failed)) is not failed:
                raise refusal from failed
            if self.guard is not None and (refusal := self.guard.refusal(failed)) is not failed:
                raise refusal from failed
            return call, failed
        return call, None

    def _wait(self, queue: Queue) -> None:
        """Wait for a queue to give its nodes. Raises EngineFailed when it does not, Interrupted."""
        self.listener(Note(queue.words, lasts=True))
        ends, pause_s = time.monotonic() + queue.patience_s, FIRST_PAUSE_S
        answer: CloudAnswer | None = None
        try:
            while answer is None:
                status = queue.ask()
                if status is True:
                    return
                answer = status or None
                remaining_s = ends - time.monotonic()
                if answer is None and remaining_s <= 0:
                    waited = render_duration(int(queue.patience_s))
                    answer = CloudAnswer(True, f"still in the queue after {waited}", "ORCH325")
                elif answer is None:
                    pause(min(pause_s, remaining_s))
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped while the fleet {self.request.name} waits in a queue",
                detail="its place in the queue is kept",
                hint="run the same command again to continue, or `orch down` to remove the fleet",
            ) from None
        name = self.request.name
        raise EngineFailed(
            f"the fleet {name} was not given its nodes", errors={}, answer=answer, code="ORCH325"
        )

    def remove(self, also: frozenset[str] = frozenset()) -> None:
        """Remove the whole fleet, and the shared networks that no other fleet uses. `also`: further shared
        stacks.

        Raises StackError naming what remains, and before anything is removed where the fleet has file systems
        that were there before."""
        if kept := self.kept_data:
            raise StackError(
                f"the fleet {self.request.name} is not removed: it has data",
                detail="\n".join(map(words_of, kept)),
                hint=f"`orch down {self.request.name}` deletes the fleet with its data",
                code="ORCH275",
            )
        # Made by this very call for nodes that did not come.
        unprotect(self.stack, [each.urn for each in self.stack.file_systems])
        call = EngineCall(self.listener, planning=False)
        recorded = self.stack.recorded
        snapshot, shared = snapshot_of(recorded, self.stack.project), shared_by(recorded)

        def destroy() -> EngineFailed | None:
            run = EngineCall(self.listener, planning=False)
            try:
                engine(self.stack, ["destroy", "--yes", "--skip-preview"], run)
            except EngineFailed as failed:
                return failed
            return None

        try:
            failed = retry(
                self.request.name,
                destroy,
                lambda failed: self._decisive_answer(failed.errors) if failed else None,
                self.listener,
            )
            if failed is not None:
                raise failed
            # A request refused half way may leave unrecorded resources.
            delete_unrecorded(self.stack, self.began, self.listener, snapshot)
            release(self.stack, shared | also, call)
        except EngineFailed as failed:
            raise self._rollback_incomplete(failed) from failed

    def keep_only(self, compiled: Deployment, names: Collection[str]) -> Deployment:
        """Apply a plan with these nodes only, and return it. Raises StackError."""
        restricted = compiled.only(names, self.existing(compiled)) if compiled.only else compiled
        restricted = replace(restricted, health=compiled.health, spares=compiled.spares)
        _, failed = self.apply_with_retries(replace(restricted, shared=None))
        if failed is not None:
            raise self._rollback_incomplete(failed) from failed
        delete_unrecorded(self.stack, self.began, self.listener)
        return restricted

    def existing(self, compiled: Deployment) -> tuple[str, ...]:
        """Nodes, of a plan and of the fleet before it, that have a recorded resource."""
        recorded = {name_of(each["urn"]) for each in self.stack.resources if each.get("id")}
        makers = {name: compiled.makers.get(name, name) for name in compiled.nodes} | dict(self.before)
        return tuple(sorted(name for name, maker in makers.items() if maker in recorded))

    def _rollback_incomplete(self, failed: EngineFailed) -> StackError:
        name = self.request.name
        remaining = ", ".join(_remaining(self.stack, {*self.before, *self.before.values()}))
        return StackError(
            f"rollback of fleet {name} is incomplete; these resources still exist: {remaining}",
            detail=failed.detail,
            hint=f"`orch down {name}` removes the rest; look at the cloud's console if it does not",
            code="ORCH326",
        )


def retry(
    fleet: str,
    attempt: Callable[[], T],
    answer: Callable[[T], CloudAnswer | None],
    listener: Listener,
    *,
    between: Callable[[T], None] = lambda _: None,
) -> T:
    """The outcome of the first attempt that needs no retry, else of the last one.

    `answer`: what the cloud's errors in an outcome mean. `between` prepares the next attempt. Raises what
    these raise, and Interrupted.
    """
    for seconds in PAUSES_S:
        outcome = attempt()
        error = answer(outcome)
        if error is None or not error.again:
            return outcome
        listener(Note(f"once more in {render_duration(seconds)}: {error.reason}", lasts=True))
        try:
            pause(seconds)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped while changing the fleet {fleet}",
                detail="created resources are recorded",
                hint="run the same command again to continue, or `orch down` to remove the fleet",
            ) from None
        between(outcome)
        listener(Activity(f"trying once more: {error.reason}"))
    return attempt()


def up_arguments(compiled: Deployment, *, skip_refresh: bool = False) -> list[str]:
    """The engine's arguments to apply a plan. `skip_refresh`: it has just found no drift."""
    arguments = ["up", "--yes", "--skip-preview", *parallel(compiled)]
    arguments += ["--refresh=false"] if skip_refresh else []
    return [*arguments, "--continue-on-error"] if compiled.isolated else arguments


def targets(stack: StackState, nodes: Collection[str]) -> list[str]:
    """The engine's arguments to change these nodes alone, with what stands on them; () for all there is.

    Raises StackError where no resource of the stack tells how those of its nodes are named.
    """
    if not nodes:
        return []
    makers = stack.makers
    known = {name_of(each["urn"]): str(each["urn"]) for each in stack.resources}
    # One that a call which was killed has deleted is named as its neighbours are.
    pattern = next((known[maker] for maker in makers.values() if maker in known), None)
    words: list[str] = []
    for maker in dict.fromkeys(makers.get(node, node) for node in nodes):
        urn = known.get(maker) or (pattern and f"{pattern.rpartition('::')[0]}::{maker}")
        if urn is None:
            raise StackError(
                f"nodes of the fleet {stack.name} cannot be changed one by one: none is recorded",
                hint="`orch up` of its file makes those that are missing",
                code="ORCH355",
            )
        words += ["--target", urn]
    return [*words, "--target-dependents"]


def templates(stack: StackState) -> list[str]:
    """The urns of what new nodes of a stack are launched from; none where a cloud has no such thing. They
    change no node that is there."""
    return [
        str(each["urn"])
        for each in stack.resources
        if type_of(each["urn"]).rpartition(":")[2] in _TEMPLATES and not each.get("delete")
    ]


def are_recorded(stack: StackState, nodes: Collection[str]) -> bool:
    """Return True if a stack has the resources that create these nodes."""
    known, makers = {name_of(each["urn"]) for each in stack.resources}, stack.makers
    return all(makers.get(node, node) in known for node in nodes)


def parallel(compiled: Deployment) -> list[str]:
    """The engine's arguments for the number of resources to work on at once."""
    return ["--parallel", str(compiled.parallel)] if compiled.parallel else []


def events_except(events: Sequence[Event], urns: Collection[str]) -> list[Event]:
    """Events of all resources but these."""
    return [event for event in events if _urn(event) not in urns]


def _urn(event: Mapping[str, object]) -> str | None:
    for key in ("resourcePreEvent", "resOutputsEvent", "resOpFailedEvent"):
        data = event.get(key)
        if isinstance(data, dict):
            return str(data["metadata"]["urn"])
    return None


def _remaining(stack: StackState, before: Collection[str]) -> Iterator[str]:
    """Cloud resources that are still recorded, each with its id; without nodes `before`."""
    for resource in stack.resources:
        if resource.get("custom") and resource.get("id") and not resource["type"].startswith("pulumi:"):
            name = name_of(resource["urn"])
            if name not in before:
                yield f"{name} ({resource['id']})"
