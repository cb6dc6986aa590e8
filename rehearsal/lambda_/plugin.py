"""Serves Lambda's resources to the Pulumi engine on a simulated account: `pulumi-resource-orch-lambda` of a
rehearsal.

The resources are the real ones, as the real executable serves them, and they ask through orch's own client:
simulated is the service at the other end of the wire. It is on PATH inside a rehearsal only, and refuses to
begin without one: ORCH_REHEARSAL_LAMBDA names the account's file.
"""

from __future__ import annotations

from orch.components.lambda_.account.client import LambdaClient
from orch.components.lambda_.account.login import Login
from orch.components.lambda_.plugin import NAME, LambdaProvider
from orch.providers.orch.serving import serve
from orch.rehearsal.account import account_file
from orch.rehearsal.http_service import url_of
from orch.rehearsal.lambda_.account import LambdaCloud
from orch.rehearsal.lambda_.hooks import PACE

STATE = "ORCH_REHEARSAL_LAMBDA"

PAUSE_S = 0.2
SETTLE_S = 1.0


def connect(login: Login) -> LambdaClient:
    """A client of the simulated account. No key is looked at."""
    cloud = LambdaCloud(account_file(STATE, "Lambda", NAME))
    return LambdaClient(Login(cloud.api_key, f"{url_of(cloud)}/api/v1"), **PACE)


def main() -> None:
    """Serve until the engine ends."""
    serve(LambdaProvider(connect, pause_s=PAUSE_S, settle_s=SETTLE_S), NAME)


if __name__ == "__main__":
    main()
