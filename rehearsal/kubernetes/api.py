"""Calls of an API server, as those who run a cluster make them: documents in, documents out."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

Doc = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class ApiError(Exception):
    """A refusal: the API server's status document. `reason`: NotFound, AlreadyExists, Conflict …"""

    def __init__(self, status: int, document: Doc) -> None:
        super().__init__(str(document.get("message") or f"HTTP {status}"))
        self.status, self.reason = status, str(document.get("reason", ""))


class Api:
    """A client by the current context of a kubeconfig. Thread-safe."""

    def __init__(self, kubeconfig: Path) -> None:
        document = yaml.safe_load(kubeconfig.read_text("utf-8"))
        contexts = {row["name"]: row["context"] for row in document["contexts"]}
        context = contexts[document["current-context"]]
        cluster = next(row["cluster"] for row in document["clusters"] if row["name"] == context["cluster"])
        user = next(row["user"] for row in document["users"] if row["name"] == context["user"])
        if "certificate-authority-data" in cluster:
            text = base64.b64decode(cluster["certificate-authority-data"]).decode()
            trusted = ssl.create_default_context(cadata=text)
        else:
            trusted = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._http = httpx.Client(
            base_url=cluster["server"],
            headers={"Authorization": f"Bearer {user['token']}"},
            verify=trusted,
            timeout=30.0,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **query: str) -> Doc:
        """Raises ApiError."""
        return self._call("GET", path, query)

    def find(self, path: str) -> Doc | None:
        """The document, None where there is none. Raises ApiError."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **query: str) -> list[Doc]:
        """All documents of a list, asked for 500 at a time. Raises ApiError."""
        rows: list[Doc] = []
        while True:
            answer = self.get(path, limit="500", **query)
            rows += answer["items"]
            more = answer["metadata"].get("continue")
            if not more:
                return rows
            query["continue"] = more

    def create(self, path: str, document: Mapping[str, Any]) -> Doc:
        return self._call("POST", path, {}, document)

    def replace(self, path: str, document: Mapping[str, Any]) -> Doc:
        return self._call("PUT", path, {}, document)

    def patch(self, path: str, document: Any, kind: str = MERGE, **query: str) -> Doc:
        return self._call("PATCH", path, query, document, kind)

    def delete(self, path: str, **options: Any) -> Doc:
        return self._call("DELETE", path, {}, {"kind": "DeleteOptions", "apiVersion": "v1", **options})

    def remove(self, path: str, **options: Any) -> None:
        """Delete what may be gone already."""
        try:
            self.delete(path, **options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def watch(self, path: str, until: threading.Event, **query: str) -> Iterator[tuple[str, Doc]]:
        """What is there, each as ADDED, then what changes, until the event is set; begun anew if it breaks.

        A list that was begun anew is told of by `("SYNC", list)`: what is not in it is gone.
        """
        while not until.is_set():
            try:
                listed = self.get(path, **query)
                yield "SYNC", listed
                version = listed["metadata"]["resourceVersion"]
                words = {**query, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
                with self._http.stream(
                    "GET", path, params=words, timeout=httpx.Timeout(30.0, read=300.0)
                ) as answer:
                    for line in answer.iter_lines():
                        if until.is_set():
                            return
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        if event["type"] != "BOOKMARK":
                            yield event["type"], event["object"]
            except (httpx.HTTPError, ApiError, json.JSONDecodeError):
                until.wait(0.5)

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        document: Any = None,
        kind: str = "application/json",
    ) -> Doc:
        content = None if document is None else json.dumps(document).encode()
        headers = {"Content-Type": kind} if content is not None else {}
        try:
            answer = self._http.request(method, path, params=dict(query), content=content, headers=headers)
        except httpx.HTTPError as error:  # it stands still, or is not there now
            raise ApiError(0, {"message": f"the API server does not answer: {error}"}) from error
        body: Doc = answer.json() if answer.content else {}
        if answer.status_code >= 400:
            raise ApiError(answer.status_code, body)
        return body
