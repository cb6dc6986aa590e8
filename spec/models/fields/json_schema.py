"""What a property's text looks like, as JSON Schema: editors check with it, the reference prints it.

These patterns let through what the language takes and stop what is plainly wrong; the readers in `parsing.py`
have the last word. Every text may come from the environment instead (`${{ env.X }}`).
"""

from __future__ import annotations

from typing import TypeAlias

Form: TypeAlias = "dict[str, object]"

_REFERENCE = r"\$\{\{"
_SIZE = r"[0-9]+(\.[0-9]+)?\s*([MmGgTt][Ii]?[Bb])?"
_COUNT = r"[0-9]+"


def either(title: str, *forms: Form) -> Form:
    return {"title": title, "anyOf": list(forms)}


def pattern(title: str, regex: str) -> Form:
    """Text that matches all of `regex`, or holds a reference."""
    return {"title": title, "type": "string", "pattern": f"^\\s*(?:{regex})\\s*$|{_REFERENCE}"}


def words(*choices: str) -> Form:
    title = " ".join(choices)
    return either(title, {"enum": list(choices)}, {"type": "string", "pattern": _REFERENCE})


def number(low: int | None = None, high: int | None = None, title: str = "int") -> Form:
    bounds = {name: end for name, end in (("minimum", low), ("maximum", high)) if end is not None}
    return either(title, {"type": "integer", **bounds}, pattern(title, r"[-+]?[0-9]+"))


def rows(item: Form, title: str) -> Form:
    return {"title": title, "type": "array", "items": item}


def mapping(item: Form, title: str) -> Form:
    return {"title": title, "type": "object", "additionalProperties": item}


TEXT: Form = {"title": "text", "type": ["string", "number", "boolean"]}
TEXTS = rows(TEXT, "list of text")
PATH: Form = {"title": "path", "type": "string"}
NAME = pattern("name", "[a-z][a-z0-9-]{1,40}")
GROUP_NAME = pattern("name of a group", "[a-z0-9][a-z0-9-]{0,39}")
FLAG = either(
    "bool", {"type": "boolean"}, pattern("bool", "yes|no|on|off|Yes|No|On|Off|YES|NO|ON|OFF|true|false")
)
AUTO_FLAG = either("auto, bool", words("auto"), FLAG)
SIZE = either("size", {"type": "number", "exclusiveMinimum": 0}, pattern("size", _SIZE))
DURATION = either(
    "duration",
    {"type": "integer", "minimum": -1},
    {"type": "boolean"},
    pattern("duration", "([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?|[0-9]+|-1|off|no|on|yes"),
)
MONEY = either("money", {"type": "number", "exclusiveMinimum": 0}, pattern("money", r"[0-9]+(\.[0-9]+)?"))
ENV = either(
    "env",
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
)
TAGS: Form = {
    "title": "tags",
    "type": "object",
    "propertyNames": {"pattern": r"^[_\-a-zA-Z0-9]{1,60}$"},
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
ARGS = either("text or list", TEXT, TEXTS)
CIDR = pattern("network", r"[0-9A-Fa-f:.]+(/[0-9]{1,3})?")
SETTINGS: Form = {"title": "settings", "type": "object"}


def _ends(item: Form, title: str) -> Form:
    return {
        "type": "object",
        "title": title,
        "additionalProperties": False,
        "properties": {"min": item, "max": item},
    }


def span(item: Form, end: str, title: str) -> Form:
    """A single value, `a..b`, `a..`, `..b`, or `{min, max}`."""
    text = pattern(title, rf"(?:{end})?\s*\.\.\s*(?:{end})?|{end}")
    return either(title, {"type": "number", "minimum": 0}, text, _ends(item, title))


SIZES = span(SIZE, _SIZE, "size range")
COUNTS = span(number(0), _COUNT, "range")
CAPABILITY = span({"type": ["number", "string"]}, r"[0-9.]+", "range")
NODE_COUNTS = either(
    "int or range", {"type": "integer", "minimum": 0}, pattern("range", r"[0-9]*\s*\.\.\s*[0-9]*|[0-9]+")
)
CPU = either(
    "cpu",
    {"type": "integer", "minimum": 0},
    pattern("cpu", r"(?:(?:[Xx]86|[Aa][Rr][Mm])\s*:\s*)?(?:[0-9]*\s*\.\.\s*[0-9]*|[0-9]+)"),
)
_GPU_TOKEN = rf"[A-Za-z][A-Za-z0-9_\-. ,]*|(?:{_SIZE})?\s*\.\.\s*(?:{_SIZE})?|{_SIZE}"
GPU = either(
    "gpu",
    {"type": "integer", "minimum": 0, "maximum": 32},
    pattern("gpu", rf"(?:{_GPU_TOKEN})(?:\s*:\s*(?:{_GPU_TOKEN}))*"),
)
