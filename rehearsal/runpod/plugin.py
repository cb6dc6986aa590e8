"""Serves RunPod's resources to the Pulumi engine on a simulated account: `pulumi-resource-orch-runpod` of a
rehearsal.

The resources are the real ones, as the real executable serves them, and they ask through orch's own client:
simulated is the service at the other end of the wire. It is on PATH inside a rehearsal only, and refuses to
begin without one: ORCH_REHEARSAL_RUNPOD names the account's file.
"""

from __future__ import annotations

from orch.components.runpod.account.client import Login, RunpodClient
from orch.components.runpod.plugin import NAME, RunpodProvider
from orch.providers.orch.serving import serve
from orch.rehearsal.account import account_file
from orch.rehearsal.http_service import url_of
from orch.rehearsal.runpod.account import RunpodCloud

STATE = "ORCH_REHEARSAL_RUNPOD"

PAUSE_S = 0.2
SETTLE_S = 1.0


def connect(login: Login) -> RunpodClient:
    """A client of the simulated account. The key that the engine was given is not looked at."""
    cloud = RunpodCloud(account_file(STATE, "RunPod", NAME))
    return RunpodClient(Login(cloud.api_key, url_of(cloud)), pause_s=PAUSE_S)


def main() -> None:
    """Serve until the engine ends."""
    serve(RunpodProvider(connect, pause_s=PAUSE_S, settle_s=SETTLE_S), NAME)


if __name__ == "__main__":
    main()
