"""The way to an instance through IAP, with the credentials that the fleet was made with. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orch.components.cloud.tunnels import command, with_environment
from orch.spec.findings import Finding
from orch.spec.models.backends.credentials import GcpServiceAccountCreds
from orch.spec.models.backends.gcp import GcpSettings

# What would overrule the key that is set.
_OTHERS = ("CLOUDSDK_AUTH_ACCESS_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE")
_KEY = {"CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE": "ORCH_GCP_KEY_FILE"}


def through_iap(project: str, zone: str, settings: GcpSettings, instance: str) -> str:
    """A command whose streams are an instance's SSH port."""
    words = ["gcloud", "compute", "start-iap-tunnel", instance, "22", "--listen-on-stdin"]
    words += ["--verbosity=warning", f"--project={project}", f"--zone={zone}"]
    if isinstance(settings.creds, GcpServiceAccountCreds):
        return with_environment(words, _KEY, _OTHERS)
    return command(words)


def environment(settings: GcpSettings) -> dict[str, str]:
    """What such a command has to find in its environment here."""
    creds = settings.creds
    if not isinstance(creds, GcpServiceAccountCreds) or creds.filename is None:
        return {}
    (name,) = _KEY.values()
    return {name: str(Path(creds.filename).expanduser().absolute())}


def findings(settings: GcpSettings) -> Iterator[Finding]:
    """Whether the key can be given to gcloud, which leads through IAP."""
    creds = settings.creds
    if isinstance(creds, GcpServiceAccountCreds) and creds.filename is None:
        yield Finding(
            "ORCH303",
            "network",
            "gcloud leads to the nodes through IAP, and takes the key of a service account from a file only",
            detail="`creds` of gcp in orch.yml gives it as `data`",
            hint="write `filename` there, or `network: {ssh_cidrs: …}` or `{proxy_jump: …}` in the fleet",
        )
