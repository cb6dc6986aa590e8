"""What the rules of a project find of the resources of an engine call, as its events come.

A cloud repeats the user data in each node, so events are kept without the inputs of resources
(`changes.py:without_values`): rules look at a resource as it passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orch.policies.rule import Breach, Resource, Rule
from orch.policies.settings import DEFAULTS, Setting, Settings

Found = tuple[Setting, Breach]

_GOING = ("delete", "delete-replaced", "discard", "discard-replaced", "refresh", "read")
_LEVELS = {"mandatory": "mandatory", "advisory": "advisory", "remediate": "mandatory"}


@dataclass
class Inspection:
    """Findings on each resource, by its urn: a resource that passes again is judged anew.

    `of_packs`: what the engine tells of the project's own policy packs.
    """

    settings: Settings = DEFAULTS
    of_resources: dict[str, list[Found]] = field(default_factory=dict[str, "list[Found]"])
    of_packs: dict[tuple[str, str, str], Found] = field(default_factory=dict[tuple[str, str, str], Found])
    _providers: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])

    def see(self, event: Mapping[str, Any]) -> None:
        """Take an event of the engine with all its values."""
        if policy := event.get("policyEvent"):
            self._see_pack(policy)
            return
        data: Mapping[str, Any] = (event.get("resourcePreEvent") or {}).get("metadata") or {}
        new: Mapping[str, Any] = data.get("new") or {}
        if not data or data["op"] in _GOING or "inputs" not in new:
            return
        urn, inputs = data["urn"], new["inputs"] or {}
        if data["type"].startswith("pulumi:providers:"):
            self._providers[urn] = inputs
            return
        provider = self._providers.get(str(data.get("provider") or "").rpartition("::")[0], {})
        resource = Resource(data["type"], urn.rsplit("::", 1)[-1], urn, inputs, provider)
        found = list(self.settings.of_resource(resource))
        if found:
            self.of_resources[urn] = found
        else:
            self.of_resources.pop(urn, None)

    def found(self) -> Iterator[Found]:
        for each in self.of_resources.values():
            yield from each
        yield from self.of_packs.values()

    @property
    def refuses(self) -> bool:
        """Return True if a policy pack refuses, for which the engine fails with an error."""
        return any(setting.level == "mandatory" for setting, _ in self.of_packs.values())

    def _see_pack(self, event: Mapping[str, Any]) -> None:
        level = _LEVELS.get(str(event.get("enforcementLevel")))
        if level is None:
            return
        pack, name, urn = str(event["policyPackName"]), str(event["policyName"]), str(event["resourceUrn"])
        rule = Rule(
            f"{pack}/{name}",
            "resource",
            "medium",
            "mandatory" if level == "mandatory" else "advisory",
            name,
            "change what it is about",
        )
        text = " ".join(str(event["message"]).split())
        breach = Breach(text, "", urn.rsplit("::", 1)[-1], urn)
        self.of_packs[pack, name, urn] = Setting(rule, rule.level, {}), breach
