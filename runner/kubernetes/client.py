"""Calls of an API server: documents in, documents out, each refusal an error by its cause (`errors.py`).

Paths are the API's own ("/apis/batch/v1/namespaces/x/jobs/y"; `api_path` makes them). A request that is
certainly not done is made again within limits: one that could not be sent, a read that broke, one that the
server puts off (429). What may have been done is not repeated, but for what comes to the same when done twice
(apply).
"""

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
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from orch.runner.kubernetes.errors import (
    ApiRefusal,
    CertificateRefused,
    ClusterUnreachable,
    Expired,
    Forbidden,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    shortened,
)
from orch.runner.kubernetes.identity import identity_of
from orch.runner.kubernetes.login import Credentials, Login, log_in
from orch.runner.kubernetes.reach import CONNECT_S, connection_pools, unreachable
from orch.runner.kubernetes.refusals import Asked, refusal, status_document
from orch.spec.cursors import follow

Doc = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"

FIELD_MANAGER = "orch"
PAGE = 500
"""Objects of one page of a list."""

ANSWER_S = 60.0
"""The longest wait for an answer; an API server ends a request itself after 60 s."""
PATIENCE_S = 30.0
"""How long a request is tried again where it is certainly not done."""
REFUSED_S = 3.0
"""The same where no connection comes about to a server that has not answered yet: one that has is only
restarting."""
WATCH_S = 300
"""How long one request of a watch lasts. Bookmarks come every minute or so."""
SILENT_S = WATCH_S + 30.0
LONGEST_DOCUMENT = 256 << 20

_HEADERS = {"User-Agent": "orch", "Accept": "application/json"}


def api_path(
    version: str, resource: str, namespace: str | None = None, name: str | None = None, *more: str
) -> str:
    """The path of objects ("v1", "pods"; "batch/v1", "jobs"), of one of them, or of a part of one ("log")."""
    words = ["apis" if "/" in version else "api", *version.split("/")]
    if namespace is not None:
        words += ["namespaces", namespace]
    words.append(resource)
    words += [] if name is None else [name, *more]
    return "/" + "/".join(quote(word, safe="") for word in words)


