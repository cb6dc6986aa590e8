"""Serves a simulated account to the Pulumi engine under the real token `aws`: the executable
`pulumi-resource-aws`.

It is on PATH inside a rehearsal only, and refuses to configure without one: ORCH_REHEARSAL_STATE names the
account's file.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pulumi.provider.experimental import provider as api
from pulumi.provider.experimental.property_value import PropertyValue

from orch.providers.serving import serve
from orch.providers.simulated.bridge.invokes import INVOKES
from orch.providers.simulated.bridge.kinds import Api, ApiFailure
from orch.providers.simulated.bridge.resource import DEFAULTS, Resources, Settings
from orch.providers.simulated.core import Cloud, SimulationError
from orch.providers.values import from_plain, plain_map, sendable, to_plain

STATE = "ORCH_REHEARSAL_STATE"

NOT_HERE = "this is orch's simulated AWS, which creates nothing real: it is for `--rehearse` only"


class AwsProvider(api.Provider):
    """Dispatches each request off the event loop."""

    def __init__(self) -> None:
        self._resources: Resources | None = None

    @property
    def resources(self) -> Resources:
        if self._resources is None:
            raise SimulationError("the provider was not configured", detail=NOT_HERE)
        return self._resources

    async def check_config(self, request: api.CheckRequest) -> api.CheckResponse:
        return api.CheckResponse(inputs=sendable(request.new_inputs))

    async def diff_config(self, request: api.DiffRequest) -> api.DiffResponse:
        return api.DiffResponse(changes=False)

    async def configure(self, request: api.ConfigureRequest) -> api.ConfigureResponse:
        path = os.environ.get(STATE)
        if not path or not Path(path).is_file():
            raise SimulationError(
                "there is no rehearsal here",
                where=path,
                detail=NOT_HERE,
                hint="remove this pulumi-resource-aws from PATH, or run the command with --rehearse",
            )
        settings = plain_map(request.args)
        region = (
            settings.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        )
        if not isinstance(region, str):
            raise SimulationError(
                "Invalid AWS Region: no region is set", hint="set `aws:region`, or `region` of the provider"
            )
        from orch.providers.simulated.aws.data import regions

        if region not in regions():
            raise SimulationError(f"Invalid AWS Region: {region}")
        tags = settings.get("defaultTags") or {}
        tags = json.loads(tags) if isinstance(tags, str) else tags
        self._resources = Resources(Cloud(path), Settings(region, tags.get("tags") or {}))
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

    async def invoke(self, request: api.InvokeRequest) -> api.InvokeResponse:
        if request.tok not in INVOKES:
            raise SimulationError(f"the simulated cloud has no function {request.tok}")
        args = plain_map(request.args)
        region = str(args.get("region") or self.resources.settings.region)
        try:
            found = await asyncio.to_thread(INVOKES[request.tok], Api(self.resources.cloud, region), args)
        except ApiFailure as failure:
            raise SimulationError(failure.told(f"invoking {request.tok}")) from failure
        return api.InvokeResponse(return_value={key: from_plain(value) for key, value in found.items()})


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


def main() -> None:
    """Serve until the engine ends, as the version of the SDK that is installed: the engine compares the
    two."""
    serve(AwsProvider(), "pulumi-resource-aws", metadata.version("pulumi-aws"))


if __name__ == "__main__":
    main()
