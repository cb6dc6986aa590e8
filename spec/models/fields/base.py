"""What all models share: frozen, no unknown properties, read from text or built in Python.

From a file every scalar arrives as its source text and each property's type reads it (`types.py`). Built
in Python, a model takes the finished values too: `Task(nodes=2)`, `Nodes(min=1, target=2, max=4)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, model_validator

from orch.spec.grammar.values import Problem, shown
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import reads_of


@dataclass(frozen=True)
class PropertyConflict:
    """Properties of a section that exclude or need each other.

    `at`: where, from the section on; with `key`, the property itself is marked and not its value.
    """

    summary: str
    hint: str
    at: tuple[str, ...] = ()
    key: bool = False


class Section(BaseModel):
    """A mapping with known properties.

    `noun` names it in messages. `spellings` maps other accepted spellings to a property; `listed_spellings`
    are those that take one value where the property takes a list (`backend: local`). `short` are the forms
    without property names that `expand` understands.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_by_name=True,
        validate_by_alias=True,
    )
    noun: ClassVar[str] = "a block"
    spellings: ClassVar[dict[str, str]] = {}
    listed_spellings: ClassVar[frozenset[str]] = frozenset()
    short: ClassVar[tuple[Form, ...]] = ()

    def conflicts(self) -> Iterator[PropertyConflict]:
        """Yield the conflicts of the sections in it; a section with rules of its own adds them."""
        for name in type(self).model_fields:
            part = getattr(self, name)
            if isinstance(part, Section):
                for each in part.conflicts():
                    yield replace(each, at=(name, *each.at))

    def exactly_one(self, one: str, other: str) -> Iterator[PropertyConflict]:
        """That both properties are set, or none of them."""
        if (getattr(self, one) is None) == (getattr(self, other) is None):
            yield PropertyConflict(
                f"exactly one of `{one}` and `{other}` is needed",
                "add one of them" if getattr(self, one) is None else "remove one of them",
            )

    @classmethod
    def properties(cls) -> dict[str, str]:
        """Property as written in a file -> attribute; a block's own before those it shares with others."""
        return _properties(cls)

    @classmethod
    def written(cls) -> tuple[str, ...]:
        """Return all keys that a file may hold here, including other spellings."""
        return (*cls.properties(), *cls.spellings)

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        """The one way in: short forms become mappings, other spellings their property, empty ones not set."""
        data = cls.expand(data)
        if isinstance(data, BaseModel):
            return data
        if not isinstance(data, dict):
            raise Problem("ORCH112", f"{cls.noun} cannot be {describe(data)}", hint=cls.form())
        names = _names(cls)
        result: dict[str, object] = {}
        for key, value in cast("dict[str, object]", data).items():
            if value is None and key in names:
                continue
            target = cls.spellings.get(key, key)
            if target in result:
                other = next((one for one, own in cls.spellings.items() if own == target and one != key), key)
                summary = f"`{key}` and `{target if key != target else other}` are the same property"
                raise Problem("ORCH157", summary, hint="keep one of them", at=(key,), on_key=True)
            if key in cls.listed_spellings and not isinstance(value, (list, tuple)):
                result[target] = [value]
            else:
                result[target] = cast(object, value)
        return result

    @classmethod
    def expand(cls, data: object) -> object:
        """A short form as its mapping; anything else unchanged."""
        return data

    def plain(self) -> object:
        """Canonical plain data: what is set, each value as its property's text. Reads as an equal model."""
        data = {
            key: plain(getattr(self, name), name, type(self))
            for key, name in self.properties().items()
            if name in self.model_fields_set
        }
        return {key: value for key, value in data.items() if value is not None}

    @classmethod
    def variants(cls) -> tuple[type[Section], ...]:
        """The blocks that a property of this type holds one of: this one, unless it stands for others."""
        return (cls,)

    @classmethod
    def form(cls) -> str:
        """Return a hint on what to write if the value is not a mapping."""
        return "write `property: value` lines below it"


@cache
def _properties(cls: type[Section]) -> dict[str, str]:
    bases = [base.model_fields for base in cls.__mro__ if issubclass(base, Section)]

    def rank(name: str) -> int:
        return -1 if name in ("type", "name") else max(i for i, fields in enumerate(bases) if name in fields)

    return {
        str(cls.model_fields[name].validation_alias or name): name
        for name in sorted(cls.model_fields, key=rank)
    }


@cache
def _names(cls: type[Section]) -> frozenset[str]:
    return frozenset((*cls.written(), *cls.model_fields))


def describe(value: object) -> str:
    """A value of the wrong kind, for a message."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "nothing" if value is None else shown(str(value))


def plain(value: object, name: str = "", owner: type[Section] | None = None) -> object:
    """Plain data of a property's value. `name` and `owner` say whose value it is."""
    reads = reads_of(owner.model_fields[name]) if owner else None
    if value is None:
        return reads.nothing if reads else None
    if reads is not None and reads.write is not None:
        return reads.write(value)
    if isinstance(value, Section):
        return value.plain()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in cast("dict[str, object]", value).items()}
    return value
