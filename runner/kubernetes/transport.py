"""Requests to an API server: sent again within limits where they are certainly not done.

That is one that could not be sent, a read that broke, one that the server puts off (429). What may have been
done is not repeated, but for what comes to the same when done twice (apply)."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from orch.runner.kubernetes.errors import (
    ApiRefusal,
    CertificateRefused,
    ClusterUnreachable,
    ServerError,
    TooManyRequests,
    Unauthorized,
    shortened,
)
from orch.runner.kubernetes.login import Credentials, Login
from orch.runner.kubernetes.reach import CONNECT_S, connection_pools, unreachable
from orch.runner.kubernetes.refusals import Asked, refusal, status_document

Doc = dict[str, Any]

APPLY = "application/apply-patch+yaml"

ANSWER_S = 60.0
"""The longest wait for an answer; an API server ends a request itself after 60 s."""
PATIENCE_S = 30.0
"""How long a request is tried again where it is certainly not done."""
REFUSED_S = 3.0
"""The same where no connection comes about to a server that has not answered yet: one that has is only
restarting."""

LONGEST_DOCUMENT = 256 << 20

_HEADERS = {"User-Agent": "orch", "Accept": "application/json"}


def _retry_after(answer: urllib3.BaseHTTPResponse) -> float:
    """Seconds that the server asks to wait; 0 where it says nothing that can be read."""
    with suppress(ValueError, TypeError):
        return max(0.0, float(answer.headers.get("Retry-After", "0")))
    return 0.0


class Transport:
    """Requests to one cluster as one user. Thread-safe; connections are kept."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self._guard = threading.Lock()
        self._pools: tuple[object, urllib3.PoolManager] | None = None
        self._closed = False
        self._ahead = timedelta()
        self._answered = False

    def close(self) -> None:
        with self._guard:
            pools, self._pools, self._closed = self._pools, None, True
        if pools is not None:
            pools[1].clear()

    def now(self) -> datetime:
        """The time by the API server's clock, to the second, as its last answer had it: that of this machine
        where it has said nothing."""
        return datetime.now(timezone.utc) + self._ahead

    def _asked(self, method: str, path: str) -> Asked:
        return Asked(method, path, self.login.where, self.login.user)

    def _document(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        document: Any = None,
        kind: str = "application/json",
        *,
        within_s: float | None = None,
    ) -> Doc:
        body = None if document is None else json.dumps(document).encode()
        answer = self._ask(method, path, query, body, kind, within_s=within_s)
        try:
            content = answer.read(LONGEST_DOCUMENT + 1, decode_content=True)
        except (HTTPError, OSError) as error:
            raise self._unreachable(error) from error
        finally:
            answer.release_conn()
        try:
            found = json.loads(content) if content else {}
            if not isinstance(found, dict):
                raise ValueError("no object")
        except ValueError as error:
            raise ServerError(
                "what answers is no API server of Kubernetes",
                where=self.login.where,
                status=answer.status,
                detail=f"to {method} {path} it says: {shortened(content[:200].decode(errors='replace'))}",
                hint="is `server` of the kubeconfig its address, or does a proxy in between want a login?",
            ) from error
        return found

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes | None = None,
        kind: str = "application/json",
        *,
        answer_s: float | None = ANSWER_S,
        until: threading.Event | None = None,
        within_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """An answer whose body is still to be read. Raises KubernetesError for one that refuses.

        `within_s`: ask once, and give up after so long.
        """
        began = time.monotonic()
        ends = began + (PATIENCE_S if within_s is None else 0.0)
        pause = 0.2
        shown: Credentials | None = None
        twice = method == "GET" or kind == APPLY
        while True:
            wait = pause * random.uniform(0.5, 1.0)
            pause = min(pause * 2, 5.0)
            try:
                wait_s = (CONNECT_S, answer_s) if within_s is None else (within_s, within_s)
                credentials, answer = self._once(method, path, query, body, kind, wait_s, shown)
            except ClusterUnreachable as error:
                sent = not isinstance(error.__cause__, (NewConnectionError, ConnectTimeoutError))
                final = isinstance(error, CertificateRefused) or (sent and not twice) or self._closed
                if isinstance(error.__cause__, NewConnectionError) and not self._answered:
                    ends = min(ends, began + REFUSED_S)
                if final or time.monotonic() + wait > ends:
                    raise
            else:
                if answer.status < 400:
                    return answer
                error = self._refused(method, path, answer)
                if isinstance(error, Unauthorized) and shown is None:
                    # Credentials that were taken away early are fetched again, once.
                    shown, wait = credentials, 0.0
                    if self.login.credentials(refused=credentials) is credentials:
                        raise error
                elif isinstance(error, TooManyRequests):
                    wait = max(wait, _retry_after(answer))
                elif not (twice and error.status in (500, 502, 503, 504) and "webhook" not in error.summary):
                    raise error
                if wait and time.monotonic() + wait > ends:
                    raise error
            if until is not None:
                if until.wait(wait):
                    raise ClusterUnreachable("nobody waits for the answer", where=self.login.where)
            else:
                time.sleep(wait)

    def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes | None,
        kind: str,
        wait_s: tuple[float, float | None],
        refused: Credentials | None,
    ) -> tuple[Credentials, urllib3.BaseHTTPResponse]:
        credentials = self.login.credentials(refused=refused)
        headers = dict(_HEADERS)
        if credentials.authorization is not None:
            headers["Authorization"] = credentials.authorization
        if body is not None:
            headers["Content-Type"] = kind
        pools = self._manager()
        url = self.login.cluster.server + path + (f"?{urlencode(query)}" if query else "")
        try:
            answer = pools.urlopen(
                method,
                url,
                body=body,
                headers=headers,
                preload_content=False,
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(connect=wait_s[0], read=wait_s[1]),
            )
        except (HTTPError, OSError) as error:
            raise self._unreachable(error) from error
        self._set_clock(answer.headers.get("Date"))
        self._answered = True
        return credentials, answer

    def _set_clock(self, told: str | None) -> None:
        """Note by how much the server's clock is ahead, by the date of an answer (RFC 9110, 6.6.1)."""
        with suppress(ValueError, TypeError):
            ahead = parsedate_to_datetime(told or "") - datetime.now(timezone.utc)
            # Within the second that a date leaves open, the clocks agree.
            self._ahead = timedelta() if abs(ahead) < timedelta(seconds=2) else ahead

    def _refused(self, method: str, path: str, answer: urllib3.BaseHTTPResponse) -> ApiRefusal:
        body = b""
        with suppress(HTTPError, OSError):
            body = answer.read(1 << 20, decode_content=True)
        answer.close()
        return refusal(self._asked(method, path), answer.status, status_document(body))

    def _manager(self) -> urllib3.PoolManager:
        """The connections, new ones where the certificate that they show has changed."""
        tls = self.login.tls()
        with self._guard:
            kept = self._pools
            if self._closed:
                raise ClusterUnreachable("the client is closed", where=self.login.where)
            if kept is None or kept[0] is not tls:
                kept = self._pools = (tls, connection_pools(self.login, tls))
            return kept[1]

    def _unreachable(self, error: BaseException) -> ClusterUnreachable:
        return unreachable(self.login, error)

    @contextmanager
    def _stream(
        self, path: str, query: Mapping[str, str], until: threading.Event | None, silent_s: float | None
    ) -> Iterator[Iterator[bytes]]:
        """The body of an answer, piece by piece as it comes; it ends when `until` is set."""
        answer = self._ask("GET", path, query, answer_s=silent_s, until=until)
        left = threading.Event()

        def pieces() -> Iterator[bytes]:
            try:
                while piece := answer.read1(1 << 16, decode_content=True):
                    yield piece
            except (HTTPError, OSError, ValueError) as error:
                if not (until is not None and until.is_set()):
                    raise self._unreachable(error) from error

        def end() -> None:
            while not left.wait(0.1):
                if until is not None and until.is_set():
                    with suppress(Exception):
                        answer.shutdown()
                    return

        guard = threading.Thread(target=end, name="orch-watch", daemon=True) if until is not None else None
        if guard is not None:
            guard.start()
        try:
            yield pieces()
        finally:
            left.set()
            if guard is not None:
                guard.join(5.0)
            # What is left of the stream is not read: the connection ends with it.
            answer.close()
