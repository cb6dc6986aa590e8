"""A simulated account: its file, its knobs, and calls that are counted, logged and hooked.

A call is counted and committed before it has any effect, so that "kill the caller at call k" fires once
however often the killed work is repeated. The effect of a call is one transaction.
Each cloud defines its calls and the errors it refuses them with.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from orch.rehearsal.calls import LOST, ApiCall, IncomingCall, Refusal, concerns, hits
from orch.rehearsal.machines import Endpoint, SimulatedMachine
from orch.rehearsal.scenario import Failure, Knobs, NodeScenario
from orch.rehearsal.store import Doc, Store
from orch.runner.private import private_folder
from orch.spec.errors import ExitCode, OrchError


class SimulationError(OrchError):
    """A simulated cloud cannot be used."""

    exit_code = ExitCode.PROVISION


def only_simulated(cloud: str) -> str:
    return f"this is orch's simulated {cloud}, which creates nothing real: it is for `--rehearse` only"


def account_file(variable: str, cloud: str, plugin: str) -> Path:
    """The file of the account that a plugin serves in a rehearsal, which names it in a variable.

    Raises SimulationError outside of one."""
    path = os.environ.get(variable)
    if path and Path(path).is_file():
        return Path(path)
    raise SimulationError(
        "there is no rehearsal here",
        where=path,
        detail=only_simulated(cloud),
        hint=f"remove this {plugin} from PATH, or run the command with --rehearse",
    )


A = TypeVar("A", bound="SimulatedAccount")


class SimulatedAccount(ABC):
    """An account in a file. Any number of processes may have it open."""

    name: ClassVar[str]
    """Which cloud; recorded in the file."""

    shows_instances: ClassVar[frozenset[str]]
    """The actions that tell what became of instances."""

    def __init__(self, path: Path | str) -> None:
        self._lost = threading.local()
        self.store = _opened(path)
        with self.store.transaction():
            self.seed: str = self.store.meta("seed")
            self.other: str = self.store.meta("other") or ""
            cloud = self.store.meta("cloud") or "aws"
        if cloud != self.name:
            self.store.close()
            raise SimulationError(
                f"the account in this file is of {cloud}, not of {self.name}", where=str(path)
            )

    @classmethod
    def create(
        cls: type[A], path: Path | str, *, seed: str = "0", knobs: Knobs | None = None, other: str = ""
    ) -> A:
        """Create an empty account. `seed` decides its ids; `other` names an account that is not the first
        one of a rehearsal: its identity and its ids are others."""
        target = Path(path)
        if target.is_dir():
            raise SimulationError(
                "a folder is in the place of the simulated cloud's file",
                where=str(target),
                hint="remove it, or move it away: the next rehearsal makes the file",
            )
        private_folder(target.parent)
        staged = target.with_name(f"{target.name}.{secrets.token_hex(8)}")
        store = Store(staged, create=True)
        with store.transaction():
            store.put_meta("cloud", cls.name)
            store.put_meta("seed", f"{seed}{other}")
            store.put_meta("other", other)
            store.put_meta("knobs", (knobs or Knobs()).model_dump(mode="json"))
        store.close()  # ends the journal: the file alone is the account
        staged.chmod(0o600)
        staged.rename(target)
        return cls(target)

    @property
    def path(self) -> Path:
        return self.store.path

    def identity(self, first: str) -> str:
        """Return an identity of this account: `first` itself for the first one of a rehearsal; for another
        account the same with other digits."""
        if not self.other:
            return first
        number = int.from_bytes(hashlib.sha256(f"{self.other} {first}".encode()).digest(), "big")
        digits = iter(str(number))
        return "".join(next(digits) if each.isdigit() else each for each in first)

    # -- how a cloud refuses ------------------------------------------------------------------------------

    @abstractmethod
    def denied_call(self, call: IncomingCall) -> Refusal: ...

    @abstractmethod
    def injected_failure(self, failure: Failure, call: IncomingCall) -> Refusal: ...

    @abstractmethod
    def throttled(self, call: IncomingCall) -> Refusal: ...

    # -- knobs --------------------------------------------------------------------------------------------

    @property
    def knobs(self) -> Knobs:
        with self.store.transaction():
            return self._knobs()

    def _knobs(self) -> Knobs:
        stored = self.store.meta("knobs")
        cached = getattr(self, "_knobs_cache", None)
        if cached is None or cached[0] != stored:
            cached = self._knobs_cache = (stored, Knobs.model_validate(stored))
        return cached[1]

    def turn(self, **changes: Any) -> Knobs:
        """Set some knobs: `cloud.turn(capacity={"p5.48xlarge@us-east-1a": 3})`. The others stay."""
        with self.store.transaction():
            knobs = Knobs.model_validate({**self._knobs().model_dump(), **changes})
            self.store.put_meta("knobs", knobs.model_dump(mode="json"))
        return knobs

    # -- what a rule needs --------------------------------------------------------------------------------

    def knobs_now(self) -> Knobs:
        """The knobs, for a rule: inside the transaction of its call."""
        return self._knobs()

    def now(self) -> float:
        clock = self._knobs().clock
        return time.time() if clock is None else clock

    # -- calls --------------------------------------------------------------------------------------------

    def perform(self, call: IncomingCall, effect: Callable[[], Doc]) -> Doc:
        """Do one call: its result. `effect` runs in a transaction of its own. Raises the cloud's Refusal."""
        action = call.action
        with self.store.transaction():
            knobs = self._knobs()
            number = self.store.begin_call(
                {
                    "at": self.now(),
                    "service": call.service,
                    "action": action,
                    "region": call.region,
                    "caller": call.caller,
                    "params": call.params,
                }
            )
            nth = self.store.count(f"calls {action}")
            refusal = self._refusal(knobs, call, number, nth)
            lost = [each for each in knobs.failures if each.code == LOST]
            self._lost.answer = any(concerns(each, call, number, nth) for each in lost)
        delay = knobs.latency_s.get(action, knobs.latency_s.get("*", 0.0))
        if delay:
            time.sleep(delay)
        _run_hooks(knobs, "before", action, number, nth)
        if knobs.nodes is not None and action in self.shows_instances:
            self.see_local_nodes()
        error: Refusal | None = None
        result: Doc = {}
        try:
            with self.store.transaction():
                if refusal is not None:
                    raise refusal
                result = effect()
                self.store.end_call(number, None)
        except Refusal as refused:
            error = refused
            with self.store.transaction():
                self.after_refusal(refused)
                self.store.end_call(number, refused.code)
        if error is None and knobs.nodes is not None:
            self.update_local_nodes(knobs.nodes, action, result)
        _run_hooks(knobs, "after", action, number, nth)
        if error is not None:
            raise error
        return result

    @abstractmethod
    def after_refusal(self, refusal: Refusal) -> None:
        """Record what a refused call leaves; its effect is already undone."""

    @abstractmethod
    def update_local_nodes(self, scenario: NodeScenario, action: str, result: Doc) -> None:
        """Start and stop local nodes as the call requires."""

    @abstractmethod
    def see_local_nodes(self) -> None:
        """Record what became of local nodes by themselves."""

    def note(self, event: Literal["born", "dead"], instance: str) -> None:
        """Remember an instance that came or went, for its local node: inside the transaction of a call."""
        if self._knobs().nodes is not None:
            self.store.put_meta(event, [*(self.store.meta(event) or []), instance])

    def noted(self) -> tuple[list[str], list[str]]:
        """The instances that came and those that went, since this was asked last."""
        with self.store.transaction():
            born: list[str] = self.store.meta("born") or []
            dead: list[str] = self.store.meta("dead") or []
            for event in ("born", "dead") if born or dead else ():
                self.store.put_meta(event, [])
        return born, dead

    def _refusal(self, knobs: Knobs, call: IncomingCall, number: int, nth: int) -> Refusal | None:
        if {call.action, f"{call.service}:{call.action}", *call.aliases} & set(knobs.denied):
            return self.denied_call(call)
        for failure in knobs.failures:
            if failure.code != LOST and concerns(failure, call, number, nth):
                return self.injected_failure(failure, call)
        return self.throttled(call) if self._over_rate(knobs, call.action) else None

    @property
    def answer_is_lost(self) -> bool:
        """Whether the answer of the call that this thread did last gets lost; told once."""
        lost: bool = getattr(self._lost, "answer", False)
        self._lost.answer = False
        return lost

    def _over_rate(self, knobs: Knobs, action: str) -> bool:
        name = action if action in knobs.rate else "*"
        rate = knobs.rate.get(name)
        if rate is None:
            return False
        now = self.now()
        tokens, at = self.store.meta(f"bucket {name}") or (rate.burst, now)
        tokens = min(rate.burst, tokens + (now - at) * rate.per_second)
        self.store.put_meta(f"bucket {name}", (tokens - 1 if tokens >= 1 else tokens, now))
        return tokens < 1

    # -- what a test may ask ------------------------------------------------------------------------------

    @property
    def calls(self) -> list[ApiCall]:
        """Every call so far, in order."""
        with self.store.transaction():
            rows = self.store.calls()
        return [
            ApiCall(
                **{key: row[key] for key in ApiCall.__dataclass_fields__ if key != "done"},
                done=bool(row["done"]),
            )
            for row in rows
        ]

    def things(self, kind: str, region: str | None = None) -> dict[str, Doc]:
        """Existing resources of a kind ("instance", "vpc", "capacity-reservation"…), by id."""
        with self.store.transaction():
            return dict(self.store.each(kind, region))

    def instances(self, region: str | None = None) -> dict[str, Doc]:
        """Instances by id, without those that are terminated or terminating."""
        return self.things("instance", region)

    @abstractmethod
    def everything(self) -> dict[str, str]:
        """Id -> kind of all existing resources that were created by a call."""

    @abstractmethod
    def shut_down(self, instance: str) -> None:
        """The operating system of an instance powers its machine off."""

    # -- local nodes --------------------------------------------------------------------------------------

    @abstractmethod
    def machine(self, instance: str) -> SimulatedMachine | None:
        """An instance for a local node; None if there is no such instance or it has no user data."""

    def endpoints(self) -> dict[str, Endpoint]:
        """Instance id -> endpoint of its local node. Empty unless the knob `nodes` is set."""
        documents = self.things("endpoint")
        fields = Endpoint.__dataclass_fields__
        return {
            doc["instance"]: Endpoint(
                **{**{name: doc[name] for name in fields}, "placeholders": tuple(doc["placeholders"])}
            )
            for doc in documents.values()
        }

    def record(self, endpoint: Endpoint) -> None:
        with self.store.transaction():
            self.store.put(
                f"endpoint {endpoint.instance}", "endpoint", "", {**asdict(endpoint), "_region": ""}
            )

    def forget(self, instance: str) -> None:
        with self.store.transaction():
            self.store.remove(f"endpoint {instance}")
            self.store.release(f"container {instance}")

    def created_resources(self, kinds: Sequence[str], *, unless: Callable[[Doc], bool]) -> dict[str, str]:
        """Id -> kind of existing resources, unless `unless` is true for one (what each account has)."""
        return {thing: kind for kind in kinds for thing, doc in self.things(kind).items() if not unless(doc)}


