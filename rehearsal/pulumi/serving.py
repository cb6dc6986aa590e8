"""A simulated cloud to the Pulumi engine: each request goes to `SimulatedResources`, off the event loop."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from pulumi.provider.experimental import provider as api
from pulumi.provider.experimental.property_value import PropertyValue

from orch.providers.orch.values import from_plain, plain_map, sendable, to_plain
from orch.rehearsal.account import SimulationError, account_file, only_simulated
from orch.rehearsal.pulumi.resources import DEFAULTS, SimulatedResources

R = TypeVar("R", bound=SimulatedResources)


class CloudProvider(api.Provider, Generic[R]):
    """Serves the types of one cloud. `variable` names the account's file and is set in a rehearsal only."""

    name: str
    cloud: str
    variable: str

    def __init__(self) -> None:
        self._resources: R | None = None

    @abstractmethod
    def configured(self, account: Path, settings: Mapping[str, Any]) -> R:
        """The resource types on the account, with the provider's settings."""

    @property
    def resources(self) -> R:
        if self._resources is None:
            raise SimulationError("the provider was not configured", detail=only_simulated(self.cloud))
        return self._resources

    async def check_config(self, request: api.CheckRequest) -> api.CheckResponse:
        return api.CheckResponse(inputs=sendable(request.new_inputs))

    async def diff_config(self, request: api.DiffRequest) -> api.DiffResponse:
        return api.DiffResponse(changes=False)

    async def configure(self, request: api.ConfigureRequest) -> api.ConfigureResponse:
        path = account_file(self.variable, self.cloud, self.name)
        self._resources = self.configured(path, plain_map(request.args))
        return api.ConfigureResponse(
            accept_secrets=True, supports_preview=True, accept_resources=True, accept_outputs=True
        )

    async def check(self, request: api.CheckRequest) -> api.CheckResponse:
        additions, failures = await asyncio.to_thread(
            self.resources.check,
            _token(request.type),
            request.urn,
            plain_map(request.old_inputs),
            plain_map(request.new_inputs),
        )
        return api.CheckResponse(
            inputs={
                **sendable(request.new_inputs),
                **{key: from_plain(value) for key, value in additions.items()},
            },
            failures=[api.CheckFailure(name, reason) for name, reason in failures],
        )

    async def diff(self, request: api.DiffRequest) -> api.DiffResponse:
        changes, delete_first = self.resources.diff(
            _token(request.type), plain_map(request.old_state), plain_map(request.new_inputs)
        )
        kinds = api.PropertyDiffKind
        return api.DiffResponse(
            changes=bool(changes),
            replaces=sorted({change.top for change in changes if change.replaces}),
            diffs=sorted({change.top for change in changes}),
            delete_before_replace=delete_first,
            detailed_diff={
                change.path: api.PropertyDiff(
                    kind=kinds[f"{change.kind}_replace".upper() if change.replaces else change.kind.upper()],
                    input_diff=False,
                )
                for change in changes
            },
        )

    async def create(self, request: api.CreateRequest) -> api.CreateResponse:
        token, inputs = _token(request.type), plain_map(request.properties)
        if request.preview:
            preview = self.resources.preview_outputs(token, inputs)
            return api.CreateResponse(resource_id="", properties=_merged(request.properties, preview))
        resource_id, outputs = await asyncio.to_thread(self.resources.create, token, inputs)
        return api.CreateResponse(resource_id=resource_id, properties=_merged(request.properties, outputs))

    async def read(self, request: api.ReadRequest) -> api.ReadResponse:
        token, resource_id = _token(request.type), request.resource_id
        if not request.properties:
            resource_id = await asyncio.to_thread(self.resources.imported_id, token, resource_id)
        outputs = await asyncio.to_thread(
            self.resources.read, token, resource_id, plain_map(request.properties)
        )
        if outputs is None:
            return api.ReadResponse(resource_id="")
        inputs = self.resources.inputs_after_read(token, plain_map(request.inputs), outputs)
        return api.ReadResponse(
            resource_id=resource_id,
            properties=_merged(request.properties, outputs, whole=True),
            inputs=_merged(request.inputs, inputs, whole=True),
        )

    async def update(self, request: api.UpdateRequest) -> api.UpdateResponse:
        token, olds, news = _token(request.type), plain_map(request.olds), plain_map(request.news)
        if request.preview:
            preview = self.resources.preview_outputs(token, news, olds)
            return api.UpdateResponse(
                properties=_merged({**request.olds, **request.news}, {**preview, **news}, whole=True)
            )
        outputs = await asyncio.to_thread(self.resources.update, token, request.resource_id, olds, news)
        return api.UpdateResponse(properties=_merged({**request.olds, **request.news}, outputs, whole=True))

    async def delete(self, request: api.DeleteRequest) -> None:
        await asyncio.to_thread(
            self.resources.delete, _token(request.type), request.resource_id, plain_map(request.properties)
        )


def _token(kind: str) -> str:
    return kind.rsplit("$", 1)[-1]  # a child's type comes behind its parents'


def _merged(
    properties: Mapping[str, PropertyValue], values: Mapping[str, Any], *, whole: bool = False
) -> dict[str, PropertyValue]:
    """`values` for the engine. A value equal to the request's property stays secret. `whole`: without
    the other properties of the request."""
    merged = {} if whole else {key: value for key, value in sendable(properties).items() if key != DEFAULTS}
    for key, value in values.items():
        if key == DEFAULTS and not whole:
            continue
        same = key in properties and to_plain(properties[key]) == value
        secret = key in properties and properties[key].is_secret
        merged[key] = sendable({key: properties[key]})[key] if same else from_plain(value, secret=secret)
    return merged
