"""Serves Crusoe's resources to the Pulumi engine on a simulated project: `pulumi-resource-orch-crusoe` of a
rehearsal.

The resources are the real ones, as the real executable serves them, and they ask through orch's own client:
simulated is the service at the other end of the wire. It is on PATH inside a rehearsal only, and refuses to
begin without one: ORCH_REHEARSAL_CRUSOE names the project's file.
"""

from __future__ import annotations

from orch.components.crusoe.account.client import CrusoeClient
from orch.components.crusoe.account.login import Login
from orch.components.crusoe.plugin import NAME, CrusoeProvider
from orch.providers.orch.serving import serve
from orch.rehearsal.account import account_file
from orch.rehearsal.crusoe.account import CrusoeCloud
from orch.rehearsal.http_service import url_of

STATE = "ORCH_REHEARSAL_CRUSOE"

PAUSE_S = 0.2
SETTLE_S = 1.0


def connect(login: Login) -> CrusoeClient:
    """A client of the simulated project. No key is looked at."""
    cloud = CrusoeCloud(account_file(STATE, "Crusoe", NAME))
    own = Login(cloud.access_key, cloud.secret_key, cloud.project, f"{url_of(cloud)}/v1")
    return CrusoeClient(own, pause_s=PAUSE_S)


def main() -> None:
    """Serve until the engine ends."""
    serve(CrusoeProvider(connect, pause_s=PAUSE_S, settle_s=SETTLE_S), NAME)


if __name__ == "__main__":
    main()
