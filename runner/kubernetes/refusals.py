"""What an API server refuses: the error for each of its status documents, by its cause."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orch.runner.kubernetes.errors import (
    AdmissionDenied,
    ApiRefusal,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    ManagedByOthers,
    NotFound,
    QuotaExceeded,
    ServerError,
    TooManyRequests,
    Unauthorized,
    UnknownApi,
    shortened,
)

NO_PATH = "404 page not found"
"""What an API server answers for a group or version that is not installed: the one refusal of its own that is
no status document. Source: k8s.io/apiserver, pkg/endpoints/handlers and net/http, NotFoundHandler."""

_DENIED_BY = re.compile(
    r'admission webhook "([^"]+)" denied the request(?: without explanation)?:? ?(.*)', re.S
)
_POLICY = re.compile(r"ValidatingAdmissionPolicy '([^']+)'.* denied request: (.*)", re.S)
_QUOTA = re.compile(r"exceeded quota: ([^,]+), (.*)", re.S)
_WHO = re.compile(r'User "([^"]*)"')
_CANNOT = re.compile(r'cannot (\w+) resource "([^"]+)"|[Uu]ser "|RBAC')
_MANAGER = re.compile(r'conflict with "([^"]*)"')


@dataclass(frozen=True)
class Asked:
    """What was asked of an API server, for the message of a refusal."""

    method: str
    path: str
    where: str
    user: str = ""

    @property
    def verb(self) -> str:
        """Kubernetes' word for it."""
        if self.method == "GET":
            return "get" if self.target.name else "list"
        return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(
            self.method, self.method.lower()
        )

    @property
    def target(self) -> Target:
        return Target.of(self.path)


@dataclass(frozen=True)
class Target:
    """What a path of the API leads to; empty where it has no such part."""

    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @classmethod
    def of(cls, path: str) -> Target:
        words = [word for word in path.partition("?")[0].split("/") if word]
        if words[:1] == ["api"]:
            group, rest = "", words[2:]
        elif words[:1] == ["apis"]:
            group, rest = "".join(words[1:2]), words[3:]
        else:
            return cls()
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        resource, name, *more = [*rest, "", ""]
        return cls(group, resource, namespace, name, next((word for word in more if word), ""))

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        words = f"{resource} {self.name}".strip() or "the API"
        if self.subresource:
            words = f"{self.subresource} of {words}"
        return f"{words} in namespace {self.namespace}" if self.namespace else words


