"""Digests of what a preview makes resources with, taken from the engine's events.

Left out: what the engine marks as secret, values under names like `API_TOKEN`, and those of the project's own
secrets. A secret that is rotated between plan and apply is applied as it is then; where the engine makes an
update of it, that is an operation like any other.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from orch.spec.confidential import MASK, SECRET_NAME, hidden
from orch.stacks.engine.process import Event
from orch.stacks.events.masking import UNKNOWN, is_secret
from orch.stacks.plans.saved_plan import LATER

_MADE = ("create", "update", "replace", "create-replacement")


@dataclass
class Recorder:
    """Sees the events of a preview with all their values, and keeps digests of inputs.

    `engine_plan`: the file that the engine writes its own plan to, None for none. `providers`: version of
    each provider that the engine uses.
    """

    engine_plan: Path | None = None
    inputs: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    providers: dict[str, str] = field(default_factory=dict[str, str])

    def __call__(self, event: Event) -> None:
        data: Mapping[str, Any] = (event.get("resourcePreEvent") or {}).get("metadata") or {}
        if not data:
            return
        inputs: Mapping[str, Any] = (data.get("new") or {}).get("inputs") or {}
        kind = str(data["type"])
        if kind.startswith("pulumi:providers:"):
            self.providers[kind.rpartition(":")[2]] = str(inputs.get("version") or "")
        elif not kind.startswith("pulumi:") and data["op"] in _MADE:
            self.inputs[data["urn"]] = {key: _value_digest(key, each) for key, each in inputs.items()}

    @property
    def words(self) -> list[str]:
        """Arguments of the engine's `preview`."""
        return ["--save-plan", str(self.engine_plan)] if self.engine_plan else []

    def digests(self, urn: str, key: str) -> dict[str, str]:
        """Digests of a resource's inputs, keyed so that nobody without the key tries out values."""
        return {
            name: (LATER if each.startswith(LATER) else "")
            + hmac.new(key.encode(), f"{urn} {name} {each}".encode(), hashlib.sha256).hexdigest()[:16]
            for name, each in sorted(self.inputs.get(urn, {}).items())
        }


def _value_digest(name: str, value: Any) -> str:
    text = hidden(json.dumps(_clear(name, value), sort_keys=True, separators=(",", ":")))
    later = LATER if UNKNOWN in text else ""
    return later + hashlib.sha256(text.encode()).hexdigest()


def _clear(name: str, value: Any) -> Any:
    """A value without what is secret in it."""
    if value is not None and (is_secret(value) or (SECRET_NAME.search(name) and isinstance(value, str))):
        return MASK
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        return {str(key): _clear(str(key), each) for key, each in mapping.items()}
    if isinstance(value, list):
        return [_clear(name, each) for each in cast("list[Any]", value)]
    return value
