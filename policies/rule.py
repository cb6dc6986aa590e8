"""What a rule is: its words, its levels, its parameters, and what it finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from orch.spec.grammar.values import (
    Problem,
    parse_bool,
    parse_duration,
    parse_int,
    parse_money,
    render_duration,
    render_money,
)

Level = Literal["mandatory", "advisory", "disabled"]
Severity = Literal["low", "medium", "high", "critical"]
Kind = Literal["resource", "plan", "task"]

UNKNOWN = (
    "04da6b54-80e4-46f7-96ec-b56ff0331ba9",
    "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
    "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
    "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
    "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
)
"""How Pulumi's engine writes a text, flag, number, list or object that is known only later."""


def _texts(value: object) -> tuple[str, ...]:
    items = cast("list[object]", value) if isinstance(value, (list, tuple)) else [value]
    texts: list[str] = []
    for at, each in enumerate(items):
        if not isinstance(each, (str, int, float)) or not str(each).strip():
            raise Problem(
                "ORCH284", "a list of texts is expected", hint="write `[one, two]`", at=(at,) if at else ()
            )
        texts.append(str(each))
    return tuple(texts)


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float, Decimal)):
        raise Problem("ORCH284", "a single value is expected here")
    return str(value)


def _seconds(value: object) -> int:
    seconds = parse_duration(_scalar(value))
    if seconds is None:
        raise Problem("ORCH284", "a duration is needed here, `off` is none", hint="write `4h`")
    return seconds


@dataclass(frozen=True)
class ParameterType:
    """Type of a parameter: how it is read, its JSON schema, and how its value is written."""

    words: str
    read: Callable[[object], object]
    schema: Mapping[str, Any]
    write: Callable[[Any], object] = lambda value: value


TEXTS = ParameterType("list of texts", _texts, {"type": "array", "items": {"type": "string"}}, list)
MONEY = ParameterType(
    "US dollars", lambda value: parse_money(_scalar(value)), {"type": "number", "minimum": 0}, render_money
)
COUNT = ParameterType(
    "whole number", lambda value: parse_int(_scalar(value), low=0), {"type": "integer", "minimum": 0}
)
PORT = ParameterType(
    "whole number",
    lambda value: parse_int(_scalar(value), low=1, high=65_535),
    {"type": "integer", "minimum": 1, "maximum": 65_535},
)
DURATION = ParameterType("duration", _seconds, {"type": "string"}, render_duration)
FLAG = ParameterType("true or false", lambda value: parse_bool(_scalar(value)), {"type": "boolean"})


@dataclass(frozen=True)
class Parameter:
    """A parameter of a rule. `default`: as `orch.yml` would write it; None where nothing stands for it."""

    name: str
    type: ParameterType
    description: str
    default: object = None


Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Breach:
    """Finding of a rule: a sentence about `resource` (the name of a resource, or "" for the plan as a whole).

    `path`: the property of the fleet, volume or task whose place in the file it gets. `advice`: what to do in
    this case; by default the rule's.
    """

    text: str
    path: str = ""
    resource: str = ""
    urn: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Rule:
    """A policy. `level`: the one that holds where `orch.yml` says none.

    `framework`: whose requirement it is; `url`: where that is written. `remediation`: what to do. `needs`:
    parameters of which one at least makes the rule do something; () where it does without.
    """

    name: str
    kind: Kind
    severity: Severity
    level: Level
    description: str
    remediation: str
    parameters: tuple[Parameter, ...] = ()
    framework: str = ""
    url: str = ""
    needs: tuple[str, ...] = ()
    operations: bool = False
    """Of a plan's rule: whether it looks at what the engine does to resources."""
    code: str = ""
    """The code of a finding that says the same in the same words: the policy speaks in its place."""

    def defaults(self) -> dict[str, Any]:
        """The parameters where `orch.yml` gives none."""
        return {
            each.name: None if each.default is None else each.type.read(each.default)
            for each in self.parameters
        }

    def parameter(self, name: str) -> Parameter | None:
        return next((each for each in self.parameters if each.name == name), None)

    def idle(self, parameters: Parameters) -> bool:
        """Return True if the parameters that the rule needs are absent."""
        return bool(self.needs) and not any(parameters.get(name) is not None for name in self.needs)


@dataclass(frozen=True)
class Resource:
    """A resource that a program registers: its type token, its name, and its inputs as the engine has them.

    `provider`: the inputs of its provider, {} where they are not known.
    """

    type: str
    name: str
    urn: str
    inputs: Mapping[str, Any]
    provider: Mapping[str, Any] = field(default_factory=dict[str, Any])


def known(value: object) -> Any:
    """A value of an input; None where it is absent, a secret, or known only later."""
    if isinstance(value, Mapping):
        keys = cast("Mapping[str, object]", value)
        return None if "4dabf18193072939515e22adb298388d" in keys else keys
    if isinstance(value, str) and (value == "[secret]" or any(each in value for each in UNKNOWN)):
        return None
    return value


def at(value: object, *path: str) -> Any:
    """The value at a path of keys; None where any part of it is absent or not known."""
    for key in path:
        value = known(value)
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, object]", value).get(key)
    return known(value)


def rows_of(value: object) -> Iterator[Mapping[str, Any]]:
    """The mappings of a list, or one that stands alone, as far as they are known."""
    value = known(value)
    for each in cast("list[object]", value) if isinstance(value, (list, tuple)) else [value]:
        if isinstance(row := known(each), Mapping):
            yield cast("Mapping[str, Any]", row)


def texts_of(value: object) -> tuple[str, ...]:
    """The texts of a list, as far as they are known."""
    value = known(value)
    items = cast("list[object]", value) if isinstance(value, (list, tuple)) else []
    return tuple(each for each in map(known, items) if isinstance(each, str))


def truth(value: object) -> bool | None:
    """A flag, which some providers spell as text; None where it is not known."""
    value = known(value)
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).lower()) if isinstance(value, str) else None


def matches(text: str, patterns: tuple[str, ...]) -> bool:
    """Return True if a text matches one of these patterns, in which `*` stands for any characters."""
    return any(fnmatchcase(text, each) for each in patterns)


def is_bastion(name: str) -> bool:
    """Return True for the machine through which nodes are reached: `FLEET-bastion`."""
    return re.fullmatch(r".+-bastion(-address)?", name) is not None
