"""A simulated cloud to the Pulumi engine: each request goes to `Resources`, off the event loop."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from pulumi.provider.experimental import provider as api
from pulumi.provider.experimental.property_value import PropertyValue

from orch.providers.orch.values import from_plain, plain_map, sendable, to_plain
from orch.rehearsal.account import SimulationError
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
        """The types on the account, with the provider's settings."""

    @property
    def warning(self) -> str:
        return (
            f"this is orch's simulated {self.cloud}, which creates nothing real: it is for `--rehearse` only"
        )

    @property
    def resources(self) -> R:
        if self._resources is None:
            raise SimulationError("the provider was not configured", detail=self.warning)
        return self._resources

    async def check_config(self, request: api.CheckRequest) -> api.CheckResponse:
        return api.CheckResponse(inputs=sendable(request.new_inputs))

    async def diff_config(self, request: api.DiffRequest) -> api.DiffResponse:
        return api.DiffResponse(changes=False)

    async def configure(self, request: api.ConfigureRequest) -> api.ConfigureResponse:
        path = os.environ.get(self.variable)
        if not path or not Path(path).is_file():
            raise SimulationError(
                "there is no rehearsal here",
                where=path,
                detail=self.warning,
                hint=f"remove this {self.name} from PATH, or run the command with --rehearse",
            )
        self._resources = self.configured(Path(path), plain_map(request.args))
        return api.ConfigureResponse(
            accept_secrets=True, supports_preview=True, accept_resources=True, accept_outputs=True
        )

    async def check(self, request: api.CheckRequest) -> api.CheckResponse:
        added, failures = await asyncio.to_thread(
            self.resources.check,
            _token(request.type),
            request.urn,
            plain_map(request.old_inputs),
            plain_map(request.new_inputs),
        )
        return api.CheckResponse(
            inputs={
                **sendable(request.new_inputs),
                **{key: from_plain(value) for key, value in added.items()},
            },
            failures=[api.CheckFailure(name, reason) for name, reason in failures],
        )

    async def diff(self, request: api.DiffRequest) -> api.DiffResponse:
        found, first = self.resources.diff(
            _token(request.type), plain_map(request.old_state), plain_map(request.new_inputs)
        )
        kinds = api.PropertyDiffKind
        return api.DiffResponse(
            changes=bool(found),
            replaces=sorted({change.top for change in found if change.replaces}),
            diffs=sorted({change.top for change in found}),
            delete_before_replace=first,
            detailed_diff={
                change.path: api.PropertyDiff(
                    kind=kinds[f"{change.kind}_replace".upper() if change.replaces else change.kind.upper()],
                    input_diff=False,
                )
                for change in found
            },
        )

    async def create(self, request: api.CreateRequest) -> api.CreateResponse:
        token, inputs = _token(request.type), plain_map(request.properties)
        if request.preview:
            planned = self.resources.planned(token, inputs)
            return api.CreateResponse(resource_id="", properties=_merged(request.properties, planned))
        resource_id, outputs = await asyncio.to_thread(self.resources.create, token, inputs)
        return api.CreateResponse(resource_id=resource_id, properties=_merged(request.properties, outputs))

    async def read(self, request: api.ReadRequest) -> api.ReadResponse:
        token = _token(request.type)
        outputs = await asyncio.to_thread(
            self.resources.read, token, request.resource_id, plain_map(request.properties)
        )
        if outputs is None:
            return api.ReadResponse(resource_id="")
        inputs = self.resources.inputs_as_found(token, plain_map(request.inputs), outputs)
        return api.ReadResponse(
            resource_id=request.resource_id,
            properties=_merged(request.properties, outputs, whole=True),
            inputs=_merged(request.inputs, inputs, whole=True),
        )

    async def update(self, request: api.UpdateRequest) -> api.UpdateResponse:
        token, olds, news = _token(request.type), plain_map(request.olds), plain_map(request.news)
        if request.preview:
            planned = self.resources.planned(token, news, olds)
            return api.UpdateResponse(
                properties=_merged({**request.olds, **request.news}, {**planned, **news}, whole=True)
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
    sent: Mapping[str, PropertyValue], found: Mapping[str, Any], *, whole: bool = False
) -> dict[str, PropertyValue]:
    """`found` on the wire; a value that is as it was sent keeps its marks (secret). `whole`: nothing else
    stays."""
    merged = {} if whole else {key: value for key, value in sendable(sent).items() if key != DEFAULTS}
    for key, value in found.items():
        if key == DEFAULTS and not whole:
            continue
        same = key in sent and to_plain(sent[key]) == value
        secret = key in sent and sent[key].is_secret
        merged[key] = sendable({key: sent[key]})[key] if same else from_plain(value, secret=secret)
    return merged
