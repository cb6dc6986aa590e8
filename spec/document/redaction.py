"""Values that the environment filled in are never quoted: a message goes into logs that others read.

`${{ env.X }}` may be a password, also when it stands where none belongs (`spot_policy: ${{ env.TOKEN }}`). A
message shows the reference in place of the value, of a PIN as of a key. One that holds a part of the value,
cut off or changed, is replaced by what its code means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from orch.spec.codes import CODES
from orch.spec.diagnostics import Diagnostic
from orch.spec.grammar.values import shown

PART = 5
"""So many letters and digits in a row are a part of a value."""

WHOLE = 4
"""A value of so many characters, whichever, is not shown as a whole. Shorter ones are counts."""

_REFERENCE = r"\$\{\{ env\.\w+ \}\}"
_NO_NAME = re.compile(r"[\W_]+")


def masked(diagnostic: Diagnostic, variables: Mapping[str, str]) -> Diagnostic:
    """The diagnostic without values of the environment; `variables` maps names to values."""
    values = {name: value for name, value in variables.items() if _forms(value) or _parts(value)}
    if not values:
        return diagnostic
    summary = _hidden(diagnostic.summary, values)
    hint = _hidden(diagnostic.hint, values)
    detail = _hidden(diagnostic.detail, values)
    related = tuple(
        replace(other, message=_hidden(other.message, values) or "the other place")
        for other in diagnostic.related
    )
    replacement = diagnostic.replacement
    if replacement is not None and _hidden(replacement, values) != replacement:
        replacement = None
    if diagnostic.hint is not None and hint is None:
        hint = not_quoted(values)
    return replace(
        diagnostic,
        summary=CODES[diagnostic.code] if summary is None else summary,
        hint=hint,
        detail=detail,
        replacement=replacement,
        related=related,
    )


def unquoted(diagnostic: Diagnostic, variables: Mapping[str, str]) -> Diagnostic:
    """The diagnostic with the title of its code as summary, for a value of the environment."""
    hint = not_quoted(variables)
    return replace(diagnostic, summary=CODES[diagnostic.code], detail=None, hint=hint, replacement=None)


def not_quoted(variables: Mapping[str, str]) -> str:
    names = ", ".join(f"`{reference(name)}`" for name in list(variables)[:3])
    return f"look at what {names} is where you are: values of the environment are not shown"


def reference(name: str) -> str:
    return f"${{{{ env.{name} }}}}"


def _hidden(text: str | None, values: Mapping[str, str]) -> str | None:
    """The text with references in place of values; None when a part of a value remains."""
    if text is None:
        return None
    forms = {form: name for name, value in values.items() for form in _forms(value)}
    longest = sorted(forms, key=len, reverse=True)
    # A reference is passed over: what is a part of it too (`env`) is looked for beside it.
    whole = re.compile("|".join([*map(re.escape, longest), _REFERENCE]), re.IGNORECASE)
    names = {form.casefold(): name for form, name in forms.items()}
    text = whole.sub(lambda found: _named(found[0], names), text)
    left = _bare(re.sub(_REFERENCE, " ", text))
    return None if any(part in left for value in values.values() for part in _parts(value)) else text


def _named(text: str, names: Mapping[str, str]) -> str:
    name = names.get(text.casefold())
    return text if name is None else reference(name)


@lru_cache(maxsize=256)
def _forms(value: str) -> frozenset[str]:
    """A whole value as messages may hold it: as it is, in one line, without what a terminal acts on."""
    forms = (value, value.strip(), " ".join(value.split()), shown(value)[1:-1])
    return frozenset(form for form in forms if len(form.strip()) >= WHOLE)


@lru_cache(maxsize=256)
def _parts(value: str) -> frozenset[str]:
    bare = _bare(value)
    return frozenset(bare[at : at + PART] for at in range(len(bare) - PART + 1))


def _bare(text: str) -> str:
    """Return a text as it looks after it is split, folded to lower case or converted to a name."""
    return _NO_NAME.sub("", text.casefold())
