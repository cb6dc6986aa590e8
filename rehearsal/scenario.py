"""What can be set on a simulated account: how much there is, how slow it is and where it fails."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Knob(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Failure(_Knob):
    """Calls that are refused. `at`: that call of the account's whole life; `nth`: that call of this
    action; `region`: those of a region."""

    code: str
    message: str = "made to fail by the simulation"
    action: str | None = None
    at: int | None = None
    nth: int | None = None
    region: str | None = None


class Hook(_Knob):
    """A command that is run at a call. `when` says whether the call's effect is there by then.

    The command finds ORCH_SIM_CALL, ORCH_SIM_ACTION, ORCH_SIM_PID (who called: the provider, or a process
    that uses boto3) and ORCH_SIM_PARENT (the provider's engine).
    """

    at: int | None = None
    action: str | None = None
    nth: int | None = None
    when: Literal["before", "after"] = "after"
    command: str


class Rate(_Knob):
    """A token bucket: `burst` calls at once, `per_second` afterwards."""

    burst: float
    per_second: float


class NodeScenario(_Knob):
    """Instances are backed by local nodes. `image` None: the one of this orch.

    `placeholders`: device files without devices behind them, as many as the type has.
    """

    image: str | None = None
    placeholders: bool = True
    types: tuple[str, ...] | None = None
    """Only instances of these types are backed, None: all that carry SSH keys."""


class Knobs(_Knob):
    """All of it. A change is in force for the next call of any process."""

    capacity: dict[str, int] = Field(default_factory=dict)
    """`TYPE`, `TYPE@ZONE` or `*@ZONE` -> instances there are, running and reserved ones included; else no
    limit."""

    spot_capacity: dict[str, int] = Field(default_factory=dict)
    offered: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Type -> zones that have it; a type that is not named here is in every zone of its regions."""

    quotas: dict[str, float] = Field(default_factory=dict)
    """Quota code (L-…) -> value; else AWS's default. See aws/data/quotas.yml."""

    latency_s: dict[str, float] = Field(default_factory=dict)
    """Action or `*` -> seconds a call takes."""

    rate: dict[str, Rate] = Field(default_factory=dict)
    """Action or `*` -> how often it may be called."""

    pending_s: float = 0.0
    """How long an instance (and a NAT gateway) is pending."""

    shutting_down_s: float = 0.0
    failures: tuple[Failure, ...] = ()
    hooks: tuple[Hook, ...] = ()
    denied: tuple[str, ...] = ()
    """Actions this account's user may not do."""

    clock: float | None = None
    """The time now as seconds of the epoch; None: the machine's."""

    nodes: NodeScenario | None = None
