"""JSON Schema (draft 2020-12) of the documents: editors complete and check with it.

It lets through what the language takes; values are looked at more closely by `orch validate`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, cast, get_args

from pydantic.json_schema import models_json_schema

from orch.spec.models import BACKEND_MODELS, KINDS, MODELS
from orch.spec.models.fields.base import Section, plain
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.run import Run

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REMARKS = ("dstack", "setup", "home_dir")


def schema(kind: str | None = None) -> Form:
    """The schema of one kind of document (`fleet`, `task`, …; `project` is `orch.yml`), or of any with a
    `type`.
    """
    models = {kind: MODELS[kind]} if kind else {**KINDS, **BACKEND_MODELS}
    definitions = _definitions(tuple(dict.fromkeys(models.values())))
    head: Form = {"$schema": DIALECT}
    if kind:
        model = MODELS[kind]
        return {**head, "title": f"orch: {model.noun}", "$ref": _ref(model), "$defs": definitions}
    return {
        **head,
        "title": "orch: a document",
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"description": "Kind of the document.", "enum": list(models)}},
        "allOf": [
            {
                "if": {"required": ["type"], "properties": {"type": {"const": word}}},
                "then": {"$ref": _ref(model)},
            }
            for word, model in models.items()
        ],
        "$defs": definitions,
    }


def _ref(model: type[Section]) -> str:
    return f"#/$defs/{model.__name__}"


def _definitions(models: tuple[type[Section], ...]) -> Form:
    _, generated = models_json_schema(
        [(model, "validation") for model in dict.fromkeys((*models, *BACKEND_MODELS.values()))],
        ref_template="#/$defs/{model}",
    )
    classes = {cls.__name__: cls for cls in _sections(Section)}
    definitions = cast("dict[str, dict[str, Any]]", generated.get("$defs", {}))
    blocks = {name: _block(classes[name], definition) for name, definition in sorted(definitions.items())}
    reachable = set[str]()
    waiting = [model.__name__ for model in models]
    while waiting:
        name = waiting.pop()
        if name not in reachable:
            reachable.add(name)
            waiting += re.findall(r"#/\$defs/(\w+)", json.dumps(blocks[name]))
    return {name: block for name, block in blocks.items() if name in reachable}


def _sections(base: type[Section]) -> Iterator[type[Section]]:
    yield base
    for cls in base.__subclasses__():
        yield from _sections(cls)


def _block(cls: type[Section], definition: dict[str, Any]) -> Form:
    """A block as editors are to see it: descriptions, other spellings, nothing set, short forms."""
    generated = cast("dict[str, dict[str, Any]]", definition.get("properties", {}))
    names = cls.properties()
    properties = {key: _property(cls, name, generated[key]) for key, name in names.items()}
    for spelling, name in cls.spellings.items():
        one = spelling in cls.listed_spellings
        value: Form = {"anyOf": [{"type": ["string", "null"]}, {"$ref": f"{_ref(cls)}/properties/{name}"}]}
        properties[spelling] = {
            "description": f"Another spelling of `{name}`.",
            **(value if one else {"$ref": f"{_ref(cls)}/properties/{name}"}),
        }
    if cls in MODELS.values():
        properties.update({key: {"description": "Does nothing."} for key in REMARKS if issubclass(cls, Run)})
    optional = {
        key for key, name in names.items() if cls.model_fields[name].json_schema_extra or name == "type"
    }
    required = [key for key in definition.get("required", []) if key in names and key not in optional]
    block: Form = {
        "type": "object",
        "description": said(cls),
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
        **({"patternProperties": {"^x-": {}}} if cls in MODELS.values() else {}),
    }
    branches = [*cls.short, *([block] if properties else [])]
    return block if branches == [block] else {"description": said(cls), "anyOf": branches}


def said(cls: type[Section]) -> str:
    """The docstring of a block, in one line."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def default_of(cls: type[Section], name: str) -> object:
    """A property's default as it would be written; None where there is none or it says nothing."""
    info = cls.model_fields[name]
    value = info.default
    if info.is_required() or value is None or value in ((), {}, "") or info.default_factory is not None:
        return None
    written = plain(value, name, cls)
    return None if written in ({}, []) else written


def _property(cls: type[Section], name: str, generated: dict[str, Any]) -> Form:
    form: Form = {
        key: value for key, value in generated.items() if key not in ("default", "description", "title")
    }
    info = cls.model_fields[name]
    if (variants := _variants_in(info.annotation)) is not None:
        form = {"type": "array", "items": {"anyOf": [{"$ref": _ref(each)} for each in variants]}}
    default = default_of(cls, name)
    head: Form = {"description": info.description or ""}
    if default is not None:
        head["default"] = default
    if set(form) == {"const"}:
        return {**head, **form}
    return {**head, "anyOf": [*_choices(form), {"type": "null"}]}


def _variants_in(annotation: Any) -> tuple[type[Section], ...] | None:
    """The blocks that a list holds one of each, where pydantic knows only what they have in common."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return variants if (variants := annotation.variants()) != (annotation,) else None
    return next((found for part in get_args(annotation) if (found := _variants_in(part)) is not None), None)


def _choices(form: Form) -> list[Form]:
    """The branches of a form, without null and without wrappers that say nothing."""
    if "anyOf" not in form or not set(form) <= {"anyOf", "title"}:
        return [] if form == {"type": "null"} else [form]
    return [part for branch in cast("list[Form]", form["anyOf"]) for part in _choices(branch)]


def kinds() -> tuple[str, ...]:
    """Return the names that `schema` takes."""
    return (*KINDS, "project", *BACKEND_MODELS)
