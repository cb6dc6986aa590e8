"""Serves Nebius's resources to the Pulumi engine on a simulated account: `pulumi-resource-orch-nebius` of a
rehearsal.

The resources are the real ones, as the real executable serves them, and they ask through Nebius's own SDK:
simulated is the service at the other end of the wire. It is on PATH inside a rehearsal only, and refuses to
begin without one: ORCH_REHEARSAL_NEBIUS names the account's file.
"""

from __future__ import annotations

from orch.components.nebius.account.client import NebiusClient
from orch.components.nebius.account.session import Session
from orch.components.nebius.plugin import NAME, NebiusProvider
from orch.providers.orch.serving import serve
from orch.rehearsal.account import account_file
from orch.rehearsal.nebius import service
from orch.rehearsal.nebius.account import NebiusCloud

STATE = "ORCH_REHEARSAL_NEBIUS"

PAUSE_S = 0.2

TRY_S = 300.0
"""A look at machines makes the local nodes that stand for them."""


def connect(session: Session) -> NebiusClient:
    """A client of the simulated account. No key is looked at."""
    return NebiusClient(
        service.Session(service.sdk_at(NebiusCloud(account_file(STATE, "Nebius", NAME)))), try_s=TRY_S
    )


def main() -> None:
    """Serve until the engine ends."""
    serve(NebiusProvider(connect, pause_s=PAUSE_S), NAME)


if __name__ == "__main__":
    main()
