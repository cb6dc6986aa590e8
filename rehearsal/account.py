"""What every simulated account has: its file, its knobs, and calls that are counted, logged, hooked, killed.

A call is counted and committed before anything happens, so that "kill the caller at call k" fires once
however often the killed work is begun again; its effect is one transaction, there whole or not at all.
Each cloud says what its calls are and how it refuses.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from orch.rehearsal.scenario import Failure, Hook, Knobs, NodeScenario
from orch.rehearsal.store import Doc, Store
from orch.runner.private import private_folder
from orch.spec.errors import ExitCode, OrchError


class SimulationError(OrchError):
    """A simulated cloud cannot be used."""

    exit_code = ExitCode.PROVISION


class Refusal(Exception):
    """What a cloud answers when it refuses. `code` is the cloud's own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True)
class ApiCall:
    """One line of the log. `done` False: the caller died before the answer. `error`: the cloud's code, if
    refused."""

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
    """A call as it comes in. `aliases`: other names of the action that `denied` may use."""

    service: str
    action: str
    region: str
    caller: str
    shown: Doc
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Endpoint:
    """Where an instance that a local node stands for is reached from this machine, and from other such
    nodes."""

    instance: str
    container: str
    address: str
    port: int
    user: str
    host_key: str
    internal_ip: str
    placeholders: tuple[str, ...] = ()


@dataclass(frozen=True)
class SimulatedMachine:
    """An instance as a local node stands for it.

    `slug` ends its container's name; `user_data` is what cloud-init would read.
    """

    instance: str
    slug: str
    hostname: str
    type: str
    user_data: bytes
    placeholders: tuple[str, ...]


A = TypeVar("A", bound="SimulatedAccount")


