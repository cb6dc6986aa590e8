"""Changes top-level settings of an `orch.yml` in its text: comments, order and all else stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from orch.spec.errors import OrchError
from orch.stacks.errors import ProjectError
from orch.stacks.project.project import Project, find

_PLAIN = re.compile(r"[A-Za-z][\w./:@+?=&%-]*[\w/]")


def settings_in(text: str) -> dict[str, str]:
    """The top-level settings of a text that are single values. One that cannot be read has none."""
    return {key: value.value for key, value in _entries(text) if isinstance(value, yaml.ScalarNode)}


def with_settings(text: str, given: Mapping[str, str | None]) -> str:
    """The text with these settings; None takes a setting out. Pure."""
    spans = {key: (value.start_mark.index, value.end_mark.index) for key, value in _entries(text)}
    for key, value in sorted(given.items(), key=lambda each: -spans.get(each[0], (0, 0))[0]):
        if key not in spans:
            continue
        start, end = spans[key]
        if value is not None:
            text = f"{text[:start]}{_scalar(value)}{text[end:]}"
        else:
            line = text.rfind("\n", 0, start) + 1
            after = text.find("\n", end)
            text = text[:line] + ("" if after < 0 else text[after + 1 :])
    more = [
        f"{key}: {_scalar(value)}\n" for key, value in given.items() if key not in spans and value is not None
    ]
    if more and text and not text.endswith("\n"):
        text += "\n"
    return text + "".join(more)


def change_settings(root: Path, given: Mapping[str, str | None]) -> tuple[Project, bool]:
    """Write settings into the `orch.yml` of a folder. The project as it then is; whether the file changed.

    A file that would not be valid then stays as it was. Raises ProjectError, InvalidConfiguration.
    """
    file = root / "orch.yml"
    try:
        text = file.read_text("utf-8") if file.exists() else None
        changed = with_settings(text or "", given)
        if changed == text:
            return find(root), False
        file.write_bytes(changed.encode("utf-8"))  # what has no such form is told before the file is opened
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise ProjectError(
            "orch.yml cannot be changed", where=str(file), detail=words, code="ORCH302"
        ) from error
    try:
        return find(root), True
    except OrchError:
        if text is None:
            file.unlink()
        else:
            file.write_text(text, "utf-8")
        raise


def _entries(text: str) -> list[tuple[str, yaml.Node]]:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return []
    if not isinstance(node, yaml.MappingNode):
        return []
    return [(str(key.value), value) for key, value in node.value]


def _scalar(value: str) -> str:
    """A text as YAML reads it as the same text."""
    return value if _PLAIN.fullmatch(value) and ": " not in value else json.dumps(value, ensure_ascii=False)
