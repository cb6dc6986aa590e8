"""The provider of a region of AWS, with the credentials of orch.yml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_aws as aws

from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.backends.credentials import AccessKeyCreds, AwsDefaultCreds


def provider_of(
    name: str,
    region: str,
    settings: AwsSettings,
    parent: pulumi.Resource | None = None,
    *,
    services: Sequence[str] = (),
) -> aws.Provider:
    """The provider of a region, with the credentials of orch.yml.

    `services`: those that are asked beside EC2, IAM, SSM and STS; they have the endpoint of orch.yml too.
    """
    creds = settings.creds
    arguments: dict[str, Any] = {"region": region}
    if isinstance(creds, AccessKeyCreds):
        secret = pulumi.Output.secret
        arguments |= {"access_key": secret(creds.access_key), "secret_key": secret(creds.secret_key)}
    elif isinstance(creds, AwsDefaultCreds):
        arguments |= {"profile": creds.profile} if creds.profile else {}
        arguments |= {"assume_roles": [{"role_arn": creds.role_arn}]} if creds.role_arn else {}
    if settings.endpoint_url:
        names = sorted({"ec2", "iam", "ssm", "sts", *services})
        arguments["endpoints"] = [dict.fromkeys(names, settings.endpoint_url)]
    return aws.Provider(name, **arguments, opts=pulumi.ResourceOptions(parent=parent))
