"""Calls of an API server: documents in, documents out, each refusal an error by its cause (`errors.py`).

Paths are the API's own ("/apis/batch/v1/namespaces/x/jobs/y"; `api_path` makes them).
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from orch.runner.kubernetes.errors import (
    ApiRefusal,
    CertificateRefused,
    ClusterUnreachable,
    Expired,
    Forbidden,
    NotFound,
    ServerError,
    TooManyRequests,
)
from orch.runner.kubernetes.identity import identity_of
from orch.runner.kubernetes.login import log_in
from orch.runner.kubernetes.refusals import refusal
from orch.runner.kubernetes.transport import APPLY, Doc, Transport
from orch.spec.cursors import follow

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

FIELD_MANAGER = "orch"
PAGE = 500
"""Objects of one page of a list."""

WATCH_S = 300
"""How long one request of a watch lasts. Bookmarks come every minute or so."""
SILENT_S = WATCH_S + 30.0


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


class KubernetesClient(Transport):
    """A client of one cluster as one user. Thread-safe; connections are kept."""

    @classmethod
    def open(cls, kubeconfig: str | None = None, context: str | None = None) -> KubernetesClient:
        """A client for a context of a kubeconfig (`login.log_in`). Raises BadKubeconfig."""
        return cls(log_in(kubeconfig, context))

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


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = bytearray()
    for piece in pieces:
        rest += piece
        if b"\n" in piece:
            *whole, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            yield from (line for line in whole if line.strip())
