"""The definition of an API method: its id, its path, and what most methods need."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Literal, Protocol

from orch.rehearsal.gcp.api.errors import GcpError, invalid, not_found, required
from orch.rehearsal.gcp.data.tables import zones
from orch.rehearsal.scenario import Knobs
from orch.rehearsal.store import Doc, Store

API = "https://www.googleapis.com/compute/v1/"

NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1035, as each collection's `name` documents it."""

PACIFIC = timezone(timedelta(hours=-8))
"""The UTC offset of times in responses."""


def caller_of(project: str) -> str:
    """The e-mail of who calls, where the call has none: a service account of the project."""
    return f"rehearsal@{project}.iam.gserviceaccount.com"


class Account(Protocol):
    """The part of an account that rules use; `cloud.GcpCloud` is one."""

    seed: str
    store: Store

    def knobs_now(self) -> Knobs: ...

    def identity(self, first: str) -> str: ...

    def now(self) -> float: ...

    def note(self, event: Literal["born", "dead"], instance: str) -> None:
        """Remember an instance that came or went, for its container."""
        ...


@dataclass(frozen=True)
class Method:
    """One method. `mutates`: it responds with an operation."""

    id: str
    http: str
    segments: tuple[str, ...]
    function: Callable[[Request], Doc]
    mutates: bool

    @property
    def service(self) -> str:
        """`compute`, or `file` of Filestore."""
        return self.id.split(".")[0]

    @property
    def collection(self) -> str:
        return self.id.split(".")[1]

    @property
    def verb(self) -> str:
        return self.id.split(".")[2]

    @property
    def permission(self) -> str:
        """The IAM permission that the method needs."""
        return f"{self.service}.{self.collection}.{VERBS.get(self.verb, self.verb)}"

    def match(self, http: str, words: Sequence[str]) -> dict[str, str] | None:
        if http != self.http or len(words) != len(self.segments):
            return None
        parameters: dict[str, str] = {}
        for segment, word in zip(self.segments, words, strict=True):
            if segment.startswith("{"):
                parameters[segment[1:-1]] = word
            elif segment != word:
                return None
        return parameters


VERBS = {
    "insert": "create",
    "patch": "update",
    "wait": "get",
    "cancel": "update",
    "resize": "update",
    "aggregatedList": "list",
}

METHODS: list[Method] = []
"""The methods of the modules loaded so far."""


BEFORE: list[Callable[[Request], None]] = []
"""Functions that run before each method: they apply the passage of time."""


def before_each(function: Callable[[Request], None]) -> Callable[[Request], None]:
    """Register a function that runs before each method."""
    BEFORE.append(function)
    return function


@cache
def all_methods() -> Sequence[Method]:
    """The methods of every module of this package."""
    package = import_module("orch.rehearsal.gcp.api")
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    return METHODS


def method(
    name: str, http: str, path: str, *, mutates: bool | None = None, service: str = "compute"
) -> Callable[[Callable[[Request], Doc]], Callable[[Request], Doc]]:
    """Register a method of the API. `path` is relative to `projects/{project}/`.

    A method that mutates returns the resource that it changed, and the API responds with an operation.
    """

    def register(function: Callable[[Request], Doc]) -> Callable[[Request], Doc]:
        segments = ("projects", "{project}", *(part for part in path.split("/") if part))
        changes = http != "GET" if mutates is None else mutates
        METHODS.append(Method(f"{service}.{name}", http, segments, function, changes))
        return function

    return register


