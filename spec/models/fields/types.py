"""The types of properties: each reads the source text of its property, or takes the finished value.

Everything goes through a `Reads` of ours that raises `Problem`, so that no message of pydantic's is ever
shown; pydantic then checks the result's type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated, Literal, TypeVar, cast

from orch.spec.grammar import characters, hosts, values
from orch.spec.grammar.interpolate import split_words
from orch.spec.grammar.values import Problem, Problems, shown
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section, describe, plain
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Here, Reads, read_as
from orch.spec.suggest import hint_for, listed

T = TypeVar("T")


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


def nonempty(check: Callable[[str], str]) -> Callable[[object], str]:
    """Text of at least one character that is no space, which `check` reads."""
    return lambda value: check(_nonempty(value))


def reader(
    read: Callable[[str], T],
    form: Form,
    keep: type | tuple[type, ...] = (),
    write: Callable[[T], object] | None = None,
) -> Reads:
    """`read` for text; a value of type `keep` (given in Python) passes as it is."""

    def validate(value: object) -> object:
        if keep and isinstance(value, keep) and not isinstance(value, str):
            return value
        return read(text(value))

    return Reads(validate, form, write=write)


def checked(check: Callable[[str], str], form: Form = json_schema.TEXT) -> Reads:
    return Reads(nonempty(check), form)


def _command_line(written: str) -> str:
    """A program and its arguments, to be split as a shell does. Raises Problem ORCH135."""
    split_words(characters.check_characters(written))
    return characters.check_word(written)


# One line that is no option; one line; several lines; what a person may choose freely.
Text = Annotated[str, checked(characters.check_word)]
Line = Annotated[str, checked(characters.check_line)]
Block = Annotated[str, checked(characters.check_characters)]
AnyText = Annotated[str, reader(characters.check_characters, json_schema.TEXT)]
CommandLine = Annotated[str, reader(_command_line, json_schema.TEXT)]
Image = Annotated[str, checked(characters.check_image)]
User = Annotated[
    str, reader(hosts.check_user, json_schema.pattern("user", r"[A-Za-z0-9_.][A-Za-z0-9_.@+-]*\$?"))
]
# A path in a container, and one on this machine: what `--untrusted` keeps inside the repository.
FilePath = Annotated[str, checked(characters.check_path, json_schema.PATH)]
LocalPath = Annotated[str, checked(characters.check_path, json_schema.PATH), Here()]
Name = Annotated[str, reader(values.check_name, json_schema.NAME)]
Flag = Annotated[bool, reader(values.parse_bool, json_schema.FLAG, bool)]
Size = Annotated[int, reader(values.parse_size, json_schema.SIZE, int, values.render_size)]
Money = Annotated[Decimal, reader(values.parse_money, json_schema.MONEY, Decimal, values.render_money)]


def whole(low: int | None = None, high: int | None = None) -> Reads:
    """A whole number between bounds, both included; the bounds hold for Python values too."""
    return Reads(
        lambda value: values.parse_int(text(value), low=low, high=high), json_schema.number(low, high)
    )


def duration(default: int | None = None, never: bool = True, low: int = 0, high: int | None = None) -> Reads:
    """Seconds; None for never, an error where `never` is not possible. `true` stands for the default.

    `low`: with 1, nobody who writes `0s` has to guess whether that is no time or no limit.
    """

    def read(value: object) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        seconds = values.parse_duration(text(value) if value is not None else "off", default=default)
        if seconds is None and not never:
            raise Problem("ORCH124", "an end is needed here, `off` has none", hint="write `5m`")
        if seconds is not None and seconds < low:
            least = values.render_duration(low)
            hint = f"write `{least}` or more"
            if never and not seconds:
                hint = f"write `off` for no limit, or `{least}` or more"
            raise Problem("ORCH119", f"{values.render_duration(seconds)} is too short", hint=hint)
        if seconds is not None and high is not None and seconds > high:
            most = values.render_duration(high)
            raise Problem(
                "ORCH119", f"{values.render_duration(seconds)} is too long", hint=f"write `{most}` or less"
            )
        return seconds

    return Reads(read, json_schema.DURATION, write=values.render_duration, nothing="off")


def choice(*words: str) -> Reads:
    """One of a few words."""

    def read(value: object) -> str:
        word = text(value, listed(words))
        if word in words:
            return word
        hint = hint_for(word, words)
        close = hint.split("'")[1] if hint else None
        raise Problem("ORCH111", f"{shown(word)} is not {listed(words)}", hint=hint, replacement=close)

    return Reads(read, json_schema.words(*words))


def auto_flag() -> Reads:
    """`auto`, `true` or `false`."""

    def read(value: object) -> bool | str:
        written = text(value).lower()
        if written == "auto":
            return written
        try:
            return values.parse_bool(written)
        except Problem:
            raise Problem("ORCH111", f"{shown(written)} is not `auto`, `true` or `false`") from None

    return Reads(read, json_schema.AUTO_FLAG)


AutoFlag = Annotated[Literal["auto"] | bool, auto_flag()]


def switch(model: type[Section]) -> Reads:
    """A block, `true` for the block with its defaults, or `false` for none."""

    def read(value: object) -> object:
        if isinstance(value, (dict, model)):
            return read_as(model, cast(object, value))
        try:
            return model() if values.parse_bool(text(value)) else None
        except Problem:
            raise Problem(
                "ORCH112", f"{shown(text(value))} is not `true` or `false`, and no mapping", hint=model.form()
            ) from None

    return Reads(read, json_schema.FLAG, beside=True, write=lambda value: plain(value) or True, nothing=False)


def _texts(
    what: str,
    one: str,
    read_item: Callable[[str], object] = str,
    check: Callable[[str], str] = characters.check_word,
) -> Reads:
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
                items.append(cast(str, read_item(check(_nonempty(item)))))
            except Problem as problem:
                problem.at = (index, *problem.at)
                problems.append(problem)
        if problems:
            raise Problems(tuple(problems))
        return tuple(items)

    return Reads(read, json_schema.rows(json_schema.TEXT, f"list of {what}"))


def rows(what: str) -> Reads:
    """A list of blocks. One that stands alone is told how to become a list."""

    def read(value: object) -> object:
        if isinstance(value, (list, tuple)):
            return cast(object, value)
        written = f"`- {value}`" if isinstance(value, str) and len(value) < 50 else "`- …`"
        raise Problem(
            "ORCH112", f"a list of {what} is expected", hint=f"begin a line below it with a dash: {written}"
        )

    return Reads(read)


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


EnvNames = Annotated[tuple[str, ...], _texts("variables", "write `[{}]`", values.check_env_name)]
Names = Annotated[tuple[str, ...], _texts("names", "write `[{}]`")]


def names_of(what: str, check: Callable[[str], object] = str) -> Reads:
    """A list of texts, each of which `check` reads."""
    return _texts(what, "write `[{}]`", check)


Commands = Annotated[
    tuple[str, ...],
    _texts("commands", "begin a line below it with a dash: `- {}`", check=characters.check_characters),
]


def _args(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(_arg(item, index) for index, item in enumerate(cast("list[object]", value)))
    return split_words(characters.check_characters(text(value, "text or a list")))


def _arg(item: object, index: int) -> str:
    try:
        return characters.check_characters(text(item))
    except Problem as problem:
        problem.at = (index,)
        raise


Args = Annotated[tuple[str, ...], Reads(_args, json_schema.ARGS)]


def _env(value: object) -> dict[str, str | None]:
    """Variables in order; None: taken from the caller's environment when a run starts."""
    variables: dict[str, str | None] = {}
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
            if entry[0] in variables:
                raise Problem("ORCH127", f"{entry[0]} is set twice in this list", hint="remove one of them")
            variables[entry[0]] = entry[1]
        except Problem as problem:
            problem.at = (at, *problem.at)
            problems.append(problem)
    if problems:
        raise Problems(tuple(problems))
    return variables


