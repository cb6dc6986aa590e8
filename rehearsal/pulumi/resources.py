"""Check, diff, create, read, update and delete of any type, on plain dictionaries."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from orch.providers.orch.values import UNKNOWN
from orch.rehearsal.account import SimulatedAccount, SimulationError
from orch.rehearsal.pulumi.differences import PropertyChange, covers, differences, refers, same
from orch.rehearsal.pulumi.schema import Schema

Props = dict[str, Any]

DEFAULTS = "__defaults"
"""The input that names what was filled in, as in the real provider's states."""

EMPTY = (None, "", [], {}, False, 0)


class SimulatedResources(ABC):
    """All resource types of one cloud on one account.

    `places` are the provider's own settings of where things are (`region`…).
    """

    def __init__(
        self,
        account: SimulatedAccount,
        schemas: Mapping[str, Schema],
        kinds: Mapping[str, Any],
        places: Mapping[str, str | None],
    ) -> None:
        self.account = account
        self.places = places
        self._schemas, self._kinds = schemas, kinds

    # -- what a cloud adds --------------------------------------------------------------------------------

    @abstractmethod
    def marks(self, schema: Schema, inputs: Props, state: Props | None) -> Props:
        """Outputs that follow from the inputs and the provider's settings alone (tags, labels)."""

    @abstractmethod
    def marks_changed(
        self, schema: Schema, state: Props, inputs: Props, told: frozenset[str]
    ) -> list[PropertyChange]:
        """What differs because of the provider's settings, beside the properties that are `told` already."""

    @abstractmethod
    def as_marked(self, schema: Schema, known: Props, found: Props) -> Props:
        """Tags or labels as found, as the real provider shows them. Takes their raw form out of `found`."""

    @abstractmethod
    def create(self, token: str, inputs: Props) -> tuple[str, Props]: ...

    @abstractmethod
    def read(self, token: str, resource_id: str, state: Props) -> Props | None:
        """Its outputs, or None when it is gone."""

    @abstractmethod
    def update(self, token: str, resource_id: str, state: Props, inputs: Props) -> Props: ...

    @abstractmethod
    def delete(self, token: str, resource_id: str, state: Props) -> None: ...

    # -- before anything is done --------------------------------------------------------------------------

    def schema(self, token: str) -> Schema:
        if token not in self._kinds:
            raise SimulationError(
                f"the simulated cloud has no resource type {token}",
                hint="a rehearsal knows those in resources.yml",
            )
        return self._schemas[token]

    def place(self, name: str, properties: Mapping[str, Any]) -> Any:
        return properties.get(name) or self.places.get(name)

    def check(self, token: str, urn: str, old: Props, new: Props) -> tuple[Props, list[tuple[str, str]]]:
        """What is added to the inputs, and what is wrong with them."""
        schema = self.schema(token)
        failures = [
            (name, f"Invalid or unknown key. Check `pulumi config get {name}`.")
            for name in new
            if name not in schema.inputs and not name.startswith("__")
        ]
        failures += [(name, "Missing required argument") for name in schema.required if new.get(name) is None]
        added: Props = {name: value for name, value in schema.defaults.items() if new.get(name) is None}
        if schema.name and new.get(schema.name) is None:
            prefix = new.get(f"{schema.name}Prefix")
            kept = old.get(schema.name) if schema.name in (old.get(DEFAULTS) or ()) else None
            added[schema.name] = kept or self._name(urn, prefix)
        if added:
            added[DEFAULTS] = sorted(added)
        return added, failures

    def _name(self, urn: str, prefix: Any) -> str:
        """A name of its own, the same at each preview, and not one that is there."""
        base = str(prefix) if isinstance(prefix, str) else f"{urn.rsplit('::', 1)[-1]}-"
        number = 0
        while True:
            name = base + hashlib.sha256(f"{self.account.seed} {urn} {number}".encode()).hexdigest()[:7]
            with self.account.store.transaction():
                if not self.account.store.is_named(name):
                    return name
            number += 1

    def diff(self, token: str, state: Props, inputs: Props) -> tuple[list[PropertyChange], bool]:
        """The changes, and whether the old one must go before the new one is made."""
        schema = self.schema(token)
        found = differences(schema, state, inputs)
        for place in sorted(schema.places):
            wanted = self.place(place, inputs)
            moved = wanted not in (None, UNKNOWN) and not refers(state.get(place), wanted)
            if state.get(place) and moved:
                found.append(PropertyChange(place, "update", True))
        found += self.marks_changed(schema, state, inputs, frozenset(change.top for change in found))
        named = schema.name is not None and schema.name not in (inputs.get(DEFAULTS) or ())
        stays = named and not any(change.top == schema.name for change in found)
        return found, stays and any(change.replaces for change in found)

    def planned(self, token: str, inputs: Props, state: Props | None = None) -> Props:
        """The outputs beyond the inputs as a preview knows them; without `state` for one that is not yet
        made."""
        schema = self.schema(token)
        if state is None:
            unknown = {*schema.outputs, *(name for name in schema.computed if "." not in name)} - set(inputs)
            found: Props = dict.fromkeys(unknown, UNKNOWN)
        else:
            found = {name: value for name, value in state.items() if name not in inputs}
            for name in set(schema.inputs) - set(inputs) - schema.computed:
                found.pop(name, None)
            found |= dict.fromkeys(schema.stale - set(inputs), UNKNOWN)
        found |= self.marks(schema, inputs, state)
        for place in schema.places:
            if (where := self.place(place, inputs)) is not None:
                found[place] = where
        return found

    # -- after it ------------------------------------------------------------------------------------------

    def outputs(self, schema: Schema, known: Props, found: Props) -> Props:
        """What was found, in the words of the program where it means the same."""
        marks = self.as_marked(schema, known, found)
        outputs = {key: value for key, value in known.items() if key != DEFAULTS}
        for name, value in found.items():
            old = outputs.get(name)
            listed = isinstance(old, list) and name in schema.sets and covers(value, old)
            linked = name in schema.links and refers(value, old)
            if name not in outputs or not (listed or linked or same(old, value)):
                outputs[name] = value
        for name, value in schema.defaults.items():
            if outputs.get(name) is None and name not in found:
                outputs[name] = value
        for place in schema.places:
            if outputs.get(place) is None and self.places.get(place) is not None:
                outputs[place] = self.places[place]
        return outputs | marks

    def inputs_as_found(self, token: str, inputs: Props, outputs: Props) -> Props:
        """A program's inputs after a read: what differs as it is now; all that is known after an import."""
        schema = self.schema(token)
        if not inputs:
            return {
                name: outputs[name]
                for name in schema.inputs
                if outputs.get(name) not in EMPTY and name not in schema.defaults
            }
        changed = {change.top for change in differences(schema, outputs, inputs)}
        kept = dict(inputs)
        for name in changed & set(inputs):
            value = outputs.get(name)
            if isinstance(value, dict) and isinstance(inputs[name], dict) and name not in schema.maps:
                value = {key: item for key, item in value.items() if key in inputs[name]}
            if value is None:
                kept.pop(name)
            else:
                kept[name] = value
        return kept


def kept(schema: Schema, state: Props, wanted: Props) -> Props:
    """What the cloud filled in stays known over an update; what the program let go does not."""
    return {
        name: value
        for name, value in state.items()
        if name not in schema.inputs or name in schema.computed or name in wanted
    }


def without_defaults(inputs: Props) -> Props:
    return {key: value for key, value in inputs.items() if key != DEFAULTS}


def types_of(package: str) -> dict[str, Any]:
    """Token -> the resource type: `TYPES` of every module of a package."""
    modules = [
        import_module(f"{package}.{each.name}") for each in iter_modules(import_module(package).__path__)
    ]
    return {token: kind for module in modules for token, kind in getattr(module, "TYPES", {}).items()}
