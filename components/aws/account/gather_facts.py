"""Asking an AWS account, by boto3: the only reader of the cloud besides the engine.

The session comes from the caller, so a simulated cloud can answer in its place. AWS tells nobody how much
room a zone has; who reserves capacity learns it, and has it as long as he pays: `find_room` gives it back at
once.
Source: EC2 user guide, "Create a Capacity Reservation": it is either created for all instances, or refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from orch.catalog.sdks import require_sdk
from orch.components.aws.account.client import RegionClient, Session
from orch.components.aws.account.client_errors import CloudRefused, pages, translate_errors
from orch.components.aws.account.existing import instances_of
from orch.components.aws.account.facts import AwsFacts, Reservation, Zone
from orch.components.aws.account.guarded import guarded
from orch.components.aws.account.lookups import Lookups
from orch.components.cloud.candidates import CloudCandidate
from orch.components.deployment import Room
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.backends.credentials import AccessKeyCreds, AwsDefaultCreds

# EC2 answers about twenty such calls a second.
CONSOLES_AT_ONCE = 8
_ED25519 = re.compile(r"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}(?![A-Za-z0-9+/])")

ENDED = ("terminated", "shutting-down")
# Of these a node above the minimum of its fleet goes, and is made again when a run needs it.
ENDED_BY_ITSELF = frozenset({"Client.InstanceInitiatedShutdown", "Server.SpotInstanceTermination"})
# Source: EC2 API, "Filter": the most values of one.
FILTER_VALUES = 200

# A region where every account can ask which others it has, by the prefix of a partition's regions.
HOMES = {"us-gov-": "us-gov-west-1", "cn-": "cn-north-1", "eusc-": "eusc-de-east-1"}
HOME = "us-east-1"


def open_session(settings: AwsSettings) -> Session:
    """A session with the credentials of `orch.yml`, else those the SDK finds.

    Raises NoSdk when the SDK is not installed, CloudRefused when the profile is unknown.
    """
    boto3 = require_sdk("boto3", "AWS")
    creds = settings.creds
    # boto3 reads AWS_DEFAULT_REGION alone, other SDKs AWS_REGION.
    region = settings.regions[0] if settings.regions else os.environ.get("AWS_REGION") or None
    with translate_errors("log in"):
        if isinstance(creds, AccessKeyCreds):
            return boto3.Session(
                aws_access_key_id=creds.access_key,
                aws_secret_access_key=creds.secret_key,
                region_name=region,
            )
        boto_session = boto3.Session(profile_name=profile(settings), region_name=region)
        if isinstance(creds, AwsDefaultCreds) and creds.role_arn:
            sts = guarded(boto_session.client("sts", region_name=home(boto_session)))
            answer = sts.assume_role(RoleArn=creds.role_arn, RoleSessionName="orch")
            credentials = answer["Credentials"]
            return boto3.Session(
                region_name=region,
                aws_access_key_id=credentials["AccessKeyId"],
                aws_secret_access_key=credentials["SecretAccessKey"],
                aws_session_token=credentials["SessionToken"],
            )
        return boto_session


def profile(settings: AwsSettings) -> str | None:
    """The profile that a session of `open_session` logs in by; None where keys do that.

    Keys and tokens in the environment come before a profile of the environment, and AWS_PROFILE before
    AWS_DEFAULT_PROFILE, as in the SDK for Go of the provider that creates the nodes; boto3 alone reads these
    two variables the other way round.
    """
    creds = settings.creds
    if isinstance(creds, AccessKeyCreds):
        return None
    if creds is not None and creds.profile:
        return creds.profile
    if os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return None
    return os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")


def home(session: Session) -> str:
    """Return a region of the session's partition that every account has enabled."""
    region = getattr(session, "region_name", None) or ""
    return next((each for prefix, each in HOMES.items() if region.startswith(prefix)), HOME)


def ask(session: Session, lookups: Lookups, endpoint: str | None = None) -> AwsFacts:
    """All that one plan needs of a region.

    Raises CloudRefused.
    """
    return RegionClient(session, lookups.region, endpoint).facts(lookups)