class KubernetesClient:
    """A client of one cluster as one user. Thread-safe; connections are kept."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self._guard = threading.Lock()
        self._pools: tuple[object, urllib3.PoolManager] | None = None
        self._closed = False
        self._ahead = timedelta()
        self._answered = False

    @classmethod
    def open(cls, kubeconfig: str | None = None, context: str | None = None) -> KubernetesClient:
        """A client for a context of a kubeconfig (`login.log_in`). Raises BadKubeconfig."""
        return cls(log_in(kubeconfig, context))

    def close(self) -> None:
        with self._guard:
            pools, self._pools, self._closed = self._pools, None, True
        if pools is not None:
            pools[1].clear()

    def now(self) -> datetime:
        """The time by the API server's clock, to the second, as its last answer had it: that of this machine
        where it has said nothing."""
        return datetime.now(timezone.utc) + self._ahead

    def get(self, path: str, **query: str) -> Doc:
        """A document. Raises NotFound and the other KubernetesErrors, as all calls do."""
        return self._document("GET", path, query)

    def look(self, path: str, timeout_s: float) -> Doc:
        """The same, asked once, for a caller with a patience of its own."""
        return self._document("GET", path, {}, within_s=timeout_s)

    def find(self, path: str, **query: str) -> Doc | None:
        """The same, None where there is none, or no such kind of objects."""
        try:
            return self.get(path, **query)
        except NotFound:
            return None

    def identity(self) -> str:
        """Return the identity of the cluster (`identity.py`), as far as this user may read it."""
        try:
            found = self.find(api_path("v1", "namespaces", name="kube-system"))
        except Forbidden:
            found = None
        uid = str(((found or {}).get("metadata") or {}).get("uid") or "")
        return identity_of(uid or None, self.login.cluster)

    def items(self, path: str, **query: str) -> list[Doc]:
        """All objects of a list, asked for 500 at a time; anew where it changed too much to be read on."""
        for anew in (False, True):
            try:
                return [row for page in self._pages(path, query) for row in page.get("items") or []]
            except Expired:
                if anew:
                    raise
        raise AssertionError("a list is read twice at most")

    def apply(self, path: str, document: Mapping[str, Any], **query: str) -> Doc:
        """Make the object at `path` have these fields (server-side apply), as field manager `orch`.

        Raises ManagedByOthers where other managers have given a field another value: nothing is forced.
        """
        words = {"fieldManager": FIELD_MANAGER, "force": "false", "fieldValidation": "Strict", **query}
        return self._document("PATCH", path, words, document, APPLY)

    def create(self, path: str, document: Mapping[str, Any], **query: str) -> Doc:
        """A new object in the list at `path`. Raises Conflict where there is one of the name."""
        words = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", **query}
        return self._document("POST", path, words, document)

    def patch(self, path: str, document: Any, kind: str = MERGE, **query: str) -> Doc:
        """Change an object. Raises Conflict where the document names a version that is no longer the last."""
        return self._document("PATCH", path, {"fieldManager": FIELD_MANAGER, **query}, document, kind)

    def delete(
        self,
        path: str,
        *,
        propagation: str = "Foreground",
        uid: str | None = None,
        grace_s: int | None = None,
        **query: str,
    ) -> Doc | None:
        """Delete an object, with what it owns as `propagation` says (Foreground, Background, Orphan).

        None where there is none, or where it is another one than `uid` (of the same name).
        """
        options: Doc = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            return self._document("DELETE", path, query, options)
        except NotFound:
            return None
        except ApiRefusal as error:
            if uid is not None and error.status == 409:
                return None
            raise

    def can(
        self,
        verb: str,
        resource: str,
        *,
        group: str = "",
        namespace: str | None = None,
        subresource: str = "",
        name: str = "",
    ) -> bool:
        """Whether this user may do it (SelfSubjectAccessReview). `namespace` None: in the whole cluster."""
        wanted = {
            "verb": verb,
            "resource": resource,
            "group": group,
            "namespace": namespace or "",
            "subresource": subresource,
            "name": name,
        }
        answer = self._review(
            "selfsubjectaccessreviews", "SelfSubjectAccessReview", {"resourceAttributes": wanted}
        )
        return (answer.get("status") or {}).get("allowed") is True

    def rules(self, namespace: str) -> list[Doc]:
        """The rules that hold for this user in a namespace (SelfSubjectRulesReview), as far as the cluster's
        authorizers can list them: rows of `verbs`, `apiGroups`, `resources`, `resourceNames`."""
        answer = self._review("selfsubjectrulesreviews", "SelfSubjectRulesReview", {"namespace": namespace})
        return list((answer.get("status") or {}).get("resourceRules") or [])

    def read_log(
        self,
        namespace: str,
        pod: str,
        *,
        container: str | None = None,
        follow: bool = False,
        since: datetime | int | None = None,
        timestamps: bool = False,
        limit_bytes: int | None = None,
        tail_lines: int | None = None,
        previous: bool = False,
        until: threading.Event | None = None,
    ) -> Iterator[bytes]:
        """A container's log as it comes, in pieces of any size; `timestamps`: the node stamps each line.

        `since`: a time, or so many seconds ago. With `follow` it goes on until the container ends, `until` is
        set, or the iterator is closed. A stream that breaks raises ClusterUnreachable: what came is whole
        lines and perhaps a part of one.
        """
        query: dict[str, str] = {"follow": "true"} if follow else {}
        if container is not None:
            query["container"] = container
        if isinstance(since, datetime):
            query["sinceTime"] = since.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        elif since is not None:
            query["sinceSeconds"] = str(max(1, since))
        for name, number in (("limitBytes", limit_bytes), ("tailLines", tail_lines)):
            if number is not None:
                query[name] = str(number)
        for name, flag in (("timestamps", timestamps), ("previous", previous)):
            if flag:
                query[name] = "true"
        path = api_path("v1", "pods", namespace, pod, "log")
        # Some lines of a follower may be hours apart; the connection's keep-alive finds a lost one.
        with self._stream(path, query, until, None if follow else ANSWER_S) as pieces:
            yield from pieces

    def watch(
        self, path: str, until: threading.Event, *, version: str | None = None, **query: str
    ) -> Iterator[tuple[str, Doc]]:
        """The list at `path` as `("SYNC", list)`, then each change as ADDED, MODIFIED or DELETED, until the
        event is set.

        A connection that breaks is made again where it was; where the cluster no longer knows the version
        (410), the list is told anew by SYNC, and what is not in it is gone. `version`: go on from there,
        without a list. Raises what refuses it for good, such as Forbidden; a server that does not answer is
        waited for.
        """
        pause = 0.5
        while not until.is_set():
            try:
                if version is None:
                    listed = self._listed(path, query)
                    version = str((listed.get("metadata") or {}).get("resourceVersion") or "")
                    yield "SYNC", listed
                words = {
                    **query,
                    "watch": "true",
                    "resourceVersion": version,
                    "allowWatchBookmarks": "true",
                    "timeoutSeconds": str(WATCH_S),
                }
                began = time.monotonic()
                with self._stream(path, words, until, SILENT_S) as pieces:
                    for line in _lines(pieces):
                        event = json.loads(line)
                        kind, document = str(event.get("type")), event.get("object") or {}
                        if kind == "ERROR":
                            raise refusal(
                                self._asked("GET", path), int(document.get("code") or 500), document
                            )
                        version = str((document.get("metadata") or {}).get("resourceVersion") or version)
                        pause = 0.5
                        if kind != "BOOKMARK":
                            yield kind, document
                if time.monotonic() - began < 1.0:  # a server that ends each watch at once
                    until.wait(pause)
                    pause = min(pause * 2, 15.0)
            except Expired:
                version = None
            except (ClusterUnreachable, ServerError, TooManyRequests, ValueError) as error:
                if isinstance(error, CertificateRefused):
                    raise
                until.wait(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, 15.0)

    def _listed(self, path: str, query: Mapping[str, str]) -> Doc:
        """A whole list, with the version that a watch goes on from: that of its first page."""
        first, *others = self._pages(path, query)
        rows = [row for page in (first, *others) for row in page.get("items") or []]
        version = (first.get("metadata") or {}).get("resourceVersion")
        return {**first, "items": rows, "metadata": {"resourceVersion": version}}

    def _pages(self, path: str, query: Mapping[str, str]) -> Iterator[Doc]:
        """The pages of a list. Raises KubernetesErrors, ServerError for one that does not end."""

        def ask(token: str) -> Doc:
            return self.get(path, **{"limit": str(PAGE), **query, **({"continue": token} if token else {})})

        def endless(why: str) -> ServerError:
            hint = "is `server` of the kubeconfig an API server of Kubernetes?"
            asked = f"{why}, to GET {path}"
            where = self.login.where
            return ServerError(
                "the cluster answers otherwise than its API", where=where, detail=asked, hint=hint
            )

        return follow(ask, lambda page: (page.get("metadata") or {}).get("continue"), endless)

    def _review(self, resource: str, kind: str, spec: Mapping[str, Any]) -> Doc:
        version = "authorization.k8s.io/v1"
        document = {"apiVersion": version, "kind": kind, "spec": spec}
        return self._document("POST", api_path(version, resource), {}, document)

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

    def _once(  # noqa: PLR0917
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


def _retry_after(answer: urllib3.BaseHTTPResponse) -> float:
    """Seconds that the server asks to wait; 0 where it says nothing that can be read."""
    with suppress(ValueError, TypeError):
        return max(0.0, float(answer.headers.get("Retry-After", "0")))
    return 0.0


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = bytearray()
    for piece in pieces:
        rest += piece
        if b"\n" in piece:
            *whole, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            yield from (line for line in whole if line.strip())
