"""Serves the resources on a simulated account: `pulumi-resource-orch-newcloud` of a rehearsal.

The resources and the client are the real ones. ORCH_REHEARSAL_NEWCLOUD names the account's file.
"""

from __future__ import annotations

from orch.components.newcloud.account.client import Login, NewcloudClient
from orch.components.newcloud.plugin import NAME, NewcloudProvider
from orch.providers.orch.serving import serve
from orch.rehearsal.account import account_file
from orch.rehearsal.http_service import url_of
from orch.rehearsal.newcloud.account import NewcloudAccount
from orch.rehearsal.newcloud.hooks import PACE

STATE = "ORCH_REHEARSAL_NEWCLOUD"


def connect(login: Login) -> NewcloudClient:
    """Return a client of the simulated account, whatever the key."""
    account = NewcloudAccount(account_file(STATE, "Newcloud", NAME))
    return NewcloudClient(Login(account.api_key, f"{url_of(account)}/v1"), **PACE)


def main() -> None:
    """Serve until the engine ends."""
    serve(NewcloudProvider(connect, pause_s=0.2, settle_s=1.0), NAME)


if __name__ == "__main__":
    main()
