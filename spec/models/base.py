"""What all models share: frozen, no unknown properties, read from text or built in Python.

From a file every scalar arrives as its source text and each property's type reads it (`fields.py`). Built
in Python, a model takes the finished values too: `Task(nodes=2)`, `Nodes(min=1, target=2, max=4)`.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, model_validator

from orch.spec.values import Problem, shown


class Section(BaseModel):
    """A mapping with known properties.

    `noun` names it in messages. `spellings` maps other accepted spellings to a property; `listed_spellings`
    are those that take one value where the property takes a list (`backend: local`).
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True, validate_default=False
    )
    noun: ClassVar[str] = "a block"
    spellings: ClassVar[dict[str, str]] = {}
    listed_spellings: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def properties(cls) -> dict[str, str]:
        """Property as written in a file -> attribute."""
        return {str(info.validation_alias or name): name for name, info in cls.model_fields.items()}

    @classmethod
    def written(cls) -> tuple[str, ...]:
        """All keys a file may hold here, other spellings included."""
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
        known = cls.written()
        read: dict[str, object] = {}
        for key, value in cast("dict[str, object]", data).items():
            if value is None and (key in known or key in cls.model_fields):
                continue
            target = cls.spellings.get(key, key)
            if key in cls.listed_spellings and not isinstance(value, (list, tuple)):
                read.setdefault(target, [value])
            else:
                read.setdefault(target, cast(object, value))
        return read

    @classmethod
    def expand(cls, data: object) -> object:
        """A short form as its mapping; anything else unchanged."""
        return data

    @classmethod
    def form(cls) -> str:
        """What to write, when something else than a mapping came."""
        return "write `property: value` lines below it"


def describe(value: object) -> str:
    """A value of the wrong kind, for a message."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "nothing" if value is None else shown(str(value))
