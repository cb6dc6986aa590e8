"""One simulated cloud account: its calls, its knobs, and what a test may ask it.

A call is counted and committed before anything happens, so that "kill the caller at call k" fires once
however often the killed work is begun again; its effect is one transaction, there whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orch.providers.simulated.aws.errors import THROTTLED, AwsError
from orch.providers.simulated.knobs import Failure, Hook, Knobs
from orch.providers.simulated.store import Doc, Store
from orch.spec.errors import ExitCode, OrchError

ACCOUNT = "111122223333"
"""The account id that AWS's own documents use in examples."""

GLOBAL = "aws-global"
"""The region of services that have none."""

HIDDEN = {"UserData", "PublicKeyMaterial"}


class SimulationError(OrchError):
    """A simulated cloud cannot be used."""

    exit_code = ExitCode.PROVISION


@dataclass(frozen=True)
class Call:
    """One line of the log. `done` False: the caller died before the answer. `error`: AWS's code, if
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


class Cloud:
    """An account in a file. Any number of processes may have it open."""

    def __init__(self, path: Path | str) -> None:
        try:
            self.store = Store(Path(path))
        except FileNotFoundError:
            raise SimulationError(
                "there is no simulated cloud here", where=str(path), hint="a rehearsal makes one"
            ) from None
        with self.store.transaction():
            self.seed: str = self.store.meta("seed")

    @classmethod
    def create(cls, path: Path | str, *, seed: str = "0", knobs: Knobs | None = None) -> Cloud:
        """A new, empty account. `seed` decides its ids."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(f"{target.name}.{os.getpid()}")
        store = Store(staged, create=True)
        with store.transaction():
            store.put_meta("seed", seed)
            store.put_meta("knobs", (knobs or Knobs()).model_dump(mode="json"))
        store.close()  # ends the journal: the file alone is the account
        staged.chmod(0o600)
        staged.rename(target)
        return cls(target)

    @property
    def path(self) -> Path:
        return self.store.path

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

    def new_id(self, prefix: str) -> str:
        """An id as AWS forms them: the prefix and 17 hex digits, the first of them 0."""
        number = self.store.count(f"id {prefix}")
        return f"{prefix}-0{hashlib.sha256(f'{self.seed} {prefix} {number}'.encode()).hexdigest()[:16]}"

    def quota(self, code: str) -> float:
        from orch.providers.simulated.aws.data import quotas

        return self._knobs().quotas.get(code, quotas()[code].value)

    # -- calls --------------------------------------------------------------------------------------------

    def call(
        self,
        action: str,
        params: Doc | None = None,
        *,
        service: str = "ec2",
        region: str = "us-east-1",
        caller: str = "api",
    ) -> Doc:
        """Do one API call. Parameters and result as botocore's models name them. Raises AwsError."""
        from orch.providers.simulated.aws import ACTIONS
        from orch.providers.simulated.aws.instances import settle
        from orch.providers.simulated.aws.registry import Request

        given = dict(params or {})
        region = GLOBAL if service in {"iam", "sts"} else region
        with self.store.transaction():
            knobs = self._knobs()
            shown = {key: value for key, value in given.items() if key not in HIDDEN}
            number = self.store.begin_call(
                {
                    "at": self.now(),
                    "service": service,
                    "action": action,
                    "region": region,
                    "caller": caller,
                    "params": shown,
                }
            )
            nth = self.store.count(f"calls {action}")
            refusal = self._refusal(knobs, service, action, number, nth)
        delay = knobs.latency_s.get(action, knobs.latency_s.get("*", 0.0))
        if delay:
            time.sleep(delay)
        self._run_hooks(knobs, "before", action, number, nth)
        error: AwsError | None = None
        result: Doc = {}
        try:
            with self.store.transaction():
                if refusal is not None:
                    raise refusal
                found = ACTIONS.get((service, action))
                if found is None:
                    raise AwsError("InvalidAction", f"The action {action} is not valid for this web service.")
                if given.get("DryRun"):
                    raise AwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
                request = Request(self, given, region)
                settle(request)
                result = found(request)
                self.store.end_call(number, None)
        except AwsError as refused:
            error = refused
            with self.store.transaction():
                self.store.end_call(number, refused.code)
        if error is None and knobs.nodes is not None:
            from orch.providers.simulated import nodes

            account: Any = self
            nodes.after(account, knobs.nodes, action, result)
        self._run_hooks(knobs, "after", action, number, nth)
        if error is not None:
            raise error
        return result

    def _refusal(self, knobs: Knobs, service: str, action: str, number: int, nth: int) -> AwsError | None:
        if action in knobs.denied or f"{service}:{action}" in knobs.denied:
            code = "UnauthorizedOperation" if service == "ec2" else "AccessDenied"
            return AwsError(
                code,
                f"You are not authorized to perform this operation: {service}:{action} on this resource.",
            )
        for failure in knobs.failures:
            if _hits(failure, action, number, nth):
                return AwsError(failure.code, failure.message)
        if self._too_often(knobs, action):
            return AwsError(THROTTLED, "Request limit exceeded.")
        return None

    def _too_often(self, knobs: Knobs, action: str) -> bool:
        name = action if action in knobs.rate else "*"
        rate = knobs.rate.get(name)
        if rate is None:
            return False
        now = self.now()
        tokens, at = self.store.meta(f"bucket {name}") or (rate.burst, now)
        tokens = min(rate.burst, tokens + (now - at) * rate.per_second)
        self.store.put_meta(f"bucket {name}", (tokens - 1 if tokens >= 1 else tokens, now))
        return tokens < 1

    def _run_hooks(self, knobs: Knobs, when: str, action: str, number: int, nth: int) -> None:
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

    # -- behind the back ----------------------------------------------------------------------------------

    def add_capacity_block(self, kind: str, zone: str, count: int, *, start: float, end: float) -> str:
        """A Capacity Block that was bought elsewhere; its reservation id."""
        from orch.providers.simulated.aws.registry import Request
        from orch.providers.simulated.aws.reservations import add_capacity_block

        with self.store.transaction():
            doc = add_capacity_block(Request(self, {}, zone[:-1]), kind, zone, count, start=start, end=end)
        return str(doc["CapacityReservationId"])

    # -- what a test may ask ------------------------------------------------------------------------------

    @property
    def calls(self) -> list[Call]:
        """Every call so far, in order."""
        with self.store.transaction():
            rows = self.store.calls()
        return [
            Call(
                **{key: row[key] for key in Call.__dataclass_fields__ if key != "done"},
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

    def everything(self) -> dict[str, str]:
        """Id -> kind of all that was made and is still there."""
        kinds = [
            "vpc",
            "subnet",
            "internet-gateway",
            "natgateway",
            "elastic-ip",
            "route-table",
            "security-group",
            "placement-group",
            "capacity-reservation",
            "launch-template",
            "instance",
            "key-pair",
            "vpc-endpoint",
            "role",
            "instance-profile",
        ]
        return {
            thing: kind
            for kind in kinds
            for thing, doc in self.things(kind).items()
            if not doc.get("_default") and doc.get("GroupName") != "default" and not _is_main(doc)
        }


def _is_main(doc: Doc) -> bool:
    return any(association.get("Main") for association in doc.get("Associations") or ())


def _hits(one: Failure | Hook, action: str, number: int, nth: int) -> bool:
    """Whether a failure or a hook is meant for this call. One that names nothing is for none."""
    return (
        one.action in (None, action)
        and one.at in (None, number)
        and one.nth in (None, nth)
        and (one.action, one.at, one.nth) != (None, None, None)
    )
