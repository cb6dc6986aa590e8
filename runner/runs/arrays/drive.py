"""Drives all members of an array from one process: a look at them again and again, until all have ended.

It holds the leases of all members that nobody else acts on, so that who follows one of them, or the line of
its fleet, knows that it is driven. Who takes over when it is killed goes on by the ledger, as for any run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from queue import SimpleQueue

from orch.runner.errors import LedgerUnusable, RunFailed, RunnerError, error_text
from orch.runner.events import Event, Notice, Processor
from orch.runner.launch.launch_record import LaunchRecord
from orch.runner.ledger.arrays import Arrays, Member
from orch.runner.ledger.history.metric_samples import EVERY_S
from orch.runner.ledger.lease import LeaseLost, Renewal
from orch.runner.ledger.patience import LEDGER_PAUSE_S, LedgerPatience
from orch.runner.ledger.records import ArrayKey, Lease, RunRow
from orch.runner.ledger.run_folder import array_folders, find_folder
from orch.runner.metrics.sampling import keep_sample
from orch.runner.plan.run_names import RunName, as_argument
from orch.runner.processes import process_owner
from orch.runner.runs.context import RunnerContext
from orch.runner.runs.driver import USE_FILES_EVERY_S, Driver
from orch.runner.runs.seats.recent_statuses import RecentStatuses
from orch.runner.upload.snapshot import Snapshots
from orch.spec.errors import OrchError

PAUSE_S = 1.0
# A look reads all members.
MEMBERS_PER_S = 2000
# A start may wait for an image for minutes: so many members are advanced at once.
AT_ONCE = 16


@dataclass(frozen=True)
class Step:
    """What was done for a member: its row before and after, and the error that kept it from more."""

    before: RunRow
    after: RunRow
    error: RunnerError | None = None


class ArrayDriver:
    """Drives the members of an array, but for those that others act on. `only`: these alone, by number.

    `on_look` gets all members as each look finds them.
    """

    def __init__(
        self,
        runner: RunnerContext,
        array: ArrayKey,
        *,
        only: Collection[int] | None = None,
        on_look: Callable[[Sequence[Member]], None] = lambda members: None,
    ) -> None:
        self._runner = replace(
            runner, processor=_Warnings(runner.processor), recent_statuses=RecentStatuses(), early_look=None
        )
        self._array, self._only, self._on_look = array, only, on_look
        self._owner = process_owner()
        self._leases: dict[int, Lease] = {}
        # Members that are being advanced, or are about to be; each comes to its turn, however many there are.
        self._queued: set[int] = set()
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._beginning: threading.Thread | None = None
        self._at: int | None = None  # the member that is given nodes
        self._wake, self._leaving = threading.Event(), threading.Event()
        self._running: tuple[int, ...] = ()
        self._used_at = float("-inf")

    def run(self, stop: threading.Event | None = None) -> tuple[Member, ...]:
        """Drive until these have ended, or `stop` is set and what is under way is done.

        KeyboardInterrupt passes through and leaves the members as they are. Raises LedgerUnusable when the
        ledger stays away, RunFailed where members can begin on another machine alone.
        """
        patience = LedgerPatience(self._tell)
        threading.Thread(target=self._keep_samples, name="orch-samples", daemon=True).start()
        try:
            with self._renewal():
                while stop is None or not stop.is_set():
                    try:
                        members = self._look()
                        self._on_look(members)
                        patience.found()
                    except LedgerUnusable as error:
                        patience.bear(error)
                        time.sleep(LEDGER_PAUSE_S)
                        continue
                    if not any(each.active for each in members if self._is_chosen(each)):
                        break
                    self._wake.wait(max(PAUSE_S, len(members) / MEMBERS_PER_S))
                    self._wake.clear()
                self._leave()
                for thread in (*self._workers, *filter(None, [self._beginning])):
                    thread.join()
        finally:
            self._leave()
            self._arrays.release(self._array, self._owner)
        forget_ended(self._runner)
        return self._arrays.members(self._array)

    def pass_once(self) -> tuple[Step, ...]:
        """One look at the members: what may end ends, what may begin begins; the leases are given back."""
        done: list[Step] = []
        try:
            with self._renewal(), ThreadPoolExecutor(AT_ONCE, "orch-array") as pool:

                def advance(numbers: Iterable[int]) -> None:
                    mine = [number for number in numbers if number in self._leases]
                    done.extend(filter(None, pool.map(self._advance, mine)))

                advance([each.id for each in to_be_seen_to(self._take())])
                if self._begins_here:
                    turn = [each.id for each in turns(self._arrays.members(self._array)).now]
                    advance(turn if self._has_pods else [*self._begin(turn, done.append)])
        finally:
            self._arrays.release(self._array, self._owner)
        before = {each.before.id: each.before for each in reversed(done)}
        last = {each.after.id: each for each in done}
        return tuple(replace(last[number], before=before[number]) for number in sorted(last))

    def _leave(self) -> None:
        """Begin nothing more; what is under way goes on."""
        self._leaving.set()
        for _ in self._workers:
            self._queue.put(None)

    @property
    def _arrays(self) -> Arrays:
        return self._runner.ledger.arrays

    @property
    def _begins_here(self) -> bool:
        """Whether this machine has what members are begun from: the one that submitted them has."""
        name = RunName.from_ledger(self._array.name)
        folder = find_folder(self._runner.dot, name.member(0), 0, self._array)
        return folder.has_launch

    @cached_property
    def _has_pods(self) -> bool:
        """Whether members ask a cluster for pods, each for itself."""
        name = RunName.from_ledger(self._array.name)
        with suppress(RunnerError):  # told by who begins a member
            record = LaunchRecord.kept(find_folder(self._runner.dot, name.member(0), 0, self._array))
            return record.fleet.queue is not None
        return False

    def _renewal(self) -> Renewal:
        return Renewal(_Members(self._arrays, self._array), Lease(self._array.id, self._owner, 0))

    def _take(self) -> tuple[Member, ...]:
        """All members, after those that nobody holds were taken.

        Those that can begin elsewhere alone are left to who is there."""
        members = self._arrays.members(self._array)
        only = None if self._only is None else frozenset(self._only)
        if not self._begins_here:
            only = frozenset(each.id for each in to_be_seen_to(members) if self._is_chosen(each))
            for each in members:
                if each.id not in only and (lease := self._leases.pop(each.id, None)) is not None:
                    self._runner.ledger.release(lease)
        if any(each.active and not each.held for each in members if only is None or each.id in only):
            self._leases |= self._arrays.take(self._array, self._owner, only)
        return members

    def _is_chosen(self, member: Member) -> bool:
        return self._only is None or member.id in self._only

    def _look(self) -> tuple[Member, ...]:
        """One look: what is to be done is begun, in threads."""
        members = self._take()
        self._running = tuple(each.id for each in members if each.status == "running")
        seen_to = [each.id for each in to_be_seen_to(members)]
        turn = [each.id for each in turns(members).now if each.id in self._leases]
        if turn and self._has_pods:
            seen_to, turn = seen_to + turn, []
        for number in seen_to:
            if number in self._leases and number not in self._queued and number != self._at:
                self._queued.add(number)
                self._queue.put(number)
        while len(self._workers) < min(AT_ONCE, len(self._queued)):
            self._workers.append(self._start(self._work))
        if turn and not (self._beginning is not None and self._beginning.is_alive()):
            self._beginning = self._start(lambda: self._safely(lambda: [*self._begin(turn)]))
        self._require_somebody(members)
        self._use_files()
        return members

    def _start(self, act: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=act, name="orch-member", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        """Advance members as they come, until the driver leaves."""
        while (number := self._queue.get()) is not None:
            if not self._leaving.is_set():
                self._safely(lambda number=number: self._advance(number))
            self._queued.discard(number)

    def _safely(self, act: Callable[[], object]) -> None:
        """What fails is tried again at a later look; the other members go on."""
        try:
            act()
        except OrchError as error:
            self._tell(error_text(error))
        except Exception as error:  # noqa: BLE001 - the border of this thread: nobody else tells of it
            self._tell(f"{type(error).__name__}: {error}")

    def _advance(self, number: int) -> Step | None:
        """Advance a member as far as it goes without waiting."""
        lease = self._leases.get(number)
        if lease is None:
            return None
        ledger = self._runner.ledger
        row = ledger.by_id(number)
        try:
            after = Driver(self._runner.context(row), row, lease, follow_logs=False).pass_once(begin=True)
        except LeaseLost:
            self._lose(lease)
            return None
        except LedgerUnusable:
            raise
        except RunnerError as error:  # one member must not keep the others waiting
            self._tell(f"run {row.name}: {error.summary}")
            return Step(row, row, error)
        if not after.active:
            ledger.release(lease)
            self._lose(lease)
        if after.status != row.status:
            self._wake.set()
        return Step(row, after)

    def _begin(
        self, numbers: Sequence[int], tell: Callable[[Step], None] = lambda step: None
    ) -> Iterable[int]:
        """Give nodes to members, one after the other, until there are none; those that were given some.

        What is on their nodes then is for `_advance`."""
        ledger = self._runner.ledger
        for number in numbers:
            if number in self._queued or self._leaving.is_set():
                continue
            lease, row = self._leases.get(number), ledger.by_id(number)
            try:
                self._at = number
                if lease is None or row.status != "pending" or row.desired != "run":
                    continue
                Driver(self._runner.context(row), row, lease, follow_logs=False).step()
                after = ledger.by_id(number)
            except LeaseLost:
                self._leases.pop(number, None)
                continue
            except LedgerUnusable:
                raise
            except RunnerError as error:
                self._tell(f"run {row.name}: {error.summary}")
                tell(Step(row, row, error))
                return  # the others are begun from the same
            finally:
                self._at = None
            if after != row:
                tell(Step(row, after))
            if after.status != "pending":
                self._wake.set()
                yield number
            elif after.looked_at == row.looked_at or after.in_use:
                return  # the others wait for the same

    def _lose(self, lease: Lease) -> None:
        if self._leases.get(lease.run_id) == lease:
            del self._leases[lease.run_id]

    def _require_somebody(self, members: Sequence[Member]) -> None:
        """Raises RunFailed where members are left that nobody drives, and that cannot begin here."""
        left = [each for each in members if each.active and self._is_chosen(each)]
        if not left or self._begins_here or any(each.has_nodes or each.held for each in left):
            return
        if any(each.desired != "run" for each in left):
            return
        first = left[0]
        by, name = self._runner.ledger.by_id(first.id).submitted_by, as_argument(self._array.name)
        raise RunFailed(
            f"the next runs of array {self._array.name} cannot begin from here",
            detail=f"what they are begun from is kept only where they were submitted, by {by}",
            hint=f"run `orch attach {name}` there, or end them with `orch stop {name}`",
        )

    def _use_files(self) -> None:
        """Keep what the array takes along for members that have still to begin."""
        if time.monotonic() - self._used_at < USE_FILES_EVERY_S or not self._begins_here:
            return
        self._used_at = time.monotonic()
        from orch.runner.ledger.plans import plan_of

        with suppress(OrchError):  # its disk may be full now, and not in an hour
            plan = plan_of(self._runner.ledger.by_id(self._array.id))
            Snapshots(self._runner.dot).use({file.tree for file in plan.files})

    def _keep_samples(self) -> None:
        """Keep what members use, one after the other."""
        while not self._leaving.wait(EVERY_S):
            for number in self._running:
                with suppress(OrchError):  # a node that is away: told by who drives the member
                    keep_sample(self._runner, self._runner.ledger.by_id(number), self._leaving)

    def _tell(self, text: str) -> None:
        self._runner.processor.handle(Notice(text, "warning"))


def forget_ended(runner: RunnerContext) -> None:
    """Remove from this machine what members of arrays were begun from that have all ended."""
    for array, folder in array_folders(runner.dot):
        members = runner.ledger.arrays.members(array)
        if members and not any(each.active for each in members):
            folder.forget_secrets()


@dataclass(frozen=True)
class _Members:
    """Renews the leases of an array's members."""

    arrays: Arrays
    array: ArrayKey

    def renew(self, lease: Lease) -> None:
        self.arrays.renew(self.array, lease.owner)


