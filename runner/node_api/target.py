"""The machines of a fleet file: those that can be connected to, and those that cannot."""

from __future__ import annotations

from dataclasses import dataclass, field

from orch.runner.errors import RunnerError
from orch.spec.state import NodeState


@dataclass(frozen=True)
class Target:
    """A machine of a fleet and how to reach it. `node.index` counts from 0 in the order of the file.

    `unverified_key`: the fingerprint of its host key, if the key is used but nobody has accepted it.
    """

    node: NodeState
    unverified_key: str | None = field(default=None, kw_only=True)

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class TargetError:
    """A machine of a fleet that cannot be connected to, by its name, and why."""

    index: int
    name: str
    address: str
    error: RunnerError
