"""The few functions of the package `aws` that programs ask while they run."""

from __future__ import annotations

from collections.abc import Callable

from orch.rehearsal.aws.resources.kinds import Api, Props


def _caller(api: Api, _: Props) -> Props:
    found = api("GetCallerIdentity", service="sts")
    return {
        "accountId": found["Account"],
        "arn": found["Arn"],
        "userId": found["UserId"],
        "id": found["Account"],
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
    found = api("DescribeAvailabilityZones")["AvailabilityZones"]
    return {
        "id": api.region,
        "names": [zone["ZoneName"] for zone in found],
        "zoneIds": [zone["ZoneId"] for zone in found],
        "groupNames": [api.region],
    }


def _image(api: Api, args: Props) -> Props:
    filters = [{"Name": one["name"], "Values": one["values"]} for one in args.get("filters") or ()]
    found = api("DescribeImages", Owners=args.get("owners"), Filters=filters)["Images"]
    newest = max(found, key=lambda image: image["CreationDate"])
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
    found = api("GetParameter", service="ssm", Name=args["name"])["Parameter"]
    return {
        "id": args["name"],
        "name": args["name"],
        "arn": found["ARN"],
        "type": found["Type"],
        "value": found["Value"],
        "insecureValue": found["Value"],
        "version": found["Version"],
    }


INVOKES: dict[str, Callable[[Api, Props], Props]] = {
    "aws:index/getCallerIdentity:getCallerIdentity": _caller,
    "aws:index/getRegion:getRegion": _region,
    "aws:index/getAvailabilityZones:getAvailabilityZones": _zones,
    "aws:ec2/getAmi:getAmi": _image,
    "aws:ssm/getParameter:getParameter": _parameter,
}