class SimulatedAccount(ABC):
    """An account in a file. Any number of processes may have it open."""

    name: ClassVar[str]
    """Which cloud: the file remembers it."""

    def __init__(self, path: Path | str) -> None:
        try:
            self.store = Store(Path(path))
        except FileNotFoundError:
            raise _nothing(path) from None
        with self.store.transaction():
            self.seed: str = self.store.meta("seed")
            held = self.store.meta("cloud") or "aws"
        if held != self.name:
            self.store.close()
            raise SimulationError(
                f"the account in this file is of {held}, not of {self.name}", where=str(path)
            )

    @classmethod
    def create(cls: type[A], path: Path | str, *, seed: str = "0", knobs: Knobs | None = None) -> A:
        """A new, empty account. `seed` decides its ids."""
        target = Path(path)
        private_folder(target.parent)
        staged = target.with_name(f"{target.name}.{secrets.token_hex(8)}")
        store = Store(staged, create=True)
        with store.transaction():
            store.put_meta("cloud", cls.name)
            store.put_meta("seed", seed)
            store.put_meta("knobs", (knobs or Knobs()).model_dump(mode="json"))
        store.close()  # ends the journal: the file alone is the account
        staged.chmod(0o600)
        staged.rename(target)
        return cls(target)

    @property
    def path(self) -> Path:
        return self.store.path

    # -- how a cloud refuses ------------------------------------------------------------------------------

    @abstractmethod
    def not_allowed(self, asked: IncomingCall) -> Refusal: ...

    @abstractmethod
    def made_to_fail(self, failure: Failure, asked: IncomingCall) -> Refusal: ...

    @abstractmethod
    def too_often(self, asked: IncomingCall) -> Refusal: ...

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

    def counted(self, asked: IncomingCall, effect: Callable[[], Doc]) -> Doc:
        """Do one call. `effect` runs in a transaction of its own. Raises the cloud's Refusal."""
        action = asked.action
        with self.store.transaction():
            knobs = self._knobs()
            number = self.store.begin_call(
                {
                    "at": self.now(),
                    "service": asked.service,
                    "action": action,
                    "region": asked.region,
                    "caller": asked.caller,
                    "params": asked.shown,
                }
            )
            nth = self.store.count(f"calls {action}")
            refusal = self._refusal(knobs, asked, number, nth)
        delay = knobs.latency_s.get(action, knobs.latency_s.get("*", 0.0))
        if delay:
            time.sleep(delay)
        _run_hooks(knobs, "before", action, number, nth)
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
                self.refused(refused)
                self.store.end_call(number, refused.code)
        if error is None and knobs.nodes is not None:
            self.served(knobs.nodes, action, result)
        _run_hooks(knobs, "after", action, number, nth)
        if error is not None:
            raise error
        return result

    @abstractmethod
    def refused(self, refusal: Refusal) -> None:
        """What stays of a refused call, whose effect is undone by then."""

    @abstractmethod
    def served(self, wanted: NodeScenario, action: str, result: Doc) -> None:
        """What a call means for local nodes."""

    def _refusal(self, knobs: Knobs, asked: IncomingCall, number: int, nth: int) -> Refusal | None:
        if {asked.action, f"{asked.service}:{asked.action}", *asked.aliases} & set(knobs.denied):
            return self.not_allowed(asked)
        for failure in knobs.failures:
            if failure.region in (None, asked.region) and _hits(failure, asked.action, number, nth):
                return self.made_to_fail(failure, asked)
        return self.too_often(asked) if self._over_rate(knobs, asked.action) else None

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
        """What is there of a kind ("instance", "vpc", "capacity-reservation"…), by id."""
        with self.store.transaction():
            return dict(self.store.each(kind, region))

    def instances(self, region: str | None = None) -> dict[str, Doc]:
        """Instances that are there, by id: those that are neither terminated nor about to be."""
        return self.things("instance", region)

    @abstractmethod
    def everything(self) -> dict[str, str]:
        """Id -> kind of all that was made and is still there."""

    # -- local nodes --------------------------------------------------------------------------------------

    @abstractmethod
    def machine(self, instance: str) -> SimulatedMachine | None:
        """An instance for a local node; None where there is no such instance or it has no user data."""

    def endpoints(self) -> dict[str, Endpoint]:
        """Instance id -> where its local node is. Empty unless the knob `nodes` is set."""
        found = self.things("endpoint")
        fields = Endpoint.__dataclass_fields__
        return {
            doc["instance"]: Endpoint(
                **{**{name: doc[name] for name in fields}, "placeholders": tuple(doc["placeholders"])}
            )
            for doc in found.values()
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

    def made(self, kinds: Sequence[str], *, besides: Callable[[Doc], bool]) -> dict[str, str]:
        """Id -> kind of what is there, without what `besides` says was never made."""
        return {thing: kind for kind in kinds for thing, doc in self.things(kind).items() if not besides(doc)}


def cloud_of(path: Path | str) -> str:
    """Which cloud the account in a file is of. Raises SimulationError where there is none."""
    try:
        store = Store(Path(path))
    except FileNotFoundError:
        raise _nothing(path) from None
    with store.transaction():
        found = store.meta("cloud") or "aws"
    store.close()
    return str(found)


def _nothing(path: Path | str) -> SimulationError:
    return SimulationError("there is no simulated cloud here", where=str(path), hint="a rehearsal makes one")


def _run_hooks(knobs: Knobs, when: str, action: str, number: int, nth: int) -> None:
    for hook in knobs.hooks:
        if hook.when == when and _hits(hook, action, number, nth):
            environment = {
                **os.environ,
                "ORCH_SIM_CALL": str(number),
                "ORCH_SIM_ACTION": action,
                "ORCH_SIM_PID": str(os.getpid()),
                "ORCH_SIM_PARENT": str(os.getppid()),
            }
            subprocess.run(["/bin/sh", "-c", hook.command], env=environment, check=False)


def _hits(one: Failure | Hook, action: str, number: int, nth: int) -> bool:
    """Whether a failure or a hook is meant for this call. One that names nothing is for none."""
    return (
        one.action in (None, action)
        and one.at in (None, number)
        and one.nth in (None, nth)
        and (one.action, one.at, one.nth) != (None, None, None)
    )
