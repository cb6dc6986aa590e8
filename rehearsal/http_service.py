"""A simulated account as an HTTP service on this machine, for clouds that are asked by REST.

Documents are answers as JSON; what begins with `_` is the account's own and never leaves it.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.calls import AnswerLost, IncomingCall, Refusal
from orch.rehearsal.nodes.account import AccountWithNodes
from orch.rehearsal.scenario import Failure
from orch.rehearsal.store import Doc, Store


@dataclass(frozen=True)
class Answer:
    """`document` None: an answer without a body."""

    status: int
    document: Doc | None = None


class HttpRefusal(Refusal):
    """A refusal with an HTTP status. `headers` go with the answer."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(code, message)
        self.status, self.headers = status, dict(headers or {})

    def document(self) -> Doc:
        """The body of the answer."""
        raise NotImplementedError


@dataclass(frozen=True)
class Request:
    """One call. `action`: what it is called in the log; `id`: of its path, empty without."""

    account: SimulatedAccount
    action: str
    id: str
    query: Mapping[str, str]
    body: Any

    @property
    def store(self) -> Store:
        return self.account.store

    def each(self, kind: str) -> Iterator[Doc]:
        return (doc for _, doc in self.store.each(kind))


Function = Callable[[Request], Answer]


@dataclass(frozen=True)
class Route:
    method: str
    pattern: re.Pattern[str]
    action: str
    function: Function