def zones(
    session: Session, regions: Sequence[str], endpoint: str | None = None
) -> dict[str, tuple[Zone, ...]]:
    """The zones of regions as the account names them; a region that is not enabled is left out."""
    zones_by_region: dict[str, tuple[Zone, ...]] = {}
    for region in regions:
        try:
            zones_by_region[region] = RegionClient(session, region, endpoint).zones()
        except CloudRefused as refused:
            if refused.error is None or refused.error.kind not in ("credentials", "permission"):
                raise
    return zones_by_region


def offered(
    session: Session, region: str, types: Collection[str], endpoint: str | None = None
) -> dict[str, tuple[str, ...]]:
    """Ids of a region's zones that have each of the types; nothing where the account has not enabled it."""
    if region not in enabled(session, endpoint):
        return {}
    return RegionClient(session, region, endpoint).offered(types)


@lru_cache(maxsize=16)
def enabled(session: Session, endpoint: str | None) -> frozenset[str]:
    """The regions that the account may use."""
    with translate_errors("list the regions"):
        answer = RegionClient(session, home(session), endpoint).client("ec2").describe_regions()
    return frozenset(str(each["RegionName"]) for each in answer["Regions"])


def reservation(
    session: Session, reservation_id: str, regions: Sequence[str], endpoint: str | None = None
) -> Reservation | None:
    """The Capacity Reservation or Block of that id, looked for in `regions`."""
    for region in regions:
        match = RegionClient(session, region, endpoint).reservation(reservation_id)
        if match is not None:
            return match
    return None


def topology(
    session: Session, region: str, instances: Sequence[str], endpoint: str | None = None
) -> dict[str, tuple[str, ...]]:
    """Network nodes above each instance, the outermost first; those not told of yet are left out."""
    ec2 = RegionClient(session, region, endpoint).client("ec2")
    network_nodes: dict[str, tuple[str, ...]] = {}
    for start in range(0, len(instances), 100):  # the most that one call takes
        with translate_errors("read where the instances are"):
            answer = ec2.describe_instance_topology(InstanceIds=list(instances[start : start + 100]))
        for each in answer.get("Instances", ()):
            if each.get("NetworkNodes"):
                network_nodes[str(each["InstanceId"])] = tuple(str(node) for node in each["NetworkNodes"])
    return network_nodes


def host_keys(
    session: Session, region: str, instances: Sequence[str], endpoint: str | None = None
) -> dict[str, str]:
    """The Ed25519 host keys that instances show on their consoles, as in known_hosts, by instance; who shows
    none yet is left out.

    Only a machine's root and AWS write to a console, and AWS alone passes it on. Raises CloudRefused.
    """
    ec2 = RegionClient(session, region, endpoint).client("ec2")

    def console(instance: str, *, latest: bool) -> str:
        with translate_errors("read the host keys on the nodes' consoles"):
            return ec2.get_console_output(InstanceId=instance, Latest=latest).get("Output") or ""

    def read_key(instance: str) -> str | None:
        try:
            return host_key_of(console(instance, latest=True))
        except CloudRefused as refused:
            code = refused.error.code if refused.error is not None else ""
            if refused.code == "ORCH358":
                return None  # throttled, or not reached: asked again
            if code == "InvalidInstanceID.NotFound":
                return None  # it is not known everywhere at once
            if (
                code == "UnsupportedOperation"
            ):  # a Xen type: it shows what there was some minutes after the boot
                return host_key_of(console(instance, latest=False))
            raise

    with ThreadPoolExecutor(CONSOLES_AT_ONCE) as threads:
        keys = dict(zip(instances, threads.map(read_key, instances), strict=True))
    return {instance: key for instance, key in keys.items() if key is not None}


def host_key_of(console: str) -> str | None:
    """The key in the first block of host keys: the one of the boot, before anybody could log in."""
    _, _, after = console.partition("-----BEGIN SSH HOST KEY KEYS-----")
    block, ended, _ = after.partition("-----END SSH HOST KEY KEYS-----")
    match = _ED25519.search(block) if ended else None
    return match[0] if match else None