def _env_items(value: object) -> list[tuple[str | int, object]]:
    if isinstance(value, dict):
        return [(key, (key, given)) for key, given in cast("dict[str, object]", value).items()]
    if isinstance(value, (list, tuple)):
        return [(index, item) for index, item in enumerate(cast("list[object]", value))]
    raise Problem(
        "ORCH112", "a list or a mapping of variables is expected", hint="write `NAME: value` lines below it"
    )


def _env_value(key: str, value: object) -> str:
    if isinstance(value, (dict, list)):
        raise Problem("ORCH127", f"the value of {key} must be text", hint="quote it")
    return values.parse_env_item(f"{key}={value}")[1] or ""


def _env_mapping(item: dict[str, object]) -> Problem:
    key, given = next(iter(item.items()), ("", None))
    fixed = f"{key}={given or ''}" if len(item) == 1 and not isinstance(given, (dict, list)) else None
    return Problem(
        "ORCH127",
        "a variable in a list is written with `=`",
        hint=f"write `{fixed}`" if fixed else "write `NAME=value`",
        replacement=fixed if fixed and re.fullmatch(r"[\w=./-]+", fixed) else None,
    )


Env = Annotated[dict[str, str | None], Reads(_env, json_schema.ENV)]


def _tags(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise Problem(
            "ORCH112", f"{describe(value)} is not a mapping of tags", hint="write `key: value` lines below it"
        )
    tags: dict[str, str] = {}
    problems: list[Problem] = []
    for key, given in cast("Mapping[str, object]", value).items():
        try:
            tag = "" if given is None else text(given)
            values.check_tag(key, tag)
            tags[key] = tag
        except Problem as problem:
            problem.at = (key, *problem.at)
            problems.append(problem)
    if problems:
        raise Problems(tuple(problems))
    return tags


Tags = Annotated[dict[str, str], Reads(_tags, json_schema.TAGS)]


def absolute(what: str = "the path") -> Reads:
    """An absolute path without `..`; a trailing slash is dropped."""
    return Reads(lambda value: check_absolute(text(value), what), json_schema.PATH)


def mounted(what: str = "the path") -> Reads:
    """The same, of a mount."""
    return Reads(lambda value: check_mounted(text(value), what), json_schema.PATH)


def check_mounted(path: str, what: str = "the path") -> str:
    return characters.check_mounted(check_absolute(path, what))


def check_absolute(path: str, what: str = "the path") -> str:
    characters.check_line(path, characters.JOINERS)
    if not path.startswith("/"):
        raise Problem(
            "ORCH129", f"{what} must be absolute, {shown(path)} is not", hint=f"write `/{path.lstrip('./')}`"
        )
    if ".." in path.split("/"):
        raise Problem("ORCH129", f"{what} must not hold `..`", hint="write where it leads")
    return path.rstrip("/") or "/"
