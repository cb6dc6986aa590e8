"""How a property is read, how its canonical text is written, what editors are told: one annotation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from orch.spec.grammar.values import Problem, Problems
from orch.spec.models.fields.json_schema import Form

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from orch.spec.models.fields.base import Section

Path = tuple[str | int, ...]


class Reads:
    """Reads a value before pydantic sees it.

    `form` describes what may be written, in place of what the type says; with `beside` in addition to it.
    `write` gives the plain data that reads as the same value; without it the value itself is written.
    `nothing` is what None is written as, where it was written and not left out.
    """

    def __init__(
        self,
        read: Callable[[Any], object],
        form: Form | None = None,
        *,
        beside: bool = False,
        write: Callable[[Any], object] | None = None,
        nothing: object = None,
    ) -> None:
        self.read = read
        self.form = form
        self.beside = beside
        self.write = write
        self.nothing = nothing

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Form:
        if self.form is None:
            return handler(schema)
        return {"anyOf": [dict(self.form), handler(schema)]} if self.beside else dict(self.form)


class Here:
    """Marks a path on the machine that reads the file."""


class Reaches:
    """Marks a setting that is followed out of the machine, or by programs of its choosing."""


def marked(info: FieldInfo, kind: type[Here] | type[Reaches]) -> bool:
    """Return True if a property has a mark of this kind, also within `X | None`."""
    return any(isinstance(mark, kind) for mark in _marks(info.annotation, info.metadata))


def reads_of(info: FieldInfo) -> Reads | None:
    """The annotation of a property, also from within `X | None`."""
    return next((mark for mark in _marks(info.annotation, info.metadata) if isinstance(mark, Reads)), None)


def _marks(annotation: Any, metadata: list[Any]) -> list[Any]:
    marks = list(metadata)
    for part in get_args(annotation):
        if hasattr(part, "__metadata__"):
            marks += part.__metadata__
    return marks


class Misread(ValueError):
    """Errors in parts of a value that models of their own read: each with its place."""

    def __init__(self, parts: list[tuple[Path, type[Section], ValidationError | Problem | Problems]]) -> None:
        super().__init__(f"{len(parts)} parts cannot be read")
        self.parts = parts


def read_as(model: type[Section], value: object, at: Path = ()) -> Section:
    """The value as `model`. Raises Misread, so that a union never tries its other branches."""
    if isinstance(value, model):
        return value
    try:
        return model.model_validate(value, by_alias=True, by_name=not isinstance(value, Mapping))
    except ValidationError as error:
        raise Misread([(at, model, error)]) from None
