"""Calls of Nebius through its SDK, with errors of ours.

The SDK tries a call again that was refused for want of a quota or of capacity, unless it is told not to: a
create is one call. It asks for a token without end when credentials are refused, unless it is told to report
that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from orch.components.nebius.account.errors import NebiusRefused, translated
from orch.components.nebius.account.methods import Method, Row
from orch.spec.cursors import follow

CALL_S = 60.0
TRY_S = 20.0
LOGIN_S = 15.0
FIRST_S = 15.0
"""How long a read may take, logging in included, as long as nothing has answered: there may be no network."""
PAGE = 100

_UNREACHED = "Nebius has not answered before: is api.nebius.cloud reached from here?"


class Session(Protocol):
    """The SDK, logged in; `projects` are those that orch.yml names. `key`: what the engine's provider logs in
    with, none where it finds the way by itself."""

    @property
    def sdk(self) -> Any: ...

    @property
    def projects(self) -> Sequence[str]: ...
    @property
    def key(self) -> Mapping[str, str]: ...


def _camel(method: str) -> str:
    return "".join(word.capitalize() for word in method.split("_"))


# The error that follows repeats what the SDK logs; the rest are warnings about deprecated fields.
for _name in ("nebius", "deprecation"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Calls:
    """Calls in a session. `try_s`: how long one try of a call may take; `first_s`: see FIRST_S."""

    def __init__(self, session: Session, *, try_s: float = TRY_S, first_s: float = FIRST_S) -> None:
        self._session, self._try_s, self._first_s = session, try_s, first_s
        self._answered = False
        self._clients: dict[tuple[str, str], Any] = {}
        self._seen = frozenset[str]()

    def _client(self, package: str, service: str) -> Any:
        key = package, service
        if key not in self._clients:
            api = import_module(f"nebius.api.nebius.{package}")
            self._clients[key] = getattr(api, f"{service}Client")(self._session.sdk)
        return self._clients[key]

    def call(self, what: str, method: Method, body: Mapping[str, Any], key: str | None = None) -> Row:
        """One call: the answer as JSON. `what`: what it is for, as in "cannot …"; `key`: what the service
        tells a repeated call by. Reads are tried again by the SDK, changes are not.

        Raises NebiusRefused.
        """
        from nebius.base.protos.json_format import message_to_dict, parse_dict

        client = self._client(method.package, method.service)
        descriptor = client.get_descriptor().methods_by_name[_camel(method.name)]
        message = parse_dict(body, client.__registry__.message_class(descriptor.input_type.full_name)())
        options = self._options(first=key is None and not self._answered)
        if key is not None:
            options |= {"metadata": [("x-idempotency-key", key)], "retries": 1}
        try:
            answer = translated(what, lambda: getattr(client, method.name)(message, **options).wait())
        except NebiusRefused as refused:
            if refused.category == "transient" and not self._answered:
                raise NebiusRefused(what, "transient", f"{refused.message}; {_UNREACHED}") from refused
            self._answered = True
            raise
        self._answered = True
        # A change answers an operation in a wrapper of the SDK.
        answer = getattr(answer, "_operation", answer)
        return message_to_dict(answer, preserving_proto_field_name=True)

    def _options(self, *, first: bool = False) -> dict[str, Any]:
        """How long a call may take, logging in included, and that a refused login is told. `first`: nothing
        has answered yet."""
        from nebius.aio.token import options

        login = {
            options.OPTION_MAX_RETRIES: "2",
            options.OPTION_RENEW_SYNCHRONOUS: "1",
            options.OPTION_RENEW_REQUEST_TIMEOUT: f"{LOGIN_S}",
            options.OPTION_REPORT_ERROR: "1",
        }
        whole = self._first_s if first else max(CALL_S, 3 * self._try_s)
        return {
            "timeout": whole,
            "per_retry_timeout": min(self._try_s, whole),
            "auth_timeout": whole,
            "auth_options": login,
        }

    def _items(
        self, what: str, package: str, service: str, body: Mapping[str, Any], method: str = "list"
    ) -> Iterator[Row]:
        def ask(token: str) -> Row:
            query = {**body, "page_size": PAGE, **({"page_token": token} if token else {})}
            return self.call(what, Method(package, service, method), query)

        def endless(why: str) -> NebiusRefused:
            return NebiusRefused(what, "transient", why)

        for page in follow(ask, lambda page: page.get("next_page_token"), endless):
            yield from page.get("items", ())
