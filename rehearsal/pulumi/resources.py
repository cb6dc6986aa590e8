"""Check, diff, create, read, update and delete of any type, on plain dictionaries."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar

from orch.providers.orch.values import UNKNOWN
from orch.rehearsal.account import SimulatedAccount, SimulationError
from orch.rehearsal.pulumi.differences import PropertyDifference, covers, differences, refers, same
from orch.rehearsal.pulumi.schema import Schema

Props = dict[str, Any]

DEFAULTS = "__defaults"
"""The input that lists the inputs that got a default, as in the real provider's states."""

EMPTY = (None, "", [], {}, False, 0)


class SimulatedResources(ABC):
    """All resource types of one cloud on one account.

    `places` are the provider's own settings of where things are (`region`…).
    """

    refusal: ClassVar[type[Exception]]
    """What a type raises when the cloud refuses a call."""

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
    def api(self, properties: Props) -> Any:
        """The cloud's API where the properties, or else the provider's settings, say."""

    @abstractmethod
    def label(self, token: str) -> str:
        """What the real provider calls a type in its errors."""

    @abstractmethod
    def error(self, failure: Any, activity: str) -> SimulationError:
        """A refusal in the real provider's words. `activity`: "creating EC2 Instance"."""

    @abstractmethod
    def create_with_tags(self, token: str, api: Any, properties: Props) -> str:
        """Create a resource with the tags or labels of the program and the provider; its id."""

    @abstractmethod
    def update_with_tags(
        self,
        token: str,
        api: Any,
        resource_id: str,
        state: Props,
        properties: Props,
        *,
        changed: frozenset[str],
    ) -> None:
        """Change the properties `changed` (top-level names), and the tags or labels."""

    @abstractmethod
    def tags(self, schema: Schema, inputs: Props, state: Props | None) -> Props:
        """The outputs for tags or labels: they follow from the inputs and the provider's settings alone."""

    @abstractmethod
    def tag_changes(
        self, schema: Schema, state: Props, inputs: Props, changed: frozenset[str]
    ) -> list[PropertyDifference]:
        """Changes because of the provider's tags or labels, unless `changed` names the program's already."""

    @abstractmethod
    def tags_read(self, schema: Schema, known: Props, observed: Props) -> Props:
        """Tags or labels as the real provider shows them. Removes their raw form from `observed`."""

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
        """(inputs to add, failures as (property, reason)); `old` are the inputs of the last deployment."""
        schema = self.schema(token)
        failures = [
            (name, f"Invalid or unknown key. Check `pulumi config get {name}`.")
            for name in new
            if name not in schema.inputs and not name.startswith("__")
        ]
        failures += [(name, "Missing required argument") for name in schema.required if new.get(name) is None]
        additions: Props = {name: value for name, value in schema.defaults.items() if new.get(name) is None}
        if schema.name and new.get(schema.name) is None:
            prefix = new.get(f"{schema.name}Prefix")
            previous = old.get(schema.name) if schema.name in (old.get(DEFAULTS) or ()) else None
            additions[schema.name] = previous or self._name(urn, prefix)
        if additions:
            additions[DEFAULTS] = sorted(additions)
        return additions, failures

    def _name(self, urn: str, prefix: Any) -> str:
        """A unique name for an unnamed resource, the same at each preview."""
        base = str(prefix) if isinstance(prefix, str) else f"{urn.rsplit('::', 1)[-1]}-"
        number = 0
        while True:
            name = base + hashlib.sha256(f"{self.account.seed} {urn} {number}".encode()).hexdigest()[:7]
            with self.account.store.transaction():
                if not self.account.store.is_named(name):
                    return name
            number += 1

    def diff(self, token: str, state: Props, inputs: Props) -> tuple[list[PropertyDifference], bool]:
        """(changes, whether a replacement deletes the old resource first)."""
        schema = self.schema(token)
        changes = differences(schema, state, inputs)
        for place in sorted(schema.places):
            new_place = self.place(place, inputs)
            moved = new_place not in (None, UNKNOWN) and not refers(state.get(place), new_place)
            if state.get(place) and moved:
                changes.append(PropertyDifference(place, "update", True))
        changes += self.tag_changes(schema, state, inputs, frozenset(change.top for change in changes))
        own_name = schema.name is not None and schema.name not in (inputs.get(DEFAULTS) or ())
        delete_first = own_name and not any(change.top == schema.name for change in changes)
        return changes, delete_first and any(change.replaces for change in changes)

    def preview_outputs(self, token: str, inputs: Props, state: Props | None = None) -> Props:
        """The outputs beyond the inputs as a preview knows them; `state` is None for a resource to create."""
        schema = self.schema(token)
        if state is None:
            unknown = {*schema.outputs, *(name for name in schema.computed if "." not in name)} - set(inputs)
            outputs: Props = dict.fromkeys(unknown, UNKNOWN)
        else:
            outputs = {name: value for name, value in state.items() if name not in inputs}
            for name in set(schema.inputs) - set(inputs) - schema.computed:
                outputs.pop(name, None)
            outputs |= dict.fromkeys(schema.stale - set(inputs), UNKNOWN)
        outputs |= self.tags(schema, inputs, state)
        for place in schema.places:
            if (location := self.place(place, inputs)) is not None:
                outputs[place] = location
        return outputs

    # -- operations ---------------------------------------------------------------------------------------

    def create(self, token: str, inputs: Props) -> tuple[str, Props]:
        """Create a resource: its id and outputs. Raises SimulationError."""
        schema, kind, properties = self.schema(token), self._kinds[token], without_defaults(inputs)
        api = self.api(properties)
        with self._refusals_as_errors(f"creating {self.label(token)}"):
            resource_id = self.create_with_tags(token, api, properties)
            observed = kind.read(api, resource_id, properties)
        if observed is None:
            raise SimulationError(f"{self.label(token)} ({resource_id}) disappeared right after its creation")
        return resource_id, self.outputs(schema, properties, observed)

    def read(self, token: str, resource_id: str, state: Props) -> Props | None:
        """The outputs as they are now, or None when it is gone. Raises SimulationError."""
        schema, kind = self.schema(token), self._kinds[token]
        with self._refusals_as_errors(f"reading {self.label(token)} ({resource_id})"):
            observed = kind.read(self.api(state), resource_id, state)
        return None if observed is None else self.outputs(schema, state, observed)

    def imported_id(self, token: str, resource_id: str) -> str:
        """The id of a resource that is imported; some are named in another way there. Raises
        SimulationError."""
        translate = getattr(self._kinds[token], "imported_id", None)
        if translate is None:
            return resource_id
        with self._refusals_as_errors(f"reading {self.label(token)} ({resource_id})"):
            return translate(self.api({}), resource_id)

    def update(self, token: str, resource_id: str, state: Props, inputs: Props) -> Props:
        """Change a resource in place: its outputs. Raises SimulationError, also when it is gone."""
        schema, kind, properties = self.schema(token), self._kinds[token], without_defaults(inputs)
        api = self.api({name: properties.get(name) or state.get(name) for name in self.places})
        changed = frozenset(change.top for change in self.diff(token, state, inputs)[0])
        with self._refusals_as_errors(f"updating {self.label(token)} ({resource_id})"):
            self.update_with_tags(token, api, resource_id, state, properties, changed=changed)
            observed = kind.read(api, resource_id, carried_over(schema, state, properties))
        if observed is None:
            raise SimulationError(
                f"{self.label(token)} ({resource_id}) is gone", hint="refresh, then try again"
            )
        return self.outputs(schema, properties, observed)

    def delete(self, token: str, resource_id: str, state: Props) -> None:
        """Remove a resource; one that is gone already is no error. Raises SimulationError."""
        self.schema(token)
        with self._refusals_as_errors(f"deleting {self.label(token)} ({resource_id})"):
            self._kinds[token].delete(self.api(state), resource_id, state)

    @contextmanager
    def _refusals_as_errors(self, activity: str) -> Iterator[None]:
        try:
            yield
        except self.refusal as failure:
            raise self.error(failure, activity) from failure

    # -- after it ------------------------------------------------------------------------------------------

    def outputs(self, schema: Schema, known: Props, observed: Props) -> Props:
        """The observed properties, in the program's own form where both mean the same."""
        tags = self.tags_read(schema, known, observed)
        outputs = {key: value for key, value in known.items() if key != DEFAULTS}
        for name, value in observed.items():
            old = outputs.get(name)
            listed = isinstance(old, list) and name in schema.sets and covers(value, old)
            linked = name in schema.links and refers(value, old)
            if name not in outputs or not (listed or linked or same(old, value)):
                outputs[name] = value
        for name, value in schema.defaults.items():
            if outputs.get(name) is None and name not in observed:
                outputs[name] = value
        for place in schema.places:
            if outputs.get(place) is None and self.places.get(place) is not None:
                outputs[place] = self.places[place]
        return outputs | tags

    def inputs_after_read(self, token: str, inputs: Props, outputs: Props) -> Props:
        """A program's inputs after a read, with the values that the cloud has now. After an import
        (no inputs): all that the cloud has."""
        schema = self.schema(token)
        if not inputs:
            return {
                name: outputs[name]
                for name in schema.inputs
                if outputs.get(name) not in EMPTY and name not in schema.defaults
            }
        changed = {change.top for change in differences(schema, outputs, inputs)}
        result = dict(inputs)
        for name in changed & set(inputs):
            value = outputs.get(name)
            if isinstance(value, dict) and isinstance(inputs[name], dict) and name not in schema.maps:
                value = {key: item for key, item in value.items() if key in inputs[name]}
            if value is None:
                result.pop(name)
            else:
                result[name] = value
        return result


def carried_over(schema: Schema, state: Props, properties: Props) -> Props:
    """The properties of an update, with what the cloud filled in before; what the program dropped is not."""
    before = {
        name: value
        for name, value in state.items()
        if name not in schema.inputs or name in schema.computed or name in properties
    }
    return {**before, **properties}


def without_defaults(inputs: Props) -> Props:
    return {key: value for key, value in inputs.items() if key != DEFAULTS}


def types_of(package: str) -> dict[str, Any]:
    """Token -> the resource type: `TYPES` of every module of a package."""
    modules = [
        import_module(f"{package}.{each.name}") for each in iter_modules(import_module(package).__path__)
    ]
    return {token: kind for module in modules for token, kind in getattr(module, "TYPES", {}).items()}
