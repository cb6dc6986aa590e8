"""Serves a simulated account to the Pulumi engine under the real token `aws`: the executable
`pulumi-resource-aws`. It has the types of the package `aws`, with tags, regions and errors as the real
provider has them.

It is on PATH inside a rehearsal only, and refuses to configure without one: ORCH_REHEARSAL_AWS names the
account's file.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pulumi.provider.experimental import provider as api

from orch.providers.orch.serving import serve
from orch.providers.orch.values import UNKNOWN, from_plain, plain_map
from orch.rehearsal.account import SimulationError
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.aws.resources.kinds import Api, ApiFailure, Kind, Props
from orch.rehearsal.pulumi.differences import PropertyDifference, same
from orch.rehearsal.pulumi.resources import SimulatedResources, types_of
from orch.rehearsal.pulumi.schema import Schema, load
from orch.rehearsal.pulumi.serving import CloudProvider

STATE = "ORCH_REHEARSAL_AWS"

MAPS = frozenset({"tags", "tagsAll", "volumeTags"})


@cache
def types() -> Mapping[str, Kind]:
    """Token -> the type, of every module of this package."""
    return types_of("orch.rehearsal.aws.resources")


def schemas() -> Mapping[str, Schema]:
    return load("orch.rehearsal.aws.resources", MAPS, frozenset({"region"}))


class AwsResources(SimulatedResources):
    """Resource types on one account."""

    refusal = ApiFailure

    def __init__(self, account: Cloud, region: str, default_tags: Mapping[str, str]) -> None:
        super().__init__(account, schemas(), types(), {"region": region})
        self._cloud = account
        self._default_tags = default_tags

    def api(self, properties: Props) -> Api:
        return Api(self._cloud, str(self.place("region", properties)))

    def label(self, token: str) -> str:
        return types()[token].label

    def error(self, failure: ApiFailure, activity: str) -> SimulationError:
        return SimulationError(f"1 error occurred:\n\t* {failure.text(activity)}\n")

    # -- tags ------------------------------------------------------------------------------------------------

    def tags(self, schema: Schema, inputs: Props, state: Props | None) -> Props:
        if not _has_tags(schema):
            return {}
        tags = inputs.get("tags")
        if tags is UNKNOWN or any(value is UNKNOWN for value in (tags or {}).values()):
            return {"tagsAll": UNKNOWN}
        return {"tagsAll": {**self._default_tags, **(tags or {})}}

    def tag_changes(
        self, schema: Schema, state: Props, inputs: Props, changed: frozenset[str]
    ) -> list[PropertyDifference]:
        if not _has_tags(schema) or "tags" in changed:
            return []
        tags = self.tags(schema, inputs, state)["tagsAll"]
        if tags is UNKNOWN or same(state.get("tagsAll") or {}, tags):
            return []
        return [PropertyDifference("tagsAll", "update", False)]

    def tags_read(self, schema: Schema, known: Props, observed: Props) -> Props:
        tags = observed.pop("Tags", None)
        observed.pop("TagsOf", None)
        if tags is None or not _has_tags(schema):
            return {}
        own = set((known.get("tags") or {}).keys())
        defaults = self._default_tags
        return {
            "tagsAll": tags,
            "tags": {k: v for k, v in tags.items() if k in own or defaults.get(k) != v},
        }

    # -- operations ------------------------------------------------------------------------------------------

    def create_with_tags(self, token: str, api: Api, properties: Props) -> str:
        tags = self.tags(self.schema(token), properties, None)
        return types()[token].create(api, properties, tags.get("tagsAll", {}))

    def update_with_tags(
        self,
        token: str,
        api: Api,
        resource_id: str,
        state: Props,
        properties: Props,
        *,
        changed: frozenset[str],
    ) -> None:
        tags = self.tags(self.schema(token), properties, state)
        if tags:
            self._retag(api, token, resource_id, state, tags["tagsAll"])
        if others := changed - {"tags", "tagsAll"}:
            types()[token].update(api, resource_id, state, properties, others)

    def _retag(self, api: Api, token: str, resource_id: str, state: Props, tags: Mapping[str, str]) -> None:
        have: Mapping[str, str] = state.get("tagsAll") or {}
        removed = sorted(set(have) - set(tags))
        new = [{"Key": k, "Value": v} for k, v in sorted(tags.items()) if have.get(k) != v]
        if token.startswith("aws:iam/"):
            kind, key = (
                ("Role", "RoleName")
                if token.endswith(":Role")
                else ("InstanceProfile", "InstanceProfileName")
            )
            if removed:
                api.iam(f"Untag{kind}", **{key: resource_id}, TagKeys=removed)
            if new:
                api.iam(f"Tag{kind}", **{key: resource_id}, Tags=new)
            return
        if token.startswith(("aws:efs/", "aws:fsx/")):
            service = token[4:7]
            target = {"ResourceId": resource_id} if service == "efs" else {"ResourceARN": state.get("arn")}
            if removed:
                api("UntagResource", service=service, **target, TagKeys=removed)
            if new:
                api("TagResource", service=service, **target, Tags=new)
            return
        target = state.get("placementGroupId") if token.endswith(":PlacementGroup") else None
        target = state.get("keyPairId") if token.endswith(":KeyPair") else target or resource_id
        if removed:
            api("DeleteTags", Resources=[target], Tags=[{"Key": key} for key in removed])
        if new:
            api("CreateTags", Resources=[target], Tags=new)


def _has_tags(schema: Schema) -> bool:
    return "tagsAll" in schema.outputs


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