@dataclass(frozen=True)
class Request:
    """One API call: the account, the path's variables, the query and the body."""

    cloud: Account
    words: Mapping[str, str]
    params: Doc
    body: Doc

    @property
    def store(self) -> Store:
        return self.cloud.store

    @property
    def project(self) -> str:
        return self.words["project"]

    @property
    def scope(self) -> str:
        """`global`, `regions/R` or `zones/Z`: the location of the requested resource."""
        if "zone" in self.words:
            return f"zones/{self.words['zone']}"
        return f"regions/{self.words['region']}" if "region" in self.words else "global"

    @property
    def location(self) -> str:
        return self.scope.rpartition("/")[2]

    @property
    def region(self) -> str:
        """The region of the requested resource; empty for a global one."""
        return zones().get(self.location, self.location) if self.scope != "global" else ""

    def path(self, collection: str, name: str) -> str:
        return f"projects/{self.project}/{self.scope}/{collection}/{name}"

    def thing(self, kind: str, path: str) -> Doc:
        doc = self.store.get(path, kind)
        if doc is None:
            raise not_found(path)
        return doc

    def link(self, field: str, value: object) -> str:
        """The path of the resource that a field names: by URL, by path, or by path within the project."""
        text = str(value)
        short = re.sub(r"^https?://[^/]+/(?:compute/(?:v1|beta)/)?", "", text)
        if re.match(r"(global|regions|zones)/", short):
            short = f"projects/{self.project}/{short}"
        if not re.fullmatch(r"projects/[^/]+/(global|(regions|zones)/[^/]+)(/[^/]+)+", short):
            raise invalid(field, text, "The URL is malformed.")
        return short

    def add(self, path: str, kind: str, doc: Doc) -> Doc:
        """Store a new or changed resource."""
        location = path.split("/")[3] if "/global/" not in path else "global"
        self.store.put(path, kind, location, doc, path.rpartition("/")[2])
        return doc

    def new(
        self, kind: str, collection: str, api_kind: str, *, fields: Sequence[str] = ()
    ) -> tuple[str, Doc]:
        """The resource of the body: its path, and its document with name, id and links. Raises for an invalid
        name, and for one in use."""
        name = checked_name(self.body)
        path = self.path(collection, name)
        if self.store.get(path, kind) is not None:
            raise GcpError("alreadyExists", f"The resource '{path}' already exists")
        return path, self.headed(path, api_kind, {key: self.body[key] for key in fields if key in self.body})

    def headed(self, path: str, api_kind: str, doc: Doc) -> Doc:
        """A document with the fields of every new resource."""
        result: Doc = {
            "kind": f"compute#{api_kind}",
            "id": str(self.number()),
            "creationTimestamp": stamp(self.cloud.now()),
            "name": path.rpartition("/")[2],
            "selfLink": API + path,
            **doc,
        }
        scope = path.split("/")
        if scope[2] == "zones":
            result["zone"] = f"{API}projects/{scope[1]}/zones/{scope[3]}"
        elif scope[2] == "regions":
            result["region"] = f"{API}projects/{scope[1]}/regions/{scope[3]}"
        return result

    def number(self) -> int:
        """A new numeric id of up to 19 digits."""
        count = self.store.count("ids")
        digest = hashlib.sha256(f"{self.cloud.seed} id {count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % (8 * 10**18) + 10**18

    def each(self, kind: str, scope: str | None = None) -> list[tuple[str, Doc]]:
        """Resources of this project, or of one location in it."""
        prefix = f"projects/{self.project}/"
        location = None if scope is None else scope.rpartition("/")[2]
        return [(path, doc) for path, doc in self.store.each(kind, location) if path.startswith(prefix)]

    def page(self, items: Iterable[Doc], api_kind: str) -> Doc:
        """One page of a list, filtered by its `filter`."""
        matches = [public(one) for one in items]
        text = self.params.get("filter")
        if text:
            filters = [conditions(each) for each in re.split(r"(?<=\))\s+OR\s+(?=\()", str(text))]
            matches = [
                one for one in matches if any(all(_holds(one, *each) for each in row) for row in filters)
            ]
        start = int(self.params.get("pageToken") or 0)
        size = min(int(self.params.get("maxResults") or 500), 500)
        scope = self.scope if self.scope != "global" else f"global/{api_kind}s"
        result: Doc = {"kind": f"compute#{api_kind}List", "id": f"projects/{self.project}/{scope}"}
        result["items"] = matches[start : start + size]
        if start + size < len(matches):
            result["nextPageToken"] = str(start + size)
        return result


def checked_name(body: Doc, field: str = "name") -> str:
    name = body.get(field)
    if not name:
        raise required(f"resource.{field}")
    if not NAME.fullmatch(str(name)):
        why = f"Must be a match of regex '{NAME.pattern}'"
        raise invalid(f"resource.{field}", name, why)
    return str(name)


def operation(
    request: Request,
    verb: str,
    target: str,
    *,
    thing: Doc | None = None,
    error: GcpError | None = None,
    user: str | None = None,
) -> Doc:
    """A completed operation, as stored and returned. `thing`: its target; `user`: who began it, None: who
    calls."""
    now = request.cloud.now()
    number = request.number()
    digest = hashlib.sha256(f"{request.cloud.seed} {number}".encode()).hexdigest()
    name = f"operation-{int(now * 1000)}-{digest[:13]}-{digest[13:21]}-{digest[21:29]}"
    path = request.path("operations", name)
    target_doc = thing or request.store.get(target)
    doc: Doc = {
        "kind": "compute#operation",
        "id": str(number),
        "name": name,
        "operationType": verb,
        "targetLink": API + target,
        "targetId": str((target_doc or {}).get("id") or request.number()),
        "status": "DONE",
        "user": user or caller_of(request.project),
        "progress": 100,
        "insertTime": stamp(now),
        "startTime": stamp(now),
        "endTime": stamp(now),
        "selfLink": API + path,
    }
    if "/" in request.scope:
        doc[request.scope.split("/")[0][:-1]] = f"{API}projects/{request.project}/{request.scope}"
    if error is not None:
        doc |= error.operation()
    request.add(path, "operation", doc)
    return doc


def public(doc: Doc) -> Doc:
    """A document without the simulation's own keys, which begin with `_`."""
    return {key: value for key, value in doc.items() if not key.startswith("_")}


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, PACIFIC).isoformat(timespec="milliseconds")


def fingerprint(value: object) -> str:
    """A digest that changes with the value."""
    return base64.b64encode(hashlib.sha256(repr(value).encode()).digest()[:8]).decode()


def conditions(text: str) -> list[tuple[str, str, str]]:
    """The conditions of a filter: `labels.x=y`, `(name = "a") (zone != b)`, joined by AND."""
    result = []
    for part in re.split(r"\s+AND\s+|\)\s*\(", text.strip()):
        bare = part.strip().strip("()").strip()
        matched = re.fullmatch(r"([\w.-]+)\s*(!=|=|:|eq|ne)\s*(.*)", bare)
        if matched is None:
            raise GcpError(
                "invalid", f"Invalid value for field 'filter': '{text}'. Invalid list filter expression."
            )
        result.append((matched[1], matched[2], matched[3].strip("\"'")))
    return result


def _holds(doc: Doc, field: str, sign: str, operand: str) -> bool:
    value: Any = doc
    parts = field.split(".", 1) if field.startswith("labels.") else field.split(".")
    for part in parts:
        value = value.get(part) if isinstance(value, dict) else None
    if sign == ":":
        return value is not None if operand == "*" else operand in str(value or "")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    same = value is not None and (text == operand or text.rpartition("/")[2] == operand)
    return same if sign in {"=", "eq"} else not same
