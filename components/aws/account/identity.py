"""The identity of the AWS account that a session acts in."""

from __future__ import annotations

import os

from orch.components.accounts import CREDS, Account, selected_in_rehearsal
from orch.components.aws.account import gather_facts
from orch.components.aws.account.client import RegionClient, Session
from orch.components.aws.account.client_errors import CloudRefused
from orch.components.aws.account.gather_facts import HOMES, home, profile
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.backends.credentials import AccessKeyCreds, AwsDefaultCreds

# What STS answers to credentials of another partition, and in a region that the account has not enabled.
# Source: AWS account management guide, "Enable or disable AWS Regions".
_OF_ANOTHER_PLACE = "InvalidClientTokenId"

_METHODS = {
    "shared-credentials-file": "the default profile of ~/.aws/credentials",
    "config-file": "the default profile of ~/.aws/config",
    "assume-role": "the role of the default profile in ~/.aws/config",
    "assume-role-with-web-identity": "AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN",
    "sso": "the SSO login of the default profile in ~/.aws/config",
    "login": "the login of the default profile in ~/.aws/config",
    "custom-process": "the credential_process of the default profile in ~/.aws/config",
    "container-role": "the role of this container",
    "iam-role": "the role of this EC2 instance",
}
"""`method` of botocore's credentials -> the place that they come from."""


def account(settings: AwsSettings, rehearsed: Session | None) -> Account:
    """Return the account by its partition and number, which all keys and roles of it share.

    STS answers this call without any permission, even where a policy denies it.
    Source: STS API, GetCallerIdentity. Raises CloudRefused.
    """
    session = rehearsed or gather_facts.open_session(settings)
    number, arn = _caller(session, settings)
    words = f"AWS account {number} as {arn}"
    if rehearsed is not None:
        selected = selected_in_rehearsal()
    else:
        selected, named = selected_by(settings, session), profile(settings)
        words += f" (profile {named})" if named else ""
    return Account(words, f"{arn.split(':')[1]}:{number}", selected)


def selected_by(settings: AwsSettings, session: Session) -> str:
    """Return the entry of orch.yml, variable or file that selects the credentials of `open_session`."""
    creds = settings.creds
    if isinstance(creds, AccessKeyCreds):
        return CREDS
    if isinstance(creds, AwsDefaultCreds) and (creds.profile or creds.role_arn):
        named = {"profile": creds.profile, "role_arn": creds.role_arn}
        return f"{CREDS}: {', '.join(f'{key} {value}' for key, value in named.items() if value)}"
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return "AWS_ACCESS_KEY_ID"
    if named := profile(settings):
        return f"{'AWS_PROFILE' if os.environ.get('AWS_PROFILE') else 'AWS_DEFAULT_PROFILE'}={named}"
    read = getattr(session, "get_credentials", None)
    method = getattr(read(), "method", None) if read is not None else None
    return _METHODS.get(str(method), "the default credentials of the AWS SDK")


def _caller(session: Session, settings: AwsSettings) -> tuple[str, str]:
    """Return the number and the caller's ARN, from the first region that knows the credentials.

    A project without regions does not tell the partition of its credentials: each is asked.
    """
    regions = [*settings.regions[:1], home(session)]
    if not settings.regions and getattr(session, "region_name", None) is None and not settings.endpoint_url:
        regions += HOMES.values()
    first: CloudRefused | None = None
    for region in dict.fromkeys(regions):
        try:
            return RegionClient(session, region, settings.endpoint_url).caller()
        except CloudRefused as refused:
            if first is None and (refused.error is None or refused.error.code != _OF_ANOTHER_PLACE):
                raise
            first = first or refused
    assert first is not None
    raise first
