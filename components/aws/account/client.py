"""One region of an AWS account, asked through boto3."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol

from orch.catalog.aws.machines import Market, QuotaRow, unit_quota, vcpu_quota
from orch.components.aws.account import errors
from orch.components.aws.account.client_errors import client_error, pages, translate_errors
from orch.components.aws.account.existing import Lookup, quota_usage
from orch.components.aws.account.facts import (
    Allowance,
    AwsFacts,
    Image,
    Reservation,
    SecurityGroup,
    Subnet,
    Vpc,
    Zone,
)
from orch.components.aws.account.guarded import guarded
from orch.components.aws.account.lookups import ImageLookup, Lookups
from orch.components.cloud.quotas import if_readable

NO_INSTANCE = "i-00000000000000000"


class Session(Protocol):
    """What is used of a boto3 session."""

    def client(self, service_name: str, region_name: str | None = None, **more: Any) -> Any: ...


@lru_cache(maxsize=64)
def _client(session: Session, service: str, region: str, endpoint: str | None) -> Any:
    """One client of a session, which takes a while to make."""
    config: Any = importlib.import_module("botocore.config")
    more = {"endpoint_url": endpoint} if endpoint else {}
    settings = config.Config(
        connect_timeout=5, read_timeout=30, retries={"max_attempts": 5, "mode": "standard"}
    )
    with translate_errors("log in"):
        return guarded(session.client(service, region_name=region, config=settings, **more))


class RegionClient:
    """One region, asked through one client per service."""

    def __init__(self, session: Session, region: str, endpoint: str | None) -> None:
        self._session = session
        self._endpoint = endpoint
        self.region = region

    def client(self, service: str) -> Any:
        return _client(self._session, service, self.region, self._endpoint)

    def facts(self, lookups: Lookups) -> AwsFacts:
        lookup, unread = Lookup(self.client("ec2")), list[str]()
        vpc, subnets, groups = self._network(lookups, lookup)
        market: Market = "spot" if lookups.spot else "on-demand"
        quota, account = vcpu_quota(lookups.instance_type, market), self._account()
        usage = (
            quota_usage(self.client("ec2"), account, quota, market, lookups.own) if lookups.quotas else None
        )
        return AwsFacts(
            account=account,
            region=self.region,
            zones=self.zones(),
            image=self._image(lookups.image),
            bastion_image=self._image(lookups.bastion_image),
            vpc=vpc,
            subnets=subnets,
            groups=groups,
            reservation=self.reservation(lookups.reservation) if lookups.reservation else None,
            vcpus=self._allowance(quota, usage.vcpus, unread) if usage and quota else None,
            addresses=self._addresses(unread) if lookups.addresses else None,
            interfaces=self._allowance(unit_quota("interface"), usage.interfaces, unread) if usage else None,
            cards=self._cards(lookups.instance_type),
            missing=tuple(lookup.missing),
            elsewhere=self._elsewhere(lookup.missing) if lookup.missing else {},
            ambiguous=lookup.ambiguous,
            in_other_vpc=lookup.in_other_vpc,
            console_refusal=self._console_refusal(),
            unread=tuple(unread),
        )

    def _console_refusal(self) -> str | None:
        """AWS's message where an instance's console may not be read.

        A policy may still allow it by tags that the fleet's instances will have.
        """
        try:
            self.client("ec2").get_console_output(InstanceId=NO_INSTANCE, DryRun=True)
        except client_error() as error:
            response = error.response.get("Error", {})
            if errors.by_code(response.get("Code", "")).kind == "permission":
                return f"GetConsoleOutput: {response['Code']}: {response.get('Message', '')}"
        return None

    def zones(self) -> tuple[Zone, ...]:
        with translate_errors(f"list the zones of {self.region}"):
            answer = self.client("ec2").describe_availability_zones()
        return tuple(
            Zone(str(each["ZoneId"]), str(each["ZoneName"]))
            for each in sorted(answer["AvailabilityZones"], key=lambda each: each["ZoneName"])
        )

    def offered(self, types: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Ids of the zones that have each of the types."""
        names, zones_by_type = sorted(types), dict[str, list[str]]()
        for start in range(0, len(names), 200):  # the most values that a filter takes
            filters = [{"Name": "instance-type", "Values": names[start : start + 200]}]
            with translate_errors(f"ask which zones of {self.region} have the types"):
                rows = list(
                    pages(
                        self.client("ec2"),
                        "describe_instance_type_offerings",
                        "InstanceTypeOfferings",
                        LocationType="availability-zone-id",
                        Filters=filters,
                    )
                )
            for row in rows:
                zones_by_type.setdefault(str(row["InstanceType"]), []).append(str(row["Location"]))
        return {name: tuple(sorted(zones)) for name, zones in zones_by_type.items()}

    def _account(self) -> str:
        return self.caller()[0]

    def caller(self) -> tuple[str, str]:
        """The account, and the ARN of who is logged in. Raises CloudRefused."""
        with translate_errors("log in"):
            answer = self.client("sts").get_caller_identity()
        return str(answer["Account"]), str(answer["Arn"])

    # Networks

    def _network(
        self, lookups: Lookups, lookup: Lookup
    ) -> tuple[Vpc | None, tuple[Subnet, ...], tuple[SecurityGroup, ...]]:
        network = lookups.network
        ec2 = self.client("ec2")
        vpc = _vpc(network.vpc, lookup) if network.vpc else None
        subnets: tuple[Subnet, ...] = ()
        given_rows: list[Mapping[str, Any]] = []
        if network.subnets:
            given_rows = lookup.subnets(network.subnets, vpc.id if vpc else None)
            if vpc is None and network.vpc is None and given_rows:
                vpc = _vpc(str(given_rows[0]["VpcId"]), lookup)
        if vpc is not None:
            with translate_errors("list the subnets"):
                rows = list(
                    pages(
                        ec2, "describe_subnets", "Subnets", Filters=[{"Name": "vpc-id", "Values": [vpc.id]}]
                    )
                )
                tables = list(
                    pages(
                        ec2,
                        "describe_route_tables",
                        "RouteTables",
                        Filters=[{"Name": "vpc-id", "Values": [vpc.id]}],
                    )
                )
            chosen_ids = {str(row["SubnetId"]) for row in given_rows}
            subnets = tuple(
                Subnet(
                    id=str(row["SubnetId"]),
                    vpc=str(row["VpcId"]),
                    zone=str(row["AvailabilityZoneId"]),
                    cidr=str(row["CidrBlock"]),
                    free=int(row["AvailableIpAddressCount"]),
                    egress=_egress(str(row["SubnetId"]), tables),
                    nodes=not network.subnets or str(row["SubnetId"]) in chosen_ids,
                )
                for row in sorted(rows, key=lambda row: row["SubnetId"])
            )
        rows = lookup.of("security-group", network.groups, vpc.id if vpc else None)
        groups = tuple(SecurityGroup(str(row["GroupId"]), str(row["VpcId"]), _to_itself(row)) for row in rows)
        return vpc, subnets, groups

    def _elsewhere(self, missing: Sequence[str]) -> dict[str, str]:
        """In which other region of the account a given VPC or subnet is."""
        with translate_errors("list the regions"):
            answer = self.client("ec2").describe_regions()
        unresolved = {each for each in missing if each.startswith(("vpc-", "subnet-"))}
        regions: dict[str, str] = {}
        for name in sorted(str(each["RegionName"]) for each in answer["Regions"]):
            if name == self.region or not unresolved:
                continue
            other = RegionClient(self._session, name, self._endpoint)
            for each in sorted(unresolved):
                kind: Literal["vpc", "subnet"] = "vpc" if each.startswith("vpc-") else "subnet"
                if Lookup(other.client("ec2")).of(kind, (each,)):
                    regions[each] = name
                    unresolved.discard(each)
        return regions

    # Capacity, images, quotas

    def reservation(self, reservation_id: str) -> Reservation | None:
        ec2 = self.client("ec2")
        with translate_errors(f"look for the reservation {reservation_id}"):
            try:
                answer = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])
            except client_error() as error:
                if errors.by_code(error.response["Error"]["Code"]).kind != "parameter":
                    raise
                return None
            rows = [
                row
                for row in answer["CapacityReservations"]
                if row["CapacityReservationId"] == reservation_id
            ]
        if not rows:
            return None
        row = rows[0]
        names = {zone.name: zone.id for zone in self.zones()}
        group = row.get("PlacementGroupArn")
        return Reservation(
            id=str(row["CapacityReservationId"]),
            kind="block" if row.get("ReservationType") == "capacity-block" else "reservation",
            instance_type=str(row["InstanceType"]),
            region=self.region,
            zone=str(row.get("AvailabilityZoneId") or names.get(str(row["AvailabilityZone"]), "")),
            total=int(row["TotalInstanceCount"]),
            available=int(row["AvailableInstanceCount"]),
            state=str(row["State"]),
            group=str(group).rpartition("/")[2] if group else None,
            start=_time(row.get("StartDate")),
            end=_time(row.get("EndDate")),
            tenancy=str(row.get("Tenancy", "default")),
        )

    def _image(self, lookup: ImageLookup | None) -> Image | None:
        if lookup is None:
            return None
        ec2 = self.client("ec2")
        image_id = lookup.id
        if lookup.parameter is not None:
            with translate_errors(f"look up the newest image of {lookup.parameter}"):
                try:
                    answer = self.client("ssm").get_parameter(Name=lookup.parameter)
                except client_error() as error:
                    if error.response["Error"]["Code"] != "ParameterNotFound":
                        raise
                    return None
            image_id = str(answer["Parameter"]["Value"])
        with translate_errors("look for the machine image"):
            if image_id is not None:
                rows = _rows_or_none(lambda: ec2.describe_images(ImageIds=[image_id])["Images"])
            else:
                filters = [
                    {"Name": "name", "Values": [lookup.name]},
                    {"Name": "state", "Values": ["available"]},
                ]
                rows = ec2.describe_images(Owners=[lookup.owner], Filters=filters)["Images"]
        if not rows:
            return None
        row = max(rows, key=lambda row: (str(row.get("CreationDate", "")), str(row["ImageId"])))
        device = str(row["RootDeviceName"])
        sizes = [
            int(each["Ebs"]["VolumeSize"])
            for each in row.get("BlockDeviceMappings", ())
            if each.get("DeviceName") == device and "VolumeSize" in each.get("Ebs", {})
        ]
        return Image(str(row["ImageId"]), str(row.get("Name", "")), device, max(sizes, default=0))

    def _allowance(self, quota: QuotaRow, used: int | None, unread: list[str]) -> Allowance | None:
        return if_readable(unread, lambda: self._quota(quota, used))

    def _quota(self, quota: QuotaRow, used: int | None) -> Allowance | None:
        client = self.client("service-quotas")
        with translate_errors(f"read the quota {quota.code}"):
            try:
                answer = client.get_service_quota(ServiceCode=quota.service, QuotaCode=quota.code)["Quota"]
            except client_error() as error:
                # Where the account has no value of its own, the default holds; some regions know neither.
                if error.response["Error"]["Code"] != "NoSuchResourceException":
                    raise
                return None
        return Allowance(quota.code, quota.name, float(answer["Value"]), used)

    def _addresses(self, unread: list[str]) -> Allowance | None:
        with translate_errors("count the Elastic IPs"):
            used = len(self.client("ec2").describe_addresses()["Addresses"])
        return self._allowance(unit_quota("address"), used, unread)

    def _cards(self, instance_type: str) -> tuple[int, int] | None:
        with translate_errors(f"ask about {instance_type}"):
            rows = _rows_or_none(
                lambda: self.client("ec2").describe_instance_types(InstanceTypes=[instance_type])[
                    "InstanceTypes"
                ]
            )
        if not rows:
            return None
        network = rows[0].get("NetworkInfo", {})
        efa = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0) if network.get("EfaSupported") else 0
        cards = network.get("MaximumNetworkCards")
        return (int(cards), int(efa)) if cards else None