class Routes:
    """The routes of an API by path. The modules of `package` register theirs when they are imported.

    `prefix`: what each path begins with; `missing`: the refusal where no path fits, or none with that method:
    it is given the methods that there are.
    """

    def __init__(
        self,
        package: str,
        modules: Sequence[str],
        missing: Callable[[Sequence[str]], HttpRefusal],
        *,
        prefix: str = "",
    ) -> None:
        self._package, self._modules, self._missing, self._prefix = package, modules, missing, prefix
        self._known: list[Route] = []

    def __call__(self, method: str, path: str, action: str) -> Callable[[Function], Function]:
        """Register what a route does. `path`: `{id}` is a resource, any other name a part of its own."""

        def register(function: Function) -> Function:
            pattern = re.compile(self._prefix + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
            self._known.append(Route(method, pattern, action, function))
            return function

        return register

    @cached_property
    def all(self) -> Sequence[Route]:
        """All of them."""
        for module in self._modules:
            import_module(f"{self._package}.{module}")
        return self._known

    def matching(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """The route of a path, and the parts in it. Raises HttpRefusal."""
        known = [(each, found) for each in self.all if (found := each.pattern.fullmatch(path))]
        for each, found in known:
            if each.method == method:
                return each, found.groupdict()
        raise self._missing(sorted({each.method for each, _ in known}))


class Body(BaseModel):
    """The body of a request: a field that the API does not know is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


B = TypeVar("B", bound=Body)


def validated(
    model: type[B], body: Any, refuse: Callable[[list[str]], HttpRefusal], *, root: Sequence[str] = ()
) -> B:
    """Return a body that has the form of its schema. Raises what `refuse` makes of the lines that say what is
    wrong. `root`: how the path of a field begins in them."""
    try:
        return model.model_validate(body if isinstance(body, dict) else {})
    except ValidationError as error:
        raise refuse(
            [f"{'.'.join((*root, *map(str, each['loc'])))}: {each['msg']}" for each in error.errors()]
        ) from None


def public(document: Any) -> Any:
    """Without what is the account's own."""
    if isinstance(document, dict):
        return {key: public(value) for key, value in document.items() if not str(key).startswith("_")}
    return [public(each) for each in document] if isinstance(document, list) else document


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class HttpAccount(AccountWithNodes):
    """An account whose API is HTTP. `answer_headers` go with each answer; `hidden`: fields of bodies whose
    values the log does not get. `errors`: the module of its refusals; `routes`: those of its API."""

    answer_headers: ClassVar[Mapping[str, str]] = {}
    hidden: ClassVar[frozenset[str]] = frozenset()
    errors: ClassVar[ModuleType]
    routes: ClassVar[Routes]

    def denied_call(self, call: IncomingCall) -> Refusal:
        return self.errors.forbidden()

    def injected_failure(self, failure: Failure, call: IncomingCall) -> Refusal:
        return self.errors.injected(failure.code, failure.message)

    def throttled(self, call: IncomingCall) -> Refusal:
        return self.errors.too_many_requests()

    def route_of(self, method: str, path: str) -> tuple[Route, str]:
        """The route of a path, and the id in it, empty without. Raises HttpRefusal."""
        found, parts = self.routes.matching(method, path)
        return found, parts.get("id", "")

    @abstractmethod
    def check_caller(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> None:
        """Who calls. Raises HttpRefusal."""

    def after_refusal(self, refusal: Refusal) -> None:
        """Nothing is left."""

    def request(
        self, method: str, path: str, query_text: str, body: Any, headers: Mapping[str, str]
    ) -> Answer:
        """One call; names of headers in small letters. Raises HttpRefusal, and AnswerLost where it was done
        and nobody is told."""
        query = dict(parse_qsl(query_text))
        route, resource = self.route_of(method, path)
        call = IncomingCall(
            service="graphql" if path == "/graphql" else "rest",
            action=route.action,
            region="",
            caller=headers.get("user-agent", ""),
            params={"id": resource, **query, **self._shown(body)},
        )

        def effect() -> Doc:
            self.check_caller(method, path, query_text, headers)
            answer = route.function(Request(self, route.action, resource, query, body))
            return {"status": answer.status, "document": public(answer.document)}

        told = self.perform(call, effect)
        if self.answer_is_lost:
            raise AnswerLost
        return Answer(told["status"], told["document"])

    def _shown(self, body: Any) -> Doc:
        if not isinstance(body, dict):
            return {}
        return {
            key: value
            if key not in self.hidden
            else dict.fromkeys(value, "…")
            if isinstance(value, dict)
            else "…"
            for key, value in body.items()
        }


class Account(Protocol):
    """What is served. `answer_headers` go with each answer."""

    answer_headers: ClassVar[Mapping[str, str]]

    @property
    def path(self) -> Path: ...

    def request(
        self, method: str, path: str, query_text: str, body: Any, headers: Mapping[str, str]
    ) -> Answer:
        """One call; names of headers in small letters. Raises HttpRefusal, and AnswerLost where it was done
        and nobody is told."""
        ...


class HttpService:
    """Serves an account at `url`, on the loopback interface alone, until it is stopped."""

    def __init__(self, cloud: Account) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(cloud))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="cloud", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(cloud: Account) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Calls are in the account's own log."""

        def _serve(self) -> None:
            url = urlsplit(self.path)
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                body = json.loads(text) if text else None
            except ValueError:
                self._send(400, {"title": "Bad Request", "status": 400, "detail": "body is not JSON"}, {})
                return
            try:
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = cloud.request(self.command, url.path, url.query, body, headers)
            except AnswerLost:
                self.close_connection = True
            except HttpRefusal as error:
                self._send(error.status, error.document(), error.headers)
            else:
                self._send(answer.status, answer.document, {})

        def _send(self, status: int, document: Any, headers: dict[str, str]) -> None:
            data = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            sent = {"Content-Type": "application/json", **cloud.answer_headers, **headers}
            for name, value in sent.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    return Handler


_SERVED: dict[tuple[int, Path], HttpService] = {}
"""By process and account: a service does not live on in a fork."""


def url_of(cloud: Account) -> str:
    """Where this process serves an account; one service for each."""
    key = os.getpid(), cloud.path.resolve()
    if key not in _SERVED:
        _SERVED[key] = HttpService(cloud)
    return _SERVED[key].url
