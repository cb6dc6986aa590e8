"""Serves objects of Kubernetes to the Pulumi engine, under the token of the official plugin: the executable
`pulumi-resource-kubernetes`.

Where the official plugin is installed, or can be downloaded, that one is started in its place; else this one
answers, for the same types with the same inputs and ids, so a state made by one is read by the other. It
knows what fleets are made of: one object per resource (`objects/handler.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from pulumi.provider.experimental import provider as api

from orch.components.kubernetes.objects.handler import GONE_S, PAUSE_S, PLURALS, ObjectHandler, unread
from orch.components.kubernetes.plan import CLUSTER_ID, OTHER_CLUSTER
from orch.providers.orch.handler import LeftBehind, ProviderError
from orch.providers.orch.serving import HandlerProvider, serve
from orch.providers.orch.values import plain_map, sendable
from orch.runner.hosts.registration import FORCED
from orch.runner.kubernetes.client import KubernetesClient
from orch.runner.kubernetes.errors import KubernetesError
from orch.runner.kubernetes.identity import difference

PACKAGE = "kubernetes"
NAME = f"pulumi-resource-{PACKAGE}"
OWN = "ORCH_KUBERNETES_PLUGIN"
"""`own`: the official plugin is not looked for."""


INSTALL_S = 300.0


class KubernetesProvider(HandlerProvider):
    """Dispatches each request to the handler of its kind. `connect`: the client by a kubeconfig's path and a
    context."""

    def __init__(
        self,
        connect: Callable[[str | None, str | None], KubernetesClient] = KubernetesClient.open,
        *,
        pause_s: float = PAUSE_S,
        gone_s: float = GONE_S,
    ) -> None:
        self._connect = connect
        self._client: KubernetesClient | None = None
        self._identifier = ""
        self._other: ProviderError | None = None
        self._asked = False
        self._asking = threading.Lock()

        def handler(token: str) -> ObjectHandler:
            kind = token.rpartition(":")[2]
            if kind not in PLURALS:
                raise KeyError(token)
            return ObjectHandler(kind, self._cluster, pause_s=pause_s, gone_s=gone_s)

        super().__init__(handler)

    def _cluster(self) -> KubernetesClient:
        """The client. Raises ProviderError: ORCH459 for one that leads to another cluster than the fleet's
        (LeftBehind with --force), and ORCH458 where nobody answers."""
        assert self._client is not None  # the engine configures a provider before it asks for a resource
        with self._asking:
            if not self._asked and self._identifier.startswith(CLUSTER_ID):
                try:
                    found = self._client.identity()
                except KubernetesError as error:
                    raise unread(error) from error
                known = self._identifier.removeprefix(CLUSTER_ID)
                if (detail := difference(known, found)) is not None:
                    # With --force what is on a cluster that is gone for good leaves the record.
                    error = LeftBehind if os.environ.get(FORCED) == "1" else ProviderError
                    self._other = error(
                        "the fleet is on another cluster than the kubeconfig leads to now",
                        where=self._client.login.where,
                        detail=detail,
                        hint=OTHER_CLUSTER.format("NAME"),
                        code="ORCH459",
                    )
            self._asked = True
        if self._other is not None:
            raise self._other
        return self._client

    async def check_config(self, request: api.CheckRequest) -> api.CheckResponse:
        return api.CheckResponse(inputs=sendable(request.new_inputs))

    async def diff_config(self, request: api.DiffRequest) -> api.DiffResponse:
        """Where the kubeconfig lies differs from machine to machine: another cluster is another fleet's."""
        return api.DiffResponse(changes=False, diffs=[])

    async def configure(self, request: api.ConfigureRequest) -> api.ConfigureResponse:
        args = plain_map(request.args)
        file, context = args.get("kubeconfig"), args.get("context")
        self._identifier = str(args.get("clusterIdentifier") or "")
        self._client = await self._work(
            lambda: self._connect(
                None if file is None else str(file), None if context is None else str(context)
            )
        )
        return api.ConfigureResponse(
            accept_secrets=True, supports_preview=True, accept_resources=True, accept_outputs=True
        )


# The official plugin in its place


def official(environment: Mapping[str, str]) -> Path | None:
    """The official plugin as the engine has it installed, the newest; None without."""
    home = Path(environment.get("PULUMI_HOME") or Path.home() / ".pulumi")
    found = home.glob(f"plugins/resource-{PACKAGE}-v*/{NAME}")
    return max(
        found,
        key=lambda each: [int(number) for number in re.findall("[0-9]+", each.parent.name)],
        default=None,
    )


def _downloaded(environment: Mapping[str, str]) -> Path | None:
    """The same, downloaded first where that is possible: tried once a day."""
    home = Path(environment.get("PULUMI_HOME") or Path.home() / ".pulumi")
    tried = home / "plugins" / f".orch-{PACKAGE}-not-downloaded"
    if tried.exists() and time.time() - tried.stat().st_mtime < 86_400:
        return None
    try:
        version = metadata.version(f"pulumi-{PACKAGE}")
        words = ["pulumi", "plugin", "install", "resource", PACKAGE, f"v{version}"]
        done = subprocess.run(
            words, capture_output=True, timeout=INSTALL_S, check=False, env=dict(environment)
        )
        if done.returncode == 0 and (found := official(environment)) is not None:
            return found
        tried.parent.mkdir(parents=True, exist_ok=True)
        tried.touch()
    except (OSError, subprocess.TimeoutExpired, metadata.PackageNotFoundError):
        return None
    return None


def main() -> None:
    """Serve until the engine ends; the official plugin in this one's place where there is one."""
    if os.environ.get(OWN) != "own":
        found = official(os.environ) or _downloaded(os.environ)
        if found is not None:
            os.execv(found, [str(found), *sys.argv[1:]])
    serve(KubernetesProvider(), NAME)


if __name__ == "__main__":
    main()