def _vpc(name: str, lookup: Lookup) -> Vpc | None:
    rows = lookup.of("vpc", (name,))
    return Vpc(str(rows[0]["VpcId"]), str(rows[0]["CidrBlock"])) if rows else None


def _egress(subnet: str, tables: Sequence[Mapping[str, Any]]) -> Literal["nat", "internet", "other", "none"]:
    """Where a subnet's default route leads, by its own table, else by the VPC's main one."""

    def of(table: Mapping[str, Any], key: str, value: object) -> bool:
        return any(each.get(key) == value for each in table.get("Associations", ()))

    own = [table for table in tables if of(table, "SubnetId", subnet)]
    for table in own or [table for table in tables if of(table, "Main", True)]:
        for route in table.get("Routes", ()):
            if route.get("DestinationCidrBlock") != "0.0.0.0/0":
                continue
            if route.get("NatGatewayId") or route.get("TransitGatewayId") or route.get("InstanceId"):
                return "nat" if route.get("NatGatewayId") else "other"
            return "internet" if str(route.get("GatewayId", "")).startswith("igw-") else "other"
    return "none"


def _to_itself(row: Mapping[str, Any]) -> bool:
    """Whether a group has a rule for all traffic with itself, both ways."""

    def within(rules: Sequence[Mapping[str, Any]]) -> bool:
        return any(
            rule.get("IpProtocol") == "-1" and pair.get("GroupId") == row["GroupId"]
            for rule in rules
            for pair in rule.get("UserIdGroupPairs", ())
        )

    return within(row.get("IpPermissions", ())) and within(row.get("IpPermissionsEgress", ()))


def _rows_or_none(call: Callable[[], list[Any]]) -> list[Any] | None:
    """The rows, or None where the cloud knows nothing of that id."""
    try:
        return call()
    except client_error() as error:
        if errors.by_code(error.response["Error"]["Code"]).kind != "parameter":
            raise
        return None


def _time(value: Any) -> str | None:
    if value is None:
        return None
    return value.strftime("%Y-%m-%dT%H:%M:%SZ") if hasattr(value, "strftime") else str(value)
