"""Labels of GCP resources, which know fewer letters than tags elsewhere. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding

# Source: Google Cloud "Organize resources using labels", requirements.
_FOREIGN = re.compile(r"[^a-z0-9_-]")
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LONGEST = 63


def label(text: str) -> str:
    """The nearest a label can be: lower case, other characters as `_`; too long ones end in a hash."""
    plain = _FOREIGN.sub("_", text.lower())
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[: LONGEST - 9]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def labels(*layers: Mapping[str, str]) -> dict[str, str]:
    """All of them, later ones winning."""
    return {_key(key): label(value) for layer in layers for key, value in layer.items()}


def _key(text: str) -> str:
    key = label(text)
    return key if key[:1].isalpha() else f"l{key}"[:LONGEST]


def label_findings(tags: Mapping[str, str]) -> Iterator[Finding]:
    """Tags of the file that GCP spells differently."""
    for key, value in tags.items():
        spelled = _key(key), label(value)
        if spelled != (key, value):
            yield Finding(
                "ORCH231",
                f"tags.{key}",
                f"GCP takes this tag as `{spelled[0]}: {spelled[1]}` only",
                detail="labels have lower-case letters, digits, `_` and `-`, 63 at most",
                severity=Severity.WARNING,
            )
