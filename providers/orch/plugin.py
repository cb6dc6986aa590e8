"""Serves the handlers to the Pulumi engine: the executable `pulumi-resource-orch`."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable

from orch.providers.orch.handler import Handler
from orch.providers.orch.serving import HandlerProvider, serve, warn

# Type -> module and class. The engine starts this provider twice for each command, mostly for one type only:
# Docker's library and SSH's are loaded for who needs them.
HANDLERS = {
    "orch:index:Keys": ("keys", "KeysHandler"),
    "orch:local:Network": ("local_network", "LocalNetworkHandler"),
    "orch:local:Node": ("local_node", "LocalNodeHandler"),
    "orch:local:Volume": ("local_volume", "LocalVolumeHandler"),
    "orch:ssh:Host": ("ssh_host", "SshHostHandler"),
}


_handlers: dict[str, Handler] = {}
_handlers_lock = threading.Lock()


def handler(token: str) -> Handler:
    """Return the handler of a resource type: one object for all threads. Raises KeyError."""
    module, name = HANDLERS[token]
    with _handlers_lock:
        if token not in _handlers:
            handlers = importlib.import_module(f"orch.providers.orch.{module}")
            _handlers[token] = getattr(handlers, name)()
        return _handlers[token]


class OrchProvider(HandlerProvider):
    """The package `orch`."""

    def __init__(self, warn: Callable[[str, str], None] = warn) -> None:
        super().__init__(handler, warn)


def main() -> None:
    """Serve until the engine ends."""
    serve(OrchProvider(), "pulumi-resource-orch")


if __name__ == "__main__":
    main()