def status_document(body: bytes) -> Mapping[str, Any]:
    """The status document of an answer; one with the text alone where the answer is none."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and document.get("kind") == "Status":
        return document
    return {"message": shortened(body.decode(errors="replace"))}


def refusal(asked: Asked, status: int, document: Mapping[str, Any]) -> ApiRefusal:
    """The error for a status document (v1.Status) of an API server, by its cause.

    Sources of the texts: k8s.io/apimachinery api/errors, apiserver admission (webhook, quota, pod security).
    """
    message, reason = shortened(document.get("message")), str(document.get("reason") or "")
    target, where = asked.target, asked.where
    words: dict[str, Any] = {"where": where, "status": status, "reason": reason}
    causes = _causes(document)
    if status == 401:
        return Unauthorized(
            "the cluster does not accept your credentials",
            detail=message,
            hint="log in again as your cluster's provider says, or choose another context; "
            "`kubectl auth whoami` asks the same",
            **words,
        )
    denied = _admission_denied(target, status, message, causes, words)
    if denied is not None:
        return denied
    if status == 403:
        return _forbidden(asked, message, words)
    if status == 404:
        return _not_found(asked, message, document, words)
    if status == 409:
        return _conflict(target, message, causes, words)
    if status == 410:
        return Expired(f"the cluster no longer knows this version of {target}", detail=message, **words)
    if status in (400, 413, 415, 422):
        fields = tuple((field, text) for _, field, text in causes)
        return Invalid(
            f"the cluster takes no such {target}",
            fields=fields,
            detail="\n".join(f"{field}: {text}" if field else text for field, text in fields) or message,
            hint="does the cluster know these fields in its version?" if "unknown field" in message else None,
            **words,
        )
    if status == 429:
        return TooManyRequests(
            "the cluster's API server asks for patience",
            detail=message,
            hint="it has too many requests at once: try again in a minute",
            **words,
        )
    if status >= 500:
        return _server_error(target, status, message, words)
    return ApiRefusal(
        f"the cluster answers {status} to {asked.verb} {target}",
        detail=message,
        hint="is the server of the kubeconfig an API server of Kubernetes?",
        **words,
    )


def _admission_denied(
    target: Target, status: int, message: str, causes: Sequence[tuple[str, str, str]], words: dict[str, Any]
) -> ApiRefusal | None:
    """Return the error of what admits requests, though the user may make them; None for another cause."""
    if found := _DENIED_BY.search(message):
        return AdmissionDenied(
            f"an admission webhook of the cluster refuses {target}",
            by=found.group(1),
            detail=f"{found.group(1)}: {found.group(2).strip() or 'no reason given'}",
            hint="change what it refuses, or ask who runs the cluster about this webhook",
            **words,
        )
    if found := _POLICY.search(message):
        return AdmissionDenied(
            f"an admission policy of the cluster refuses {target}",
            by=found.group(1),
            detail=f"{found.group(1)}: {found.group(2).strip()}",
            hint="change what it refuses, or ask who runs the cluster about this policy",
            **words,
        )
    if "violates PodSecurity" in message:
        return AdmissionDenied(
            f"the pod security level of the namespace refuses {target}",
            by="PodSecurity",
            detail=message,
            hint="take a namespace whose pod-security.kubernetes.io/enforce permits it, or ask for less",
            **words,
        )
    if status == 403 and (found := _QUOTA.search(message)):
        return QuotaExceeded(
            f"quota {found.group(1).strip()} leaves no room for {target}",
            detail=found.group(2).strip(),
            hint=f"`kubectl -n {target.namespace or 'NAMESPACE'} describe quota` shows who uses it; "
            "ask for less, wait, or have it raised",
            **words,
        )
    if any(kind == "NamespaceTerminating" for kind, _, _ in causes):
        return AdmissionDenied(
            f"namespace {target.namespace} is being deleted: nothing can be made in it",
            by="NamespaceLifecycle",
            detail=message,
            hint=f"wait until `kubectl get namespace {target.namespace}` finds none; `orch up` makes it anew",
            **words,
        )
    if status == 403 and "is forbidden: " in message and not _CANNOT.search(message):
        return AdmissionDenied(
            f"the cluster refuses {target}",
            detail=message,
            hint="change what it refuses, or ask who runs the cluster",
            **words,
        )
    return None


def _not_found(asked: Asked, message: str, document: Mapping[str, Any], words: dict[str, Any]) -> ApiRefusal:
    target = asked.target
    if document.get("kind") != "Status" and message != NO_PATH:
        return ServerError(
            "what answers is no API server of Kubernetes",
            detail=f"to {asked.method} {asked.path} it says 404: {message}",
            hint="is `server` of the kubeconfig its address, or does a proxy in between want a login?",
            **words,
        )
    if words["reason"] == "NotFound" and (document.get("details") or {}).get("name"):
        return NotFound(f"there is no {target}", detail=message, **words)
    return UnknownApi(
        f"the cluster has no {target}",
        detail=message,
        hint="is what brings this kind installed, in this version?",
        **words,
    )


def _forbidden(asked: Asked, message: str, words: dict[str, Any]) -> ApiRefusal:
    target = asked.target
    who = found.group(1) if (found := _WHO.search(message)) else asked.user or "this user"
    resource = f"{target.resource}/{target.subresource}" if target.subresource else target.resource
    scope = f" in namespace {target.namespace}" if target.namespace else ""
    group = f' of API group "{target.group}"' if target.group else ""
    verb = asked.verb
    if found := re.search(r'cannot (\w+) resource "([^"]+)"', message):
        verb, resource = found.group(1), found.group(2)
    elif not resource:
        resource = asked.path
    return Forbidden(
        f"{who} may not {verb} {resource}{group}{scope}",
        detail=message,
        hint=f"whoever runs the cluster grants it: a {'Role' if target.namespace else 'ClusterRole'} with "
        f"`{verb}` on `{resource}`, bound to {who}",
        **words,
    )


def _conflict(
    target: Target, message: str, causes: list[tuple[str, str, str]], words: dict[str, Any]
) -> ApiRefusal:
    managers: dict[str, list[str]] = {}
    for kind, field, text in causes:
        if kind == "FieldManagerConflict":
            found = _MANAGER.search(text)
            managers.setdefault(found.group(1) if found else "another manager", []).append(field)
    if managers:
        return ManagedByOthers(
            f"fields of {target} belong to {' and '.join(managers)}",
            managers=tuple((manager, tuple(fields)) for manager, fields in managers.items()),
            detail="\n".join(f"{manager}: {', '.join(fields)}" for manager, fields in managers.items()),
            hint="orch takes no fields from other managers: let them give these up, or name it another way",
            **words,
        )
    if words["reason"] == "AlreadyExists":
        return Conflict(f"there is {target} already", detail=message, **words)
    return Conflict(f"{target} was changed by another at the same time", detail=message, **words)


def _server_error(target: Target, status: int, message: str, words: dict[str, Any]) -> ApiRefusal:
    if found := re.search(r'failed calling webhook "([^"]+)"', message):
        return ServerError(
            f"the admission webhook {found.group(1)} of the cluster does not answer",
            detail=message,
            hint="is the program behind it up? Whoever runs the cluster can tell",
            **words,
        )
    return ServerError(
        f"the cluster's API server failed ({status})",
        detail=message or f"asked for {target}",
        hint="try again; if it stays, whoever runs the cluster finds why in the API server's log",
        **words,
    )


def _causes(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Reason, field and message of each cause."""
    details = document.get("details")
    rows = details.get("causes") if isinstance(details, Mapping) else None
    return [
        (str(row.get("reason") or ""), shortened(row.get("field")), shortened(row.get("message")))
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, Mapping)
    ]
