"""How a rehearsal puts the simulated account in the place of GCP: Google's clients are answered in this
process, and none of their requests is sent.

Clients are Google's own with their REST transport: their messages, pages, retries and exceptions are those of
the real API. Google's libraries are imported where they are used: a process with Pulumi's provider SDK cannot
hold them.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.gcp.api.methods import caller_of
from orch.rehearsal.hooks import CloudHooks
from orch.rehearsal.machines import Endpoint
from orch.rehearsal.store import Doc
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.gcp import GcpSettings
from orch.spec.state import FleetState

GCP_PROJECT = "orch-rehearsal"
"""The project of the simulated account where orch.yml names none."""

BASE = "/compute/v1/"
CALLER = "google-cloud-compute"
"""Who calls, in the log of calls."""


@dataclass(frozen=True)
class Session:
    """A project, and clients for it. `client` takes the class's name in google.cloud.compute_v1."""

    cloud: GcpCloud
    project: str
    _clients: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def client(self, name: str) -> Any:
        if name not in self._clients:
            compute: Any = importlib.import_module("google.cloud.compute_v1")
            credentials: Any = importlib.import_module("google.auth.credentials")
            client = getattr(compute, name)(credentials=credentials.AnonymousCredentials(), transport="rest")
            http = client.transport._session
            for scheme in tuple(http.adapters):
                http.mount(scheme, _adapter(self.cloud))
            self._clients[name] = client
        return self._clients[name]

    def http(self) -> Any:
        """A session of requests, for what has no client."""
        requests: Any = importlib.import_module("requests")
        http = requests.Session()
        for scheme in tuple(http.adapters):
            http.mount(scheme, _adapter(self.cloud))
        return http

    def email(self) -> str:
        """Of the service account that its calls are logged with."""
        return caller_of(self.project)


def session(cloud: GcpCloud, project: str) -> Session:
    """A session like that of real credentials."""
    return Session(cloud, project)


def _adapter(cloud: GcpCloud) -> Any:
    """What answers in the place of a connection."""
    requests: Any = importlib.import_module("requests")
    adapters: Any = importlib.import_module("requests.adapters")

    class Adapter(adapters.BaseAdapter):
        def send(self, request: Any, **_: Any) -> Any:
            status, body = _call(cloud, request)
            response = requests.Response()
            response.status_code = status
            response.url, response.request = request.url, request
            response.headers["Content-Type"] = "application/json; charset=UTF-8"
            response._content = json.dumps(body).encode()
            return response

        def close(self) -> None:
            """Nothing is open."""

    return Adapter()


def _call(cloud: GcpCloud, request: Any) -> tuple[int, Doc]:
    parts = urlsplit(request.url)
    params = {key: value for key, value in parse_qsl(parts.query) if not key.startswith("$")}
    body = json.loads(request.body) if request.body else None
    return cloud.request(
        request.method, parts.path.removeprefix(BASE).removeprefix("/v1/"), params, body, caller=CALLER
    )


class GcpHooks(CloudHooks):
    account: ClassVar[type[SimulatedAccount]] = GcpCloud

    def session(self, account: GcpCloud, configured: Sequence[BackendSettings]) -> Any:
        return session(account, entry_of(configured, GcpSettings).project_id or GCP_PROJECT)

    def endpoints(self, account: GcpCloud, state: FleetState) -> Mapping[str, Endpoint]:
        """By the fleet's label, and the address, which also members of a group have."""
        machines, names = account.instances(), {node.internal_ip: node.name for node in state.nodes}
        return {
            names[address]: endpoint
            for each, endpoint in account.endpoints().items()
            if each in machines
            and machines[each].get("labels", {}).get("orch-fleet") == state.name
            and (address := machines[each]["networkInterfaces"][0].get("networkIP")) in names
        }


HOOKS = GcpHooks()
