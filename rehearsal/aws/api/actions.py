"""The definition of an action, and what most actions need: tags, filters, pages.

Parameters and results have the shapes of botocore's service models. Start reading at `compute/launch.py`
(RunInstances).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Protocol

from orch.rehearsal.aws.api.errors import AwsError, missing
from orch.rehearsal.scenario import Knobs
from orch.rehearsal.store import Doc, Store

ACCOUNT = "111122223333"
"""The account id that AWS's own documents use in examples."""


class Account(Protocol):
    """The part of an account that rules use; `core.Cloud` is one."""

    seed: str
    store: Store

    def knobs_now(self) -> Knobs: ...

    def now(self) -> float: ...

    def new_id(self, prefix: str) -> str: ...

    def quota(self, code: str) -> float: ...

    def identity(self, first: str) -> str: ...


@dataclass(frozen=True)
class Request:
    """One API call: the account, the parameters (botocore's names) and the region."""

    cloud: Account
    params: Doc
    region: str

    @property
    def store(self) -> Store:
        return self.cloud.store

    @property
    def owner(self) -> str:
        """The id of the account."""
        return self.cloud.identity(ACCOUNT)

    def __getitem__(self, name: str) -> Any:
        try:
            return self.params[name]
        except KeyError:
            raise AwsError("MissingParameter", f"The request must contain the parameter {name}") from None

    def get(self, name: str, default: Any = None) -> Any:
        value = self.params.get(name)
        return default if value is None else value

    def thing(self, kind: str, resource_id: str | None) -> Doc:
        """A live resource of this region. Raises the not-found error of its kind."""
        doc = self.store.get(resource_id, kind) if resource_id else None
        if doc is None or doc.get("_region", self.region) != self.region:
            raise missing(kind, resource_id or "")
        return doc

    def add(self, thing_id: str, kind: str, doc: Doc, name: str | None = None) -> Doc:
        """Store a new or changed resource."""
        self.store.put(thing_id, kind, self.region, {**doc, "_region": self.region}, name)
        return doc

    def tags_for(self, resource_type: str) -> list[Doc]:
        """The tags that TagSpecifications gives to one resource type."""
        tags: dict[str, str] = {}
        for specification in self.get("TagSpecifications") or ():
            if specification.get("ResourceType") == resource_type:
                tags |= {tag["Key"]: tag.get("Value", "") for tag in specification.get("Tags") or ()}
        return tag_list(tags)

    def arn(self, resource: str, service: str = "ec2") -> str:
        return f"arn:aws:{service}:{self.region}:{self.owner}:{resource}"


Action = Callable[[Request], Doc]

ACTIONS: dict[tuple[str, str], Action] = {}
"""The function of each (service, action), from the modules loaded so far."""


BEFORE: dict[str, list[Callable[[Request], None]]] = {"ec2": [], "": []}
"""Functions that run before each action of a service, or ("") of any; from the modules loaded so far."""


@cache
def all_actions() -> Mapping[tuple[str, str], Action]:
    """The function of each (service, action), from every module of this package."""
    package = import_module("orch.rehearsal.aws.api")
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    return ACTIONS


def action(name: str, service: str = "ec2") -> Callable[[Action], Action]:
    def register(function: Action) -> Action:
        ACTIONS[service, name] = function
        return function

    return register


def before_each(service: str = "") -> Callable[[Callable[[Request], None]], Callable[[Request], None]]:
    """Register a function that runs before each action of a service, or of any service: it applies the
    passage of time, and adds what every account has."""

    def register(function: Callable[[Request], None]) -> Callable[[Request], None]:
        BEFORE[service].append(function)
        return function

    return register


def tag_list(tags: Mapping[str, str]) -> list[Doc]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def tag_map(doc: Doc) -> dict[str, str]:
    return {tag["Key"]: tag.get("Value", "") for tag in doc.get("Tags") or ()}


def public(doc: Doc) -> Doc:
    """A document without the simulation's own keys, which begin with `_`."""
    return {key: value for key, value in doc.items() if not key.startswith("_")}


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")


Fields = Mapping[str, Callable[[Doc], Any]]
"""Filter name -> function that gives the value, or the values, of a document."""


def path(*names: str) -> Callable[[Doc], Any]:
    """Follow names into a document; a list on the way gives several values."""

    def values(doc: Doc) -> list[Any]:
        values_found: list[Any] = [doc]
        for name in names:
            values_found = [
                inner
                for item in values_found
                for inner in (item.get(name) if isinstance(item.get(name), list) else [item.get(name)])
                if isinstance(item, dict)
            ]
            values_found = [item for item in values_found if item is not None]
        return values_found

    return values


def select(
    request: Request,
    kind: str,
    fields: Fields,
    *,
    ids: Sequence[str] = (),
    id_field: str | None = None,
    docs: Iterable[Doc] | None = None,
    gone: bool = False,
) -> list[Doc]:
    """The documents that a Describe call selects by ids and Filters. Raises for an unknown id."""
    filters = request.get("Filters") or request.get("Filter") or ()
    if docs is not None:
        matches = list(docs)
    elif ids:
        matches = []
        for resource_id in ids:
            doc = request.store.get(resource_id, kind)
            if doc is None or doc.get("_region") != request.region:
                raise missing(kind, resource_id)
            matches.append(doc)
        ids = ()
    else:
        matches = [doc for _, doc in request.store.each(kind, request.region, gone=gone)]
    if ids and id_field:
        wanted_ids = set(ids)
        matches = [doc for doc in matches if doc[id_field] in wanted_ids]
        for missing_id in wanted_ids - {doc[id_field] for doc in matches}:
            raise missing(kind, missing_id)
    for one in filters:
        matches = [doc for doc in matches if _matches(doc, one["Name"], one.get("Values") or (), fields)]
    return matches


def _matches(doc: Doc, name: str, values: Sequence[str], fields: Fields) -> bool:
    if name.startswith("tag:"):
        have: list[Any] = [tag_map(doc)[name[4:]]] if name[4:] in tag_map(doc) else []
    elif name == "tag-key":
        have = list(tag_map(doc))
    elif name in fields:
        value = fields[name](doc)
        have = value if isinstance(value, list) else [value]
    else:
        raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    texts = [str(item).lower() if isinstance(item, bool) else str(item) for item in have if item is not None]
    return any(fnmatch.fnmatchcase(text, pattern) for text in texts for pattern in values)


def page(request: Request, key: str, items: list[Doc], *, most: int = 1000) -> Doc:
    """One page of a Describe call's result, with the token of the next page."""
    start = 0
    token = request.get("NextToken")
    if token:
        if not token.startswith("page-") or not token[5:].isdigit():
            raise AwsError("InvalidNextToken", "The token '" + token + "' is invalid.")
        start = int(token[5:])
    size = min(request.get("MaxResults") or most, most)
    result: Doc = {key: [public(item) for item in items[start : start + size]]}
    if start + size < len(items):
        result["NextToken"] = f"page-{start + size}"
    return result
