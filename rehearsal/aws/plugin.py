"""Serves a simulated account to the Pulumi engine under the real token `aws`: the executable
`pulumi-resource-aws`.

It is on PATH inside a rehearsal only, and refuses to configure without one: ORCH_REHEARSAL_AWS names the
account's file.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pulumi.provider.experimental import provider as api

from orch.providers.orch.serving import serve
from orch.providers.orch.values import from_plain, plain_map
from orch.rehearsal.account import SimulationError
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.aws.resources.kinds import Api, ApiFailure, Props
from orch.rehearsal.aws.resources.resource import AwsResources
from orch.rehearsal.pulumi.serving import CloudProvider

STATE = "ORCH_REHEARSAL_AWS"


class AwsProvider(CloudProvider[AwsResources]):
    """The types of the package `aws`, and its few functions."""

    name, cloud, variable = "pulumi-resource-aws", "AWS", STATE

    def configured(self, account: Path, settings: Mapping[str, Any]) -> AwsResources:
        from orch.rehearsal.aws.data.tables import regions

        region = (
            settings.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        )
        if not isinstance(region, str):
            raise SimulationError(
                "Invalid AWS Region: no region is set", hint="set `aws:region`, or `region` of the provider"
            )
        if region not in regions():
            raise SimulationError(f"Invalid AWS Region: {region}")
        tags = settings.get("defaultTags") or {}
        tags = json.loads(tags) if isinstance(tags, str) else tags
        return AwsResources(Cloud(account), region, tags.get("tags") or {})

    async def invoke(self, request: api.InvokeRequest) -> api.InvokeResponse:
        if request.tok not in INVOKES:
            raise SimulationError(f"the simulated cloud has no function {request.tok}")
        args = plain_map(request.args)
        cloud_api = self.resources.api(args)
        try:
            result = await asyncio.to_thread(INVOKES[request.tok], cloud_api, args)
        except ApiFailure as failure:
            raise SimulationError(failure.text(f"invoking {request.tok}")) from failure
        return api.InvokeResponse(return_value={key: from_plain(value) for key, value in result.items()})


def main() -> None:
    """Serve until the engine ends, as the version of the SDK that is installed: the engine compares the
    two."""
    serve(AwsProvider(), AwsProvider.name, metadata.version("pulumi-aws"))


# -- functions that programs ask while they run ------------------------------------------------------------


def _caller(api: Api, _: Props) -> Props:
    identity = api("GetCallerIdentity", service="sts")
    return {
        "accountId": identity["Account"],
        "arn": identity["Arn"],
        "userId": identity["UserId"],
        "id": identity["Account"],
    }


def _region(api: Api, args: Props) -> Props:
    name = args.get("name") or args.get("region") or api.region
    return {
        "id": name,
        "name": name,
        "region": name,
        "description": name,
        "endpoint": f"ec2.{name}.amazonaws.com",
    }


def _zones(api: Api, args: Props) -> Props:
    zones = api("DescribeAvailabilityZones")["AvailabilityZones"]
    return {
        "id": api.region,
        "names": [zone["ZoneName"] for zone in zones],
        "zoneIds": [zone["ZoneId"] for zone in zones],
        "groupNames": [api.region],
    }


def _image(api: Api, args: Props) -> Props:
    filters = [{"Name": one["name"], "Values": one["values"]} for one in args.get("filters") or ()]
    images = api("DescribeImages", Owners=args.get("owners"), Filters=filters)["Images"]
    newest = max(images, key=lambda image: image["CreationDate"])
    return {
        "id": newest["ImageId"],
        "imageId": newest["ImageId"],
        "name": newest["Name"],
        "architecture": newest["Architecture"],
        "ownerId": newest["OwnerId"],
        "creationDate": newest["CreationDate"],
        "rootDeviceName": newest["RootDeviceName"],
        "state": newest["State"],
    }


def _parameter(api: Api, args: Props) -> Props:
    parameter = api("GetParameter", service="ssm", Name=args["name"])["Parameter"]
    return {
        "id": args["name"],
        "name": args["name"],
        "arn": parameter["ARN"],
        "type": parameter["Type"],
        "value": parameter["Value"],
        "insecureValue": parameter["Value"],
        "version": parameter["Version"],
    }


INVOKES: dict[str, Callable[[Api, Props], Props]] = {
    "aws:index/getCallerIdentity:getCallerIdentity": _caller,
    "aws:index/getRegion:getRegion": _region,
    "aws:index/getAvailabilityZones:getAvailabilityZones": _zones,
    "aws:ec2/getAmi:getAmi": _image,
    "aws:ssm/getParameter:getParameter": _parameter,
}


if __name__ == "__main__":
    main()