def ended_by_themselves(
    session: Session,
    region: str,
    template: str,
    instances: Sequence[str],
    endpoint: str | None = None,
) -> frozenset[str]:
    """Those of a fleet's instances that were shut down from within, or that EC2 took back from spot.

    EC2 shows a terminated instance for about an hour, with the reason. One that it has forgotten counts, if
    the account has the fleet's launch `template`: then it is the account where the instance was.
    Source: EC2 API, StateReason. Raises CloudRefused.
    """
    ec2 = RegionClient(session, region, endpoint).client("ec2")
    shown, ended = set[str](), set[str]()
    with translate_errors("ask which nodes ended themselves"):
        for start in range(0, len(instances), FILTER_VALUES):
            ids = {"Name": "instance-id", "Values": list(instances[start : start + FILTER_VALUES])}
            for each in instances_of(ec2, [ids]):
                shown.add(str(each["InstanceId"]))
                if (each.get("StateReason") or {}).get("Code") in ENDED_BY_ITSELF:
                    ended |= {str(each["InstanceId"])} if each["State"]["Name"] in ENDED else set()
        if forgotten := set(instances) - shown:
            named = [{"Name": "launch-template-name", "Values": [template]}]
            if ec2.describe_launch_templates(Filters=named)["LaunchTemplates"]:
                ended |= forgotten
    return frozenset(ended)


def tagged(
    session: Session, region: str, stack: str, endpoint: str | None = None
) -> tuple[tuple[str, str, str], ...]:
    """Live resources with a stack's tag, as (id, kind, `orch:urn`): what a killed `up` may have begun."""
    ec2 = RegionClient(session, region, endpoint).client("ec2")
    with translate_errors("look for resources by tag"):
        rows = list(
            pages(ec2, "describe_tags", "Tags", Filters=[{"Name": "tag:orch:stack", "Values": [stack]}])
        )
        owners = {str(row["ResourceId"]): str(row["ResourceType"]) for row in rows}
        if not owners:
            return ()
        urns = {
            str(row["ResourceId"]): str(row["Value"])
            for row in pages(ec2, "describe_tags", "Tags", Filters=[{"Name": "key", "Values": ["orch:urn"]}])
            if row["ResourceId"] in owners
        }
        instances = [each for each, kind in owners.items() if kind == "instance"]
        ended = _ended(ec2, instances) if instances else set[str]()
    return tuple(
        (each, kind, urns.get(each, "")) for each, kind in sorted(owners.items()) if each not in ended
    )


def _ended(ec2: Any, instances: Sequence[str]) -> set[str]:
    """Terminated instances keep their tags for an hour."""
    named = [{"Name": "instance-id", "Values": list(instances)}]
    states = {str(each["InstanceId"]): str(each["State"]["Name"]) for each in instances_of(ec2, named)}
    return {each for each in instances if states.get(each, "terminated") in ENDED}


# Should the call that gives it back be killed: the shortest end, for reservations end at full hours.
ENDS_AFTER = timedelta(hours=1)


def find_room(
    session: Session, endpoint: str | None, places: Sequence[CloudCandidate], count: int, mark: str
) -> Room:
    """The first of the places, whose zones are known, with room for so many nodes. `mark`: of the stack.

    Raises CloudRefused for what no other place avoids.
    """
    full: list[str] = []
    for place in places:
        client = RegionClient(session, place.region, endpoint)
        zone = next((each.name for each in client.zones() if each.id == place.zone), place.zone)
        try:
            _reserve(client, place, zone, count, mark)
        except CloudRefused as refused:
            if refused.error is None or not refused.error.answer.elsewhere:
                raise
            full.append(f"{place.words}: {refused.error.answer.reason}")
        else:
            return Room(place.words, tuple(full))
    return Room(None, tuple(full))


def _reserve(client: RegionClient, place: CloudCandidate, zone: str, count: int, mark: str) -> None:
    ec2 = client.client("ec2")
    tags = [{"Key": "Name", "Value": "orch: is there room?"}, {"Key": "orch:stack", "Value": mark}]
    with translate_errors(f"reserve room for {count} {place.type.name} in {zone}"):
        answer = ec2.create_capacity_reservation(
            InstanceType=place.type.name,
            InstancePlatform="Linux/UNIX",
            AvailabilityZone=zone,
            InstanceCount=count,
            InstanceMatchCriteria="targeted",
            EndDateType="limited",
            EndDate=datetime.now(timezone.utc) + ENDS_AFTER,
            TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tags}],
        )
        reservation = answer["CapacityReservation"]["CapacityReservationId"]
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation)
