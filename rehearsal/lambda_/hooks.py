"""How a rehearsal puts the simulated account in the place of Lambda.

A service in this process is what orch's own client calls over the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.hooks import CloudHooks
from orch.rehearsal.http_service import url_of
from orch.rehearsal.lambda_.account import LambdaCloud
from orch.spec.models.backends.base import BackendSettings

PACE: Mapping[str, float] = {"pause_s": 0.2, "call_every_s": 0.0, "launch_every_s": 0.2}
"""How a simulated account is asked: it is as fast as this machine."""


@dataclass(frozen=True)
class Session:
    """A login to the simulated account. Its provider needs no key: it finds the account by itself."""

    api_key: str = field(repr=False)
    url: str
    key: Mapping[str, str] = field(default_factory=dict[str, str])
    pace: Mapping[str, float] = field(default_factory=lambda: PACE)


class LambdaHooks(CloudHooks):
    account: ClassVar[type[SimulatedAccount]] = LambdaCloud

    def session(self, account: LambdaCloud, configured: Sequence[BackendSettings]) -> Any:
        return Session(account.api_key, f"{url_of(account)}/api/v1")


HOOKS = LambdaHooks()
