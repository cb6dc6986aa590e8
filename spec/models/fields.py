"""The types of properties: each reads the source text of its property, or takes the finished value.

Everything goes through a `BeforeValidator` of ours that raises `Problem`, so that no message of pydantic's
is ever shown; pydantic then checks the result's type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar, cast

from pydantic import BeforeValidator, WithJsonSchema

from orch.spec import values
from orch.spec.interpolate import split_words
from orch.spec.suggest import hint_for, listed
from orch.spec.values import Problem, Problems, shown

from .base import describe

T = TypeVar("T")
K = TypeVar("K", int, float)


def text(value: object, what: str = "text") -> str:
    """A scalar's text. A list or mapping here is most often a colon or dash that YAML took for its own."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, dict):
        hint = "quote the line, or write it in a block that begins with `|`" if value else "quote it"
        raise Problem("ORCH112", f"this is a mapping, {what} is expected", hint=hint)
    raise Problem(
        "ORCH112", f"{'this is a list' if isinstance(value, list) else 'nothing is here'}, {what} is expected"
    )


def _nonempty(value: object) -> str:
    read = text(value)
    if not read.strip():
        raise Problem("ORCH112", "the text is empty", hint="remove the property, or write a value")
    return read


def _reader(read: Callable[[str], T], keep: type | tuple[type, ...] = ()) -> BeforeValidator:
    """`read` for text; a value of type `keep` (given in Python) passes as it is."""

    def validate(value: object) -> object:
        if keep and isinstance(value, keep) and not isinstance(value, str):
            return value
        return read(text(value))

    return BeforeValidator(validate)


Text = Annotated[str, BeforeValidator(_nonempty)]
AnyText = Annotated[str, _reader(str)]
Name = Annotated[
    str, _reader(values.check_name), WithJsonSchema({"type": "string", "pattern": "^[a-z][a-z0-9-]{1,40}$"})
]
Flag = Annotated[bool, _reader(values.parse_bool, bool)]
Size = Annotated[int, _reader(values.parse_size, int), WithJsonSchema({"type": ["string", "number"]})]


def whole(low: int | None = None, high: int | None = None) -> BeforeValidator:
    """A whole number between bounds, both included; the bounds hold for Python values too."""
    return BeforeValidator(lambda value: values.parse_int(text(value), low=low, high=high))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def duration(default: int | None = None, never: bool = True) -> BeforeValidator:
    """Seconds; None for never, an error where `never` is not possible. `true` stands for the default."""

    def read(value: object) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        seconds = values.parse_duration(text(value) if value is not None else "off", default=default)
        if seconds is None and not never:
            raise Problem("ORCH124", "an end is needed here, `off` has none", hint="write `5m`")
        return seconds

    return BeforeValidator(read)


def choice(*words: str) -> BeforeValidator:
    """One of a few words."""

    def read(value: object) -> str:
        word = text(value, listed(words))
        if word in words:
            return word
        hint = hint_for(word, words)
        close = hint.split("'")[1] if hint else None
        raise Problem("ORCH111", f"{shown(word)} is not {listed(words)}", hint=hint, replacement=close)

    return BeforeValidator(read)


def _texts(what: str, one: str) -> BeforeValidator:
    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            written = text(value, f"a list of {what}")
            raise Problem("ORCH112", f"a list of {what} is expected", hint=one.format(_short(written)))
        items: list[str] = []
        problems: list[Problem] = []
        for index, item in enumerate(cast("list[object]", value)):
            if isinstance(item, dict):
                problems.append(_mapped_item(cast("dict[str, object]", item), index))
                continue
            try:
                items.append(_nonempty(item))
            except Problem as problem:
                problem.at = (index, *problem.at)
                problems.append(problem)
        if problems:
            raise Problems(tuple(problems))
        return tuple(items)

    return BeforeValidator(read)


def _mapped_item(item: dict[str, object], index: int) -> Problem:
    """`- echo a: b` is a mapping to YAML; say how to keep it text."""
    hint = "quote the line or write it as a block that begins with `|`"
    replacement = None
    if len(item) == 1:
        key, value = next(iter(item.items()))
        if isinstance(value, str) and "\n" not in value and "'" not in f"{key}{value}":
            replacement = f"'{key}: {value}'"
            hint = f"quote the line: `{replacement}`" if len(replacement) < 70 else hint
    return Problem(
        "ORCH112", "this item is a mapping, text is expected", hint=hint, replacement=replacement, at=(index,)
    )


