"""A model back to YAML: canonical text that reads as an equal model."""

from __future__ import annotations

from typing import cast

import yaml

from orch.spec.document.reference_scopes import scope_of
from orch.spec.grammar.interpolate import ReferenceSite
from orch.spec.models.fields.base import Section


def dump(model: Section) -> str:
    """The YAML of a document. What was not written is left out; sizes, durations and ranges are in their
    canonical form, short forms where they say all.
    """
    kind = str(getattr(model, "type", "project"))
    data = cast("dict[str, object]", model.plain())
    if "type" in type(model).model_fields:
        data = {"type": kind, **{key: value for key, value in data.items() if key != "type"}}
    escaped = {key: _escaped(value, kind, (key,)) for key, value in data.items()}
    return yaml.dump(  # pyright: ignore[reportUnknownMemberType]  # newer stubs leave `width` open
        escaped,
        Dumper=yaml.CSafeDumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=10_000,
    )


def _escaped(value: object, kind: str, path: tuple[str | int, ...]) -> object:
    """Dollars of text that is finished when it is read: there `$$` stands for one."""
    if isinstance(value, dict):
        inner = cast("dict[str, object]", value)
        return {key: _escaped(item, kind, (*path, key)) for key, item in inner.items()}
    if isinstance(value, list):
        return [
            _escaped(item, kind, (*path, index)) for index, item in enumerate(cast("list[object]", value))
        ]
    if not isinstance(value, str):
        return value
    site = scope_of(kind, path).site
    if site is ReferenceSite.READ or (site is ReferenceSite.LAUNCH and "${{" not in value):
        return _escape(value)
    return value


def _escape(text: str) -> str:
    if "$$" not in text and "${{" not in text:
        return text
    return text.replace("$", "$$")