def cloud_of(path: Path | str) -> str:
    """The name of the cloud of an account's file. Raises SimulationError if there is no such file."""
    store = _opened(path)
    with store.transaction():
        name = store.meta("cloud") or "aws"
    store.close()
    return str(name)


def _opened(path: Path | str) -> Store:
    try:
        return Store(Path(path))
    except FileNotFoundError:
        raise SimulationError(
            "there is no simulated cloud here", where=str(path), hint="a rehearsal makes one"
        ) from None
    except sqlite3.DatabaseError as error:
        raise SimulationError(
            "the file of the simulated cloud cannot be used",
            where=str(path),
            detail=str(error),
            hint="is its folder writable, with space on the disk? Else remove it, and rehearse anew",
        ) from error


def _run_hooks(knobs: Knobs, when: str, action: str, number: int, nth: int) -> None:
    for hook in knobs.hooks:
        if hook.when == when and hits(hook, action, number, nth):
            environment = {
                **os.environ,
                "ORCH_SIM_CALL": str(number),
                "ORCH_SIM_ACTION": action,
                "ORCH_SIM_PID": str(os.getpid()),
                "ORCH_SIM_PARENT": str(os.getppid()),
            }
            subprocess.run(["/bin/sh", "-c", hook.command], env=environment, check=False)