class _Warnings:
    """Passes warnings on, each text once: members do the same, one after the other."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._told: set[str] = set()

    def handle(self, event: Event, /) -> None:
        if isinstance(event, Notice) and event.level == "warning" and event.text not in self._told:
            self._told.add(event.text)
            self._processor.handle(event)


@dataclass(frozen=True)
class Turns:
    """`now`: members that may look for nodes, in their order. `blocked`: whether the array stands in line for
    nodes that others have, so that only those in line may."""

    now: tuple[Member, ...]
    blocked: bool


def turns(members: Sequence[Member]) -> Turns:
    """Return whose turn it is. `members`: all of an array, in the order of their indexes.

    A member that looks for nodes and finds them in use waits in the fleet's line, for all that come after it:
    they need the same. So of an array with many members one stands in line.
    """
    limit = next((each.limit for each in members), None)
    free = len(members) if limit is None else limit - sum(each.has_nodes for each in members)
    waiting = [each for each in members if each.status == "pending" and each.desired == "run"]
    in_line = [each for each in waiting if each.queued_at is not None]
    blocked = any(each.in_use for each in in_line)
    fresh = [each for each in waiting if each.queued_at is None and each.now >= (each.next_at or 0.0)]
    able = in_line if blocked else sorted((*in_line, *fresh), key=lambda each: each.index)
    return Turns(tuple(able[: max(0, free)]), blocked)


def to_be_seen_to(members: Sequence[Member]) -> tuple[Member, ...]:
    """Those that have begun, or are to end."""
    return tuple(
        each for each in members if each.active and (each.status != "pending" or each.desired != "run")
    )
