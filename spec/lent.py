"""What the environment lent to a document is never quoted back: a message goes into logs that others read.

`${{ env.X }}` may be a password, also when it stands where none belongs (`spot_policy: ${{ env.TOKEN }}`). A
message shows the reference in place of the value. One that holds a part of the value, cut off or changed, is
replaced by what its code means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from .diagnostics import CODES, Diagnostic

PART = 5
"""So many letters and digits in a row are a part of a value. Shorter values are counts and words."""


def masked(found: Diagnostic, lent: Mapping[str, str]) -> Diagnostic:
    """The diagnostic without what the environment lent; `lent` maps variables to their values."""
    values = {name: value for name, value in lent.items() if len(_bare(value)) >= PART}
    if not values:
        return found
    summary = _hidden(found.summary, values)
    hint = _hidden(found.hint, values)
    detail = _hidden(found.detail, values)
    related = tuple(
        replace(other, message=_hidden(other.message, values) or "the other place") for other in found.related
    )
    replacement = found.replacement
    if replacement is not None and _holds_part(replacement, values):
        replacement = None
    if found.hint is not None and hint is None:
        hint = not_quoted(values)
    return replace(
        found,
        summary=CODES[found.code] if summary is None else summary,
        hint=hint,
        detail=detail,
        replacement=replacement,
        related=related,
    )


def unquoted(found: Diagnostic, lent: Mapping[str, str]) -> Diagnostic:
    """The diagnostic in the words of its code, of a value that the environment lent."""
    hint = not_quoted(lent)
    return replace(found, summary=CODES[found.code], detail=None, hint=hint, replacement=None)


def not_quoted(lent: Mapping[str, str]) -> str:
    names = ", ".join(f"`{reference(name)}`" for name in list(lent)[:3])
    return f"look at what {names} is where you are: values of the environment are not shown"


def reference(name: str) -> str:
    return f"${{{{ env.{name} }}}}"


def _hidden(text: str | None, values: Mapping[str, str]) -> str | None:
    """The text with references in place of values; None when a part of one is left."""
    if text is None:
        return None
    for name, value in sorted(values.items(), key=lambda item: -len(item[1])):
        for form in (value, value.strip(), " ".join(value.split())):
            text = text.replace(form, reference(name))
    rest = re.sub(r"\$\{\{ env\.\w+ \}\}", " ", text)
    return None if _holds_part(rest, values) else text


def _holds_part(text: str, values: Mapping[str, str]) -> bool:
    bare = _bare(text)
    parts = {bare[at : at + PART] for at in range(len(bare) - PART + 1)}
    return any(
        value[at : at + PART] in parts
        for value in map(_bare, values.values())
        for at in range(len(value) - PART + 1)
    )


def _bare(text: str) -> str:
    """What is left of a text when it is split, folded to lower case or made a name."""
    return "".join(char for char in text.casefold() if char.isalnum())
