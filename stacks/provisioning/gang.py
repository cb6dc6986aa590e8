"""One fleet in the engine: its steps carried out, again where a cloud asks for it, and taken back."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from orch.components.deployment import Deployment, Queue
from orch.components.request import CloudAnswer
from orch.spec.grammar.values import render_duration
from orch.stacks.errors import EngineFailed, Interrupted, StackError
from orch.stacks.program import program
from orch.stacks.provisioning.shared_networks import bring_shared, release, shared_by
from orch.stacks.pulumi.changes import name_of
from orch.stacks.pulumi.operation import Doing, EngineCall, Listener, Note, engine
from orch.stacks.pulumi.process import Event
from orch.stacks.pulumi.recovery import clear_left, left_by
from orch.stacks.request import FleetRequest
from orch.stacks.state import StackState

# How often a queue is asked: less often the longer it lasts.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0

# Pauses before the tries after the first. The providers have repeated single calls for minutes by then.
PAUSES_S = (2, 5, 15, 30, 60)

T = TypeVar("T")


@dataclass(frozen=True)
class Gang:
    """One fleet that is brought up.

    `before`: the nodes it has, each with the resource that made it. `read`: what an error of the cloud means.
    """

    stack: StackState
    request: FleetRequest
    listener: Listener
    before: Mapping[str, str] = field(default_factory=dict[str, str])
    read: Callable[[str], CloudAnswer | None] = lambda text: None

    def persist(
        self, compiled: Deployment, earlier: Sequence[Event] = (), *, looked: bool = False
    ) -> tuple[EngineCall, EngineFailed | None]:
        """One plan carried out, as often as the cloud asks to repeat it, from what is there.

        `looked`: the engine has just seen that all is as recorded. The last call with the events of all,
        `earlier` ones first, and what failed beyond single nodes.
        """
        events = list(earlier)

        def between(outcome: tuple[EngineCall, EngineFailed | None]) -> None:
            nonlocal events
            call, _ = outcome
            events = besides(call.events, call.errors)
            # What was refused half way is made, and not always recorded: it would be made twice.
            clear_left(self.stack, self.listener)

        return repeatedly(
            self.request.name,
            lambda: self.bring(compiled, events, looked=looked and not events),
            lambda outcome: self.answer(*outcome),
            self.listener,
            between=between,
        )

    def answer(self, call: EngineCall, failed: EngineFailed | None) -> CloudAnswer | None:
        """What the errors of a call come to."""
        if failed is not None and failed.answer is not None:
            return failed.answer
        return self._read(call.errors)

    def _read(self, errors: Mapping[str, str]) -> CloudAnswer | None:
        """One that stops outweighs the others, and one that leads elsewhere those that ask to come back."""
        answers = [self.read(text) for text in errors.values() if text]
        known = [answer for answer in answers if answer is not None]
        return min(known, key=lambda each: 2 if each.again else int(each.elsewhere), default=None)

    def bring(
        self, compiled: Deployment, earlier: Sequence[Event] = (), *, looked: bool = False
    ) -> tuple[EngineCall, EngineFailed | None]:
        """One plan carried out, in its steps: the last call with the events of all, `earlier` ones first, and
        what failed beyond single nodes."""
        call = EngineCall(self.listener, planning=False, events=list(earlier))
        try:
            if compiled.shared is not None:
                bring_shared(self.stack, compiled.shared, call)
            for step in (*compiled.before, compiled):
                call = EngineCall(
                    self.listener,
                    planning=False,
                    apart=step.isolated,
                    nodes=len(step.nodes),
                    events=call.events,
                )
                engine(self.stack, words(step, looked=looked), call, program(step))
                looked = False
                if step.queue is not None:
                    self._wait(step.queue)
                    self.listener(Doing("making the nodes that the queue gave"))
        except EngineFailed as failed:
            return call, failed
        return call, None

    def _wait(self, queue: Queue) -> None:
        """Wait for nodes that are given later. Raises EngineFailed when they are not, Interrupted."""
        self.listener(Note(queue.words, lasts=True))
        ends, pause = time.monotonic() + queue.patience_s, FIRST_PAUSE_S
        answer: CloudAnswer | None = None
        try:
            while answer is None:
                found = queue.ask()
                if found is True:
                    return
                answer = found or None
                left = ends - time.monotonic()
                if answer is None and left <= 0:
                    waited = render_duration(int(queue.patience_s))
                    answer = CloudAnswer(True, f"still in the queue after {waited}", "ORCH325")
                elif answer is None:
                    time.sleep(min(pause, left))
                    pause = min(2 * pause, LONGEST_PAUSE_S)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped while the fleet {self.request.name} waits in a queue",
                detail="its place in the queue is kept",
                hint="run the same command again to go on, or `orch down` to remove it",
            ) from None
        name = self.request.name
        raise EngineFailed(
            f"the fleet {name} was not given its nodes", errors={}, answer=answer, code="ORCH325"
        )

    def remove(self, also: frozenset[str] = frozenset()) -> None:
        """Take all of it away, and what it shares if no other fleet does; what could not be is named.

        Raises StackError."""
        call = EngineCall(self.listener, planning=False)
        recorded = self.stack.recorded
        there, stands_on = left_by(recorded, self.stack.project), shared_by(recorded)

        def destroy() -> EngineFailed | None:
            run = EngineCall(self.listener, planning=False)
            try:
                engine(self.stack, ["destroy", "--yes", "--skip-preview"], run)
            except EngineFailed as failed:
                return failed
            return None

        try:
            failed = repeatedly(
                self.request.name,
                destroy,
                lambda failed: self._read(failed.errors) if failed else None,
                self.listener,
            )
            if failed is not None:
                raise failed
            # What was refused half way is made, and not always recorded.
            clear_left(self.stack, self.listener, there)
            release(self.stack, stands_on | also, call)
        except EngineFailed as failed:
            raise self._left(failed) from failed

    def keep(self, compiled: Deployment, names: Collection[str]) -> Deployment:
        """Have these nodes of a plan alone, and record it so. Raises StackError."""
        kept = compiled.only(names, self.there(compiled)) if compiled.only else compiled
        _, failed = self.persist(replace(kept, shared=None))
        if failed is not None:
            raise self._left(failed) from failed
        clear_left(self.stack, self.listener)
        return kept

    def there(self, compiled: Deployment) -> tuple[str, ...]:
        """Nodes, of a plan and of those there were, that are recorded."""
        found = {name_of(each["urn"]) for each in self.stack.resources if each.get("id")}
        makers = {name: compiled.makers.get(name, name) for name in compiled.nodes} | dict(self.before)
        return tuple(sorted(name for name, maker in makers.items() if maker in found))

    def _left(self, failed: EngineFailed) -> StackError:
        name = self.request.name
        left = ", ".join(_recorded(self.stack, {*self.before, *self.before.values()}))
        return StackError(
            f"rollback of fleet {name} is incomplete; these resources still exist: {left}",
            detail=failed.detail,
            hint=f"`orch down {name}` removes the rest; look at the cloud's console if it does not",
            code="ORCH326",
        )


def repeatedly(
    fleet: str,
    attempt: Callable[[], T],
    answer: Callable[[T], CloudAnswer | None],
    listener: Listener,
    *,
    between: Callable[[T], None] = lambda _: None,
) -> T:
    """The outcome of the first attempt that the cloud does not ask to repeat, else of the last one.

    `answer`: what the cloud's errors in an outcome come to. `between` readies the next attempt. Raises what
    these raise, and Interrupted.
    """
    for pause in PAUSES_S:
        done = attempt()
        told = answer(done)
        if told is None or not told.again:
            return done
        listener(Note(f"once more in {render_duration(pause)}: {told.reason}", lasts=True))
        try:
            time.sleep(pause)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped while changing the fleet {fleet}",
                detail="what was made is recorded",
                hint="run the same command again to go on, or `orch down` to remove it",
            ) from None
        between(done)
        listener(Doing(f"trying once more: {told.reason}"))
    return attempt()


def words(compiled: Deployment, *, looked: bool = False) -> list[str]:
    """The engine's arguments for bringing a plan up. One that has `looked` need not look again."""
    found = ["up", "--yes", "--skip-preview", *parallel(compiled)]
    found += ["--refresh=false"] if looked else []
    return [*found, "--continue-on-error"] if compiled.isolated else found


def parallel(compiled: Deployment) -> list[str]:
    """The engine's argument for how much of a plan is worked on at once."""
    return ["--parallel", str(compiled.parallel)] if compiled.parallel else []


def besides(events: Sequence[Event], urns: Collection[str]) -> list[Event]:
    """Events of all but these resources."""
    return [event for event in events if _urn(event) not in urns]


def _urn(event: Mapping[str, object]) -> str | None:
    for key in ("resourcePreEvent", "resOutputsEvent", "resOpFailedEvent"):
        data = event.get(key)
        if isinstance(data, dict):
            return str(data["metadata"]["urn"])
    return None


def _recorded(stack: StackState, before: Collection[str]) -> Iterator[str]:
    """Resources of the cloud that are recorded still, each with its id."""
    for resource in stack.resources:
        if resource.get("custom") and resource.get("id") and not resource["type"].startswith("pulumi:"):
            name = name_of(resource["urn"])
            if name not in before:
                yield f"{name} ({resource['id']})"
