"""A client of one API server: documents in, documents out, every refusal an error that says what to do.

Log-in, TLS and proxies are those of the kubeconfig, by the official client (`kubernetes`), which is imported
when the first call is made.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch.runner.kubernetes.errors import (
    ClusterUnknown,
    ClusterUnreachable,
    KubernetesError,
    LoginRefused,
    ObjectConflict,
    ObjectInvalid,
    ObjectMissing,
    PermissionMissing,
    QuotaExceeded,
)

Document = dict[str, Any]

MANAGER = "orch"
"""Our field manager: what we apply is ours, and what others manage we do not touch."""

PAGE = 500
CALL_S = 30.0
WATCH_S = 300
_CONFLICT = re.compile(r'conflict with "([^"]+)"[^:]*: (\S+)')


@dataclass(frozen=True)
class ClusterAccess:
    """How a cluster is logged in to. Neither `file` nor `text`: as `kubectl` does, or as a pod there.

    `context`: None for the current one. `folder`: what a relative path is relative to.
    """

    context: str | None = None
    file: str | None = None
    text: str | None = None
    folder: Path | None = None

    @property
    def words(self) -> str:
        return f"context {self.context}" if self.context else "the current context"


class KubernetesClient:
    """Thread-safe. Raises KubernetesError and its kinds from every call."""

    def __init__(self, access: ClusterAccess) -> None:
        self.access = access
        self._guard = threading.Lock()
        self._api: Any = None

    def get(self, path: str, **query: str) -> Document:
        return self._document("GET", path, query)

    def find(self, path: str) -> Document | None:
        """The object, None where there is none."""
        with suppress(ObjectMissing):
            return self.get(path)
        return None

    def items(self, path: str, **query: str) -> Iterator[Document]:
        """The objects of a list, which is asked for in pages."""
        words = {**query, "limit": str(PAGE)}
        while True:
            answer = self.get(path, **words)
            yield from answer.get("items", ())
            more = answer.get("metadata", {}).get("continue")
            if not more:
                return
            words["continue"] = more

    def apply(
        self, path: str, document: Mapping[str, Any], *, force: bool = False, dry_run: bool = False
    ) -> Document:
        """Make an object what the document says, as far as it says something (server-side apply).

        `force`: also where somebody else manages a field. Raises ObjectConflict with the owners otherwise.
        """
        query = {"fieldManager": MANAGER, "force": "true" if force else "false"}
        if dry_run:
            query["dryRun"] = "All"
        return self._document("PATCH", path, query, document, "application/apply-patch+yaml")

    def create(self, path: str, document: Mapping[str, Any], **query: str) -> Document:
        return self._document("POST", path, {"fieldManager": MANAGER, **query}, document)

    def merge(self, path: str, document: Mapping[str, Any]) -> Document:
        return self._document(
            "PATCH", path, {"fieldManager": MANAGER}, document, "application/merge-patch+json"
        )

    def delete(
        self, path: str, *, propagation: str = "Background", grace_s: int | None = None, uid: str = ""
    ) -> bool:
        """Delete an object; False where there was none. `uid`: only if it is that one."""
        options: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            self._document("DELETE", path, {}, options)
        except ObjectMissing:
            return False
        return True

    def may(self, verb: str, resource: str, *, group: str = "", namespace: str = "", name: str = "") -> bool:
        """Whether these credentials may do something (SelfSubjectAccessReview)."""
        main, _, sub = resource.partition("/")
        attributes = {
            "verb": verb,
            "group": group,
            "resource": main,
            "subresource": sub,
            "namespace": namespace,
            "name": name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(self._document("POST", path, {}, review)["status"]["allowed"])

    def lines(self, path: str, *, read_s: float | None = None, **query: str) -> Iterator[bytes]:
        """The lines of a streamed answer, with their ends as they come."""
        answer = self._call("GET", path, query, None, "application/json", timeout=(CALL_S, read_s))
        try:
            rest = b""
            for part in answer.stream(65536, decode_content=False):
                rows = (rest + part).splitlines(keepends=True)
                rest = rows.pop() if rows and not rows[-1].endswith(b"\n") else b""
                yield from rows
            if rest:
                yield rest
        except Exception as error:
            raise self._unreachable(path, error) from error
        finally:
            answer.close()
            answer.release_conn()

    def watch(self, path: str, version: str, **query: str) -> Iterator[tuple[str, Document]]:
        """Changes since a version of a list, for minutes. Raises ObjectConflict where that is too old."""
        words = {**query, "watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_S)}
        for line in self.lines(path, read_s=WATCH_S + CALL_S, **words):
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise self._refused("GET", path, int(event["object"].get("code", 500)), event["object"])
            yield event["type"], event["object"]

    def connection(self) -> Any:
        """The official client, for what it streams both ways."""
        with self._guard:
            if self._api is None:
                self._api = self._log_in()
            return self._api

    def close(self) -> None:
        with self._guard:
            if self._api is not None:
                self._api.close()
                self._api = None

    def _log_in(self) -> Any:
        from kubernetes import client, config
        from kubernetes.config import ConfigException

        access = self.access
        try:
            if access.text is not None:
                import yaml

                return config.new_client_from_config_dict(yaml.safe_load(access.text), context=access.context)
            if access.file is None and access.context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                configuration = client.Configuration()
                config.load_incluster_config(client_configuration=configuration)
                return client.ApiClient(configuration)
            path = None if access.file is None else Path(access.file).expanduser()
            if path is not None and access.folder is not None:
                path = access.folder / path
            return config.new_client_from_config(None if path is None else str(path), context=access.context)
        except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            raise ClusterUnknown(
                f"the kubeconfig does not lead to {access.words}",
                where=access.file,
                detail=str(error).strip() or type(error).__name__,
                hint="`kubectl config get-contexts` lists what it has; `kubeconfig` and `contexts` of the "
                "backend in orch.yml say which one orch uses",
            ) from error
        except Exception as error:
            if type(error).__module__.startswith("yaml"):
                raise ClusterUnknown(
                    "the kubeconfig is no YAML", where=access.file, detail=str(error)
                ) from error
            raise

    def _document(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        document: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> Document:
        answer = self._call(method, path, query, document, kind, timeout=CALL_S)
        try:
            body: Any = json.loads(answer.data or b"{}")
        except ValueError as error:
            raise ClusterUnreachable(
                f"what answers {self.access.words} is no Kubernetes API server",
                where=self._server(),
                hint="compare `server` of the kubeconfig with what `kubectl cluster-info` says",
            ) from error
        finally:
            answer.release_conn()
        return body if isinstance(body, dict) else {}

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        document: Mapping[str, Any] | None,
        kind: str,
        *,
        timeout: Any,
    ) -> Any:
        from kubernetes.client import ApiException

        headers = {"Accept": "application/json"}
        body: Any = None
        if document is not None:
            headers["Content-Type"] = kind
            body = json.dumps(document) if kind != "application/json" else document
        api = self.connection()
        try:
            return api.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=timeout,
            )
        except ApiException as error:
            answer: Any = {}
            with suppress(ValueError, TypeError):
                answer = json.loads(error.body or "")
            raise self._refused(
                method, path, int(error.status or 0), answer if isinstance(answer, dict) else {}
            ) from error
        except KubernetesError:
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in (
                "urllib3",
                "ssl",
                "socket",
            ) and not isinstance(error, OSError):
                raise
            raise self._unreachable(path, error) from error

    def _unreachable(self, path: str, error: Exception) -> KubernetesError:
        if isinstance(error, KubernetesError):
            return error
        return ClusterUnreachable(
            f"the API server of {self.access.words} does not answer",
            where=self._server() or path,
            detail=str(getattr(error, "reason", None) or error),
            hint="see that this machine reaches it: `kubectl get --raw /readyz`",
        )

    def _server(self) -> str | None:
        return None if self._api is None else str(self._api.configuration.host)

    def _refused(self, method: str, path: str, status: int, answer: Mapping[str, Any]) -> KubernetesError:
        """The error of a refusal: its status, and the API server's status document."""
        reason, message = str(answer.get("reason", "")), str(answer.get("message", "")) or f"HTTP {status}"
        told: dict[str, Any] = {
            "reason": reason,
            "status": status,
            "detail": message,
            "where": self._server(),
        }
        what = f"{_VERBS.get(method, method)} {object_of(path)}"
        if status == 401:
            return LoginRefused(
                f"the API server of {self.access.words} does not accept the credentials",
                hint="log in anew as `kubectl` needs it, too; a token may have expired",
                **told,
            )
        if status == 403 and "exceeded quota" in message:
            return QuotaExceeded(
                f"a quota of the namespace does not let orch {what}",
                hint="`kubectl describe resourcequota` shows it",
                **told,
            )
        if status == 403 and ("is forbidden: User" in message or "cannot" in message):
            return PermissionMissing(
                f"the credentials of {self.access.words} may not {what}",
                hint="docs/reference/kubernetes.md lists what orch needs; an administrator grants it by a "
                "RoleBinding",
                **told,
            )
        if status == 404:
            return ObjectMissing(f"{object_of(path)} is not there", **told)
        if status in (409, 410):
            owners = sorted({f"{field} is managed by {owner}" for owner, field in _CONFLICT.findall(message)})
            told["detail"] = "; ".join(owners) or message
            return ObjectConflict(f"somebody else changed {object_of(path)}", **told)
        if status in (400, 403, 422):
            return ObjectInvalid(f"the API server refuses to {what}", **told)
        return ClusterUnreachable(f"the API server failed to {what}", **told)


_VERBS: Mapping[str, str] = {
    "GET": "read",
    "POST": "create",
    "PATCH": "change",
    "PUT": "change",
    "DELETE": "delete",
}


def object_of(path: str) -> str:
    """What a path of the API names, for people: `jobs train of namespace ml`."""
    words = [word for word in path.partition("?")[0].split("/") if word]
    words = words[2:] if words[:1] == ["api"] else words[3:]
    namespace = ""
    if words[:1] == ["namespaces"] and len(words) > 2:
        namespace, words = f" of namespace {words[1]}", words[2:]
    return (" ".join(words) or "the API server") + namespace
