"""Requests and answers, held against a published description of a REST API: what it does not know is told.

The description is an extract of OpenAPI with JSON Schema (see ci/descriptions).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from kit import TESTS

Json = dict[str, Any]

ERROR = {"$ref": "#/components/schemas/basic-error"}
"""Of an answer from 400 on that an operation does not list, such as 401 and 429."""


@dataclass(frozen=True)
class Exchange:
    """A request and its answer."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    status: int
    answer: Any


@dataclass(frozen=True)
class Description:
    """The operations of an API, by path and method."""

    file: Path

    @cached_property
    def data(self) -> Json:
        return json.loads(self.file.read_text())

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], Json]]:
        return [
            (re.compile(re.sub(r"\\\{[^/]+?\\\}", "[^/]+", re.escape(path))), methods)
            for path, methods in self.data["paths"].items()
        ]

    def problems(self, made: Exchange) -> list[str]:
        """What of a request and its answer is not as described."""
        methods = next((each for pattern, each in self._patterns if pattern.fullmatch(made.path)), {})
        operation = methods.get(made.method.lower())
        if operation is None:
            return [f"{made.method} {made.path} is not described"]
        found = [*self._query(operation, made.query), *self._body(operation, made.body)]
        found += self._answer(operation, made.status, made.answer)
        return [f"{made.method} {made.path}: {each}" for each in found]

    def _query(self, operation: Json, query: Mapping[str, str]) -> Iterator[str]:
        known = {each["name"]: each["schema"] for each in operation["parameters"] if each["in"] == "query"}
        for name, text in query.items():
            if name not in known:
                yield f"query {name} is not described"
                continue
            value: Any = int(text) if known[name].get("type") == "integer" and text.isdigit() else text
            yield from self._invalid(f"query {name}", known[name], value)

    def _body(self, operation: Json, body: Any) -> Iterator[str]:
        described = operation.get("requestBody")
        if described is None:
            if body is not None:
                yield "a body is not described"
        elif body is not None or described["required"]:
            yield from self._invalid("body", described["schema"], body)

    def _answer(self, operation: Json, status: int, answer: Any) -> Iterator[str]:
        responses = operation["responses"]
        if str(status) not in responses and status < 400:
            yield f"status {status} is not described"
            return
        schema = responses.get(str(status), ERROR)
        if schema is None:
            if answer is not None:
                yield f"answer {status} has a body, which is not described"
            return
        yield from self._invalid(f"answer {status}", schema, answer)

    def _invalid(self, what: str, schema: Json, value: Any) -> Iterator[str]:
        whole = {**schema, "components": {"schemas": self.data["schemas"]}}
        for error in Draft202012Validator(whole).iter_errors(value):
            at = "".join(f"[{each!r}]" for each in error.absolute_path)
            yield f"{what}{at}: {error.message[:300]}"
        yield from (f"{what}{each}" for each in self._unknown([schema], value, ""))

    def _unknown(self, schemas: Iterable[Json], value: Any, at: str) -> Iterator[str]:
        """Names that no schema for this value describes: OpenAPI lets them pass."""
        flat = [each for schema in schemas for each in self._flat(schema)]
        if isinstance(value, list):
            items = [each["items"] for each in flat if "items" in each]
            for number, each in enumerate(value if items else ()):
                yield from self._unknown(items, each, f"{at}[{number}]")
        if not isinstance(value, dict):
            return
        known: dict[str, list[Json]] = {}
        for schema in flat:
            for name, each in schema.get("properties", {}).items():
                known.setdefault(name, []).append(each)
        if not known:
            return
        for name, each in value.items():
            if name not in known:
                yield f"{at}[{name!r}] is not described"
            else:
                yield from self._unknown(known[name], each, f"{at}[{name!r}]")

    def _flat(self, schema: Json) -> Iterator[Json]:
        """A schema, and those that it is made of."""
        if "$ref" in schema:
            yield from self._flat(self.data["schemas"][schema["$ref"].rpartition("/")[2]])
        yield schema
        for word in ("allOf", "anyOf", "oneOf"):
            for each in schema.get(word, ()):
                yield from self._flat(each)


_FOLDER = TESTS / "ci" / "descriptions"
GITHUB = Description(_FOLDER / "github.json")
GITLAB = Description(_FOLDER / "gitlab.json")