def _short(written: str) -> str:
    return written if len(written) <= 50 and "\n" not in written else "…"


Texts = Annotated[tuple[str, ...], _texts("texts", "write `[{}]`")]
Names = Annotated[tuple[str, ...], _texts("names", "write `[{}]`")]
Commands = Annotated[tuple[str, ...], _texts("commands", "begin a line below it with a dash: `- {}`")]


def _args(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(_arg(item, index) for index, item in enumerate(cast("list[object]", value)))
    return split_words(text(value, "text or a list"))


def _arg(item: object, index: int) -> str:
    try:
        return text(item)
    except Problem as problem:
        problem.at = (index,)
        raise


Args = Annotated[tuple[str, ...], BeforeValidator(_args)]


def _env(value: object) -> dict[str, str | None]:
    """Variables in order; None: taken from the caller's environment when a run starts."""
    read: dict[str, str | None] = {}
    problems: list[Problem] = []
    for at, item in _env_items(value):
        try:
            if isinstance(item, tuple):
                name, given = cast("tuple[str, object]", item)
                key = values.check_env_name(name)
                entry = (key, None if given is None else _env_value(key, given))
            elif isinstance(item, dict):
                raise _env_mapping(cast("dict[str, object]", item))
            else:
                entry = values.parse_env_item(text(item))
            if entry[0] in read:
                raise Problem("ORCH127", f"{entry[0]} is set twice in this list", hint="remove one of them")
            read[entry[0]] = entry[1]
        except Problem as problem:
            problem.at = (at, *problem.at)
            problems.append(problem)
    if problems:
        raise Problems(tuple(problems))
    return read


def _env_items(value: object) -> list[tuple[str | int, object]]:
    if isinstance(value, dict):
        return [(key, (key, given)) for key, given in cast("dict[str, object]", value).items()]
    if isinstance(value, (list, tuple)):
        return [(index, item) for index, item in enumerate(cast("list[object]", value))]
    raise Problem(
        "ORCH112", "a list or a mapping of variables is expected", hint="write `NAME: value` lines below it"
    )


def _env_value(key: str, given: object) -> str:
    if isinstance(given, (dict, list)):
        raise Problem("ORCH127", f"the value of {key} must be text", hint="quote it")
    return values.parse_env_item(f"{key}={given}")[1] or ""


def _env_mapping(item: dict[str, object]) -> Problem:
    key, given = next(iter(item.items()), ("", None))
    fixed = f"{key}={given or ''}" if len(item) == 1 and not isinstance(given, (dict, list)) else None
    return Problem(
        "ORCH127",
        "a variable in a list is written with `=`",
        hint=f"write `{fixed}`" if fixed else "write `NAME=value`",
        replacement=fixed if fixed and re.fullmatch(r"[\w=./-]+", fixed) else None,
    )


Env = Annotated[
    dict[str, str | None],
    BeforeValidator(_env),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "object"}]}),
]


def _tags(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise Problem(
            "ORCH112", f"{describe(value)} is not a mapping of tags", hint="write `key: value` lines below it"
        )
    read: dict[str, str] = {}
    problems: list[Problem] = []
    for key, given in cast("Mapping[str, object]", value).items():
        try:
            tag = "" if given is None else text(given)
            values.check_tag(key, tag)
            read[key] = tag
        except Problem as problem:
            problem.at = (key, *problem.at)
            problems.append(problem)
    if problems:
        raise Problems(tuple(problems))
    return read


Tags = Annotated[dict[str, str], BeforeValidator(_tags)]


def absolute(what: str = "the path") -> BeforeValidator:
    """An absolute path without `..`; a trailing slash is dropped."""
    return BeforeValidator(lambda value: check_absolute(text(value), what))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def check_absolute(path: str, what: str = "the path") -> str:
    if "\0" in path:
        raise Problem("ORCH129", f"{what} holds a null character")
    if not path.startswith("/"):
        raise Problem(
            "ORCH129", f"{what} must be absolute, {shown(path)} is not", hint=f"write `/{path.lstrip('./')}`"
        )
    if ".." in path.split("/"):
        raise Problem("ORCH129", f"{what} must not hold `..`", hint="write where it leads")
    return path.rstrip("/") or "/"
