"""Asking a GCP project: the only reader of the cloud besides the engine.

The session comes from the caller, so a simulated cloud can answer in its place.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from orch.components.accounts import CREDS
from orch.components.cloud_errors import CloudError
from orch.components.gcp.account.client import ProjectClient, Session
from orch.components.gcp.account.client_errors import CloudRefused, sdk, translate_errors
from orch.components.gcp.account.facts import GcpFacts, Member, Reservation
from orch.components.gcp.account.guarded import Guarded, document
from orch.components.gcp.account.lookups import Lookups
from orch.components.gcp.userdata import SHOWN
from orch.spec.models.backends.credentials import GcpServiceAccountCreds
from orch.spec.models.backends.gcp import GcpSettings

__all__ = [
    "CloudRefused",
    "Session",
    "ask",
    "ended_by_themselves",
    "members",
    "open_session",
    "reservation",
    "tagged",
]


# A project may read 1,500 times a minute.
ATTRIBUTES_AT_ONCE = 8
# Operations that end the running of an instance; by the first two it ended by itself, or GCP took it back.
ENDED_BY_ITSELF = frozenset({"compute.instances.guestTerminate", "compute.instances.preempted"})
ENDINGS = (*sorted(ENDED_BY_ITSELF), "stop", "delete")
UNTOLD = "default"
"""The service account of a machine, before its name is asked for."""
USER_INFO = "https://openidconnect.googleapis.com/v1/userinfo"
_ED25519 = re.compile(r"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}")


class Credentials:
    """A session with credentials: those of `orch.yml`, else those the SDK finds."""

    def __init__(self, credentials: Any, project: str) -> None:
        self._credentials = credentials
        self.project = project

    def client(self, name: str) -> Any:
        return Guarded(getattr(sdk("google.cloud.compute_v1"), name)(credentials=self._credentials))

    def http(self) -> Any:
        return sdk("google.auth.transport.requests").AuthorizedSession(self._credentials)

    def email(self) -> str | None:
        """Of the service account, also of one that is impersonated or a machine's own, which is known once
        there is a token; of a user as `gcloud` wrote it, else as Google tells whose token it is.

        Sources: google-auth reference, `service_account_email` and `account` of credentials; Google Identity,
        "OpenID Connect", the userinfo endpoint.
        """
        with translate_errors("ask whose credentials these are"):
            if getattr(self._credentials, "service_account_email", None) == UNTOLD:
                self._credentials.refresh(sdk("google.auth.transport.requests").Request())
            known = getattr(self._credentials, "service_account_email", None)
            known = known or getattr(self._credentials, "account", None)
            if known:
                return str(known)
            answer = self.http().get(USER_INFO, timeout=10)
            return str(document(answer).get("email") or "") or None if answer.ok else None


def open_session(settings: GcpSettings) -> Session:
    """Log in.

    Raises NoSdk, and CloudRefused when there are no credentials or no project is named.
    """
    creds = settings.creds
    with translate_errors("log in"):
        if isinstance(creds, GcpServiceAccountCreds):
            info = _key(creds)
            service = sdk("google.oauth2.service_account").Credentials
            credentials = service.from_service_account_info(
                info, scopes=["https://www.googleapis.com/auth/cloud-platform"]
            )
            project: str | None = info.get("project_id")
        else:
            credentials, project = sdk("google.auth").default()
    if not (settings.project_id or project):
        raise CloudRefused(
            "no GCP project is named",
            hint="write `project_id` in orch.yml, or `gcloud config set project …`",
            code="ORCH303",
        )
    return Credentials(credentials, str(settings.project_id or project))


def selected_by(settings: GcpSettings) -> str:
    """Return the entry of orch.yml, the variable or the program that selects the project of `open_session`.

    Source: google-auth reference, `google.auth.default`: the order in which a project is looked for.
    """
    if settings.project_id:
        return "project_id of orch.yml"
    if isinstance(settings.creds, GcpServiceAccountCreds):
        return CREDS
    for variable in ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS"):
        if value := os.environ.get(variable):
            return f"{variable}={value}"
    return "the default credentials and project of gcloud"


def number(session: Session) -> str:
    """Return the number that Compute Engine gives the project, which no other project ever has.

    The call needs `compute.projects.get`, which quotas are read by as well. Source: Compute Engine API,
    Project, `id`. Raises CloudRefused.
    """
    return ProjectClient(session).number()


def _key(creds: GcpServiceAccountCreds) -> dict[str, Any]:
    source = creds.filename or "`data`"
    try:
        text = Path(creds.filename).expanduser().read_text("utf-8") if creds.filename else creds.data or ""
        key = json.loads(text)
        if isinstance(key, dict):
            return key
        reason = "it is no object"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise CloudRefused(
        f"the key of the service account in {source} does not read", detail=reason, code="ORCH303"
    )


def ask(session: Session, lookups: Lookups) -> GcpFacts:
    """All that one plan needs of a zone.

    Raises CloudRefused.
    """
    return ProjectClient(session).facts(lookups)


def reservation(
    session: Session, name: str, regions: Sequence[str], zones: Sequence[str]
) -> Reservation | None:
    """The reservation of that name, looked for in `zones`, else in all of `regions`."""
    project = ProjectClient(session)
    searched_zones = tuple(zones) or tuple(zone for region in regions for zone in project.zones(region))
    return project.reservation(name, searched_zones)


def members(session: Session, zone: str, group: str) -> tuple[Member, ...]:
    """The nodes of a fleet as they run, the oldest first. `group`: the value of their label `orch-group`."""
    return ProjectClient(session).members(zone, "orch-group", group)


def ended_by_themselves(
    session: Session, zone: str, group: str, instances: Mapping[str, str], *, over: bool
) -> frozenset[str]:
    """The numbers of those of a fleet's `instances` (number -> name) in a zone that were shut down from
    within, or that GCP took back from spot. `over`: the time of the fleet is, so all that are gone are such.

    One that is stopped counts if all operations since it was started tell that no call did it. One that
    is gone counts if no operation tells of a deletion alone. GCP knows an operation for an hour at least, for
    two weeks at most: of one that is stopped nothing is sure afterwards.
    Sources: Compute Engine documentation, "Troubleshooting VM shutdowns and reboots" (the names of the
    events), "Detect preemption of Spot VMs" (`operationType`), "View Compute Engine operations" (retention).
    Raises CloudRefused.
    """
    project = ProjectClient(session)
    there = {each.id: each for each in project.members(zone, "orch-group", group)}
    stopped = [each for each in instances if each in there and there[each].stopped]
    lost = [each for each in instances if each not in there]
    # Somebody may have changed the label of one that runs.
    gone = [each for each in lost if not project.exists(zone, instances[each], each)]
    operations = project.operations(zone, ENDINGS) if stopped or (gone and not over) else ()
    ended = set[str]()
    for number in gone:
        own = [each.type for each in operations if each.instance == number]
        if over or not own or not ENDED_BY_ITSELF.isdisjoint(own):
            ended.add(number)
    for number in stopped:
        started = there[number].started
        own = [each.type for each in operations if each.instance == number and started and each.at >= started]
        if own and ENDED_BY_ITSELF.issuperset(own):
            ended.add(number)
    return frozenset(ended)


def host_keys(session: Session, zone: str, instances: Sequence[str]) -> dict[str, str]:
    """The Ed25519 host keys that instances show as guest attributes, as in known_hosts, by name; who shows
    none yet is left out.

    Only programs on the machine itself write its guest attributes, and jobs get no answer where they would.
    Raises CloudRefused.
    """
    project = ProjectClient(session)
    project.client("InstancesClient")

    def attribute(name: str) -> str | None:
        try:
            return project.guest_attribute(zone, name, SHOWN)
        except CloudRefused as refused:
            if refused.code == "ORCH358":
                return None  # throttled, or not reached: asked again
            raise

    with ThreadPoolExecutor(ATTRIBUTES_AT_ONCE) as threads:
        values = threads.map(attribute, instances)
        keys = dict(zip(instances, values, strict=True))
    return {name: key for name, key in keys.items() if key is not None and _ED25519.fullmatch(key)}


def refused_request(session: Session, zone: str, group: str, request: str) -> CloudError | None:
    """Why a group's resize request will never be fulfilled; None while it may be, and once it is."""
    return ProjectClient(session).refused_request(zone, group, request)


def tagged(session: Session, zone: str, stack: str) -> tuple[tuple[str, str], ...]:
    """Live instances with a stack's label, as (name, `orch-urn`): what a killed `up` may have begun."""
    return ProjectClient(session).labelled(zone, stack)
