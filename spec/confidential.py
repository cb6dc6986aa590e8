"""Secret values that this process has decrypted: no message, trace or log of orch shows them.

Who decrypts a value calls `remember`; who writes for people or into files calls `hidden`. What a job writes
into its own log is the job's, and passes as it is.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable

MASK = "(secret)"

SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY", re.I)
"""How the names of variables and properties look whose values are secret."""

SHORTEST = 6
"""Characters of the shortest value that is masked: shorter ones occur anywhere by chance."""

# Each line of a key in PEM is as good as all of them; a short line of another text is none of it.
_LONG_LINE = 16

_remembered: set[str] = set()


def remember(values: Iterable[str]) -> None:
    """Mask these values in all that this process writes from now on."""
    _remembered.update(form for value in values for form in forms(value))


def hidden(text: str) -> str:
    """The text without the values that were remembered."""
    return without(text, list(_remembered))


def without(text: str, some_forms: Iterable[str]) -> str:
    """The text with these forms masked, the longest first."""
    for form in sorted(some_forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def forms(value: str) -> frozenset[str]:
    """A value as it is, and as Python, JSON and a shell write it, also inside of one another; none for one
    that is too short. Long lines of a value count as values."""
    lines = [line for line in value.splitlines() if len(line) >= _LONG_LINE] if "\n" in value else []
    return frozenset(form for each in (value, *lines) if len(each) >= SHORTEST for form in _forms_of(each))


def _forms_of(value: str) -> set[str]:
    once = _written(value)
    return {value, shlex.quote(value), *once, *(again for each in once for again in _written(each))}


def _written(value: str) -> set[str]:
    """Within quotes: which of them is escaped depends on what stands around the value."""
    escaped = "".join(each if each in "'\"" else repr(each)[1:-1] for each in value)
    return {escaped, escaped.replace("'", "\\'"), escaped.replace('"', '\\"'), json.dumps(value)[1:-1]}
