"""STS, SSM parameters and service quotas. Sources: rehearsal/README.md, "Other services"."""

from __future__ import annotations

from orch.rehearsal.aws.api.actions import Request, action, stamp
from orch.rehearsal.aws.api.compute.offerings import parameter
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.aws.data.tables import Quota, quotas
from orch.rehearsal.store import Doc


@action("GetCallerIdentity", "sts")
def get_caller_identity(request: Request) -> Doc:
    return {
        "UserId": "AIDAREHEARSAL0000001",
        "Account": request.owner,
        "Arn": f"arn:aws:iam::{request.owner}:user/rehearsal",
    }


def _parameter(request: Request, name: str) -> Doc | None:
    value = parameter(request.region, name)
    if value is None:
        return None
    return {
        "Name": name,
        "Type": "String",
        "Value": value,
        "Version": 1,
        "LastModifiedDate": stamp(request.cloud.now()),
        "ARN": f"arn:aws:ssm:{request.region}::parameter{name}",
        "DataType": "aws:ec2:image",
    }


@action("GetParameter", "ssm")
def get_parameter(request: Request) -> Doc:
    parameter = _parameter(request, request["Name"])
    if parameter is None:
        raise AwsError("ParameterNotFound", f"Parameter {request['Name']} not found.")
    return {"Parameter": parameter}


@action("GetParameters", "ssm")
def get_parameters(request: Request) -> Doc:
    parameters = {name: _parameter(request, name) for name in request["Names"]}
    return {
        "Parameters": [doc for doc in parameters.values() if doc],
        "InvalidParameters": [name for name, doc in parameters.items() if not doc],
    }


def _quota(request: Request, quota: Quota, *, default: bool = False) -> Doc:
    value = quota.value if default else request.cloud.quota(quota.code)
    return {
        "ServiceCode": quota.service,
        "ServiceName": {
            "ec2": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "vpc": "Amazon Virtual Private Cloud (Amazon VPC)",
        }[quota.service],
        "QuotaArn": f"arn:aws:servicequotas:{request.region}:{quota.service}/{quota.code}",
        "QuotaCode": quota.code,
        "QuotaName": quota.name,
        "Value": float(value),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def _requested_quota(request: Request) -> Quota:
    quota = quotas().get(request["QuotaCode"])
    if quota is None or quota.service != request["ServiceCode"] or not quota.code.startswith("L-"):
        raise AwsError(
            "NoSuchResourceException", "The request failed because the specified quota does not exist."
        )
    return quota


@action("GetServiceQuota", "service-quotas")
def get_service_quota(request: Request) -> Doc:
    return {"Quota": _quota(request, _requested_quota(request))}


@action("GetAWSDefaultServiceQuota", "service-quotas")
def get_default_service_quota(request: Request) -> Doc:
    return {"Quota": _quota(request, _requested_quota(request), default=True)}


@action("ListServiceQuotas", "service-quotas")
def list_service_quotas(request: Request) -> Doc:
    rows = [
        _quota(request, quota)
        for quota in quotas().values()
        if quota.service == request["ServiceCode"] and quota.code.startswith("L-")
    ]
    if not rows:
        raise AwsError(
            "NoSuchResourceException", "The request failed because the specified service does not exist."
        )
    start = int(request.get("NextToken") or 0)
    size = request.get("MaxResults") or 100
    more = {"NextToken": str(start + size)} if start + size < len(rows) else {}
    return {"Quotas": rows[start : start + size], **more}
