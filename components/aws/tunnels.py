"""The way to an instance through SSM, with the credentials that the fleet was made with. Pure."""

from __future__ import annotations

import shlex

from orch.components.cloud.tunnels import command, with_environment
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.backends.credentials import AccessKeyCreds, AwsDefaultCreds

# What would overrule the keys that are set.
_OTHERS = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")
_KEYS = {
    "AWS_ACCESS_KEY_ID": "ORCH_AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY": "ORCH_AWS_SECRET_ACCESS_KEY",
}


def through_ssm(region: str, settings: AwsSettings, instance: str) -> str:
    """A command whose streams are an instance's SSH port.

    A role is assumed by the command itself, each time: what that gives ends after an hour.
    """
    creds = settings.creds
    default = creds if isinstance(creds, AwsDefaultCreds) else AwsDefaultCreds()
    profile = ["--profile", default.profile] if default.profile else []
    before = ["aws", "ssm", "start-session", "--region", region]
    after = ["--target", instance, "--document-name", "AWS-StartSSHSession", "--parameters", "portNumber=22"]
    if isinstance(creds, AccessKeyCreds):
        return with_environment([*before, *after], _KEYS, _OTHERS)
    if default.role_arn is None:
        return command([*before, *profile, *after])
    assume = ["aws", "sts", "assume-role", "--region", region, *profile, "--role-arn", default.role_arn]
    assume += ["--role-session-name", "orch", "--output", "text"]
    assume += ["--query", "Credentials.[AccessKeyId,SecretAccessKey,SessionToken]"]
    script = (
        f"keys=$({shlex.join(assume)} </dev/null) || exit 1; set -f; set -- $keys; "
        f"unset {' '.join(_OTHERS)}; "
        'export AWS_ACCESS_KEY_ID="$1" AWS_SECRET_ACCESS_KEY="$2" AWS_SESSION_TOKEN="$3"; '
        f"exec {shlex.join([*before, *after])}"
    )
    return command(["sh", "-c", script])


def environment(settings: AwsSettings) -> dict[str, str]:
    """What such a command has to find in its environment here."""
    creds = settings.creds
    if not isinstance(creds, AccessKeyCreds):
        return {}
    return dict(zip(_KEYS.values(), (creds.access_key, creds.secret_key), strict=True))
