"""One zone of a GCP project, asked through the clients of google-cloud-compute."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

from orch.catalog.gcp.machines import gcp_quotas, network_quota
from orch.components.cloud.quotas import if_readable
from orch.components.cloud_errors import CloudError, CloudRefused
from orch.components.gcp.account import errors
from orch.components.gcp.account.client_errors import not_found, translate_errors
from orch.components.gcp.account.facts import (
    Allowance,
    GcpFacts,
    Image,
    Member,
    Network,
    Operation,
    Reservation,
    Subnet,
)
from orch.components.gcp.account.lookups import ImageLookup, Lookups, short
from orch.components.gcp.userdata import SHOWN

NO_INSTANCE = "orch-none"
"""A name that no instance has: names of ours are longer."""
RESERVATION_LEAST = "projects/"
STOPPED = ("STOPPING", "STOPPED", "TERMINATED")
"""Source: Compute Engine API, Instance, `status`."""
_FRACTION = re.compile(r"\.\d+|Z$")


class Session(Protocol):
    """A project, and clients for it. `client` takes the class's name in google.cloud.compute_v1."""

    @property
    def project(self) -> str: ...

    def client(self, name: str) -> Any: ...

    def http(self) -> Any:
        """A session of requests that is logged in, for what google-cloud-compute has no client of."""
        ...

    def email(self) -> str | None:
        """Of the service account or the user that is logged in; None where Google does not tell."""
        ...


class ProjectClient:
    """A project, asked through one client per kind of resource."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._clients: dict[str, Any] = {}
        self.project = session.project

    def client(self, name: str) -> Any:
        if name not in self._clients:
            with translate_errors("log in"):
                self._clients[name] = self._session.client(name)
        return self._clients[name]

    def facts(self, lookups: Lookups) -> GcpFacts:
        missing, unread = list[str](), list[str]()
        region, metric = lookups.region, lookups.metric
        networks = self._networks(lookups, missing)
        return GcpFacts(
            project=self.project,
            region=lookups.region,
            zones=self.zones(lookups.region),
            offered=self._exists("MachineTypesClient", zone=lookups.zone, machine_type=lookups.instance_type),
            profile=self._profile(lookups.profile),
            image=self._image(lookups.image),
            bastion_image=self._image(lookups.bastion_image),
            networks=networks,
            reservation=self.reservation(lookups.reservation, (lookups.zone,))
            if lookups.reservation
            else None,
            capacity=if_readable(unread, lambda: self._region_quota(region, metric)) if metric else None,
            network_quota=if_readable(unread, self._network_quota) if lookups.made_networks else None,
            missing=tuple(missing),
            own=self._running(lookups.zone, lookups.own) if lookups.own else 0,
            attribute_refusal=self._attribute_refusal(lookups.zone),
            unread=tuple(unread),
        )

    def _attribute_refusal(self, zone: str) -> str | None:
        """The message of GCP where guest attributes may not be read.

        GCP checks the permission before it looks for the instance.
        """
        try:
            self.guest_attribute(zone, NO_INSTANCE, SHOWN)
        except CloudRefused as refused:
            if refused.error is not None and refused.error.kind == "permission":
                return refused.detail
        return None

    def number(self) -> str:
        with translate_errors(f"ask which project {self.project} is"):
            return str(self.client("ProjectsClient").get(project=self.project).id)

    def zones(self, region: str) -> tuple[str, ...]:
        with translate_errors(f"list the zones of {region}"):
            rows = list(self.client("ZonesClient").list(project=self.project))
        return tuple(sorted(str(row.name) for row in rows if short(str(row.region)) == region))

    def _exists(self, client: str, **arguments: str) -> bool:
        with translate_errors(f"ask about {' '.join(arguments.values())}"):
            try:
                self.client(client).get(project=self.project, **arguments)
            except not_found():
                return False
        return True

    def _profile(self, name: str | None) -> bool | None:
        return None if name is None else self._exists("NetworkProfilesClient", network_profile=name)

    # Networks

    def _networks(self, lookups: Lookups, missing: list[str]) -> tuple[Network, ...]:
        if not lookups.networks:
            return ()
        host = lookups.host_project or self.project
        with translate_errors("look for the networks"):
            subnets = list(self.client("SubnetworksClient").list(project=host, region=lookups.region))
            rules = list(self.client("FirewallsClient").list(project=host))
            routers = list(self.client("RoutersClient").list(project=host, region=lookups.region))
        networks: list[Network] = []
        for name in lookups.networks:
            with translate_errors(f"look for the VPC {name}"):
                try:
                    row = self.client("NetworksClient").get(project=host, network=name)
                except not_found():
                    missing.append(name)
                    continue
            network_subnets = sorted(
                (each for each in subnets if short(str(each.network)) == name), key=lambda each: each.name
            )
            networks.append(
                Network(
                    name=name,
                    mtu=int(row.mtu or 1460),
                    profile=short(str(row.network_profile)) or None,
                    subnets=tuple(
                        Subnet(
                            str(each.name),
                            lookups.region,
                            str(each.ip_cidr_range) or None,
                            str(each.stack_type or "IPV4_ONLY"),
                        )
                        for each in network_subnets
                    ),
                    nat=any(short(str(each.network)) == name and each.nats for each in routers),
                    within=any(_lets_in(rule, name) for rule in rules),
                )
            )
        return tuple(networks)

    # Capacity, images, quotas

    def reservation(self, path: str, zones: Sequence[str]) -> Reservation | None:
        """The reservation of that name, in the first of `zones` that has it."""
        parts = path.strip("/").split("/")
        project = parts[1] if path.startswith(RESERVATION_LEAST) else self.project
        name = parts[parts.index("reservations") + 1] if "reservations" in parts else parts[-1]
        for zone in zones:
            with translate_errors(f"look for the reservation {path}"):
                try:
                    row = self.client("ReservationsClient").get(project=project, zone=zone, reservation=name)
                except not_found():
                    continue
            specific = row.specific_reservation
            return Reservation(
                name=name,
                project=project,
                zone=zone,
                instance_type=str(specific.instance_properties.machine_type),
                total=int(specific.count),
                used=int(specific.in_use_count),
                status=str(row.status),
                specific=bool(row.specific_reservation_required),
                policy=next(iter(row.resource_policies.values()), None),
                dense=str(row.deployment_type) == "DENSE",
            )
        return None

    def _image(self, lookup: ImageLookup | None) -> Image | None:
        if lookup is None:
            return None
        project, client = lookup.project or self.project, self.client("ImagesClient")
        with translate_errors("look for the machine image"):
            try:
                if lookup.family is not None:
                    row = client.get_from_family(project=project, family=lookup.family)
                else:
                    row = client.get(project=project, image=lookup.name)
            except not_found():
                return None
        name = str(row.name)
        return Image(f"projects/{project}/global/images/{name}", name, int(row.disk_size_gb))

    def _region_quota(self, region: str, metric: str) -> Allowance | None:
        with translate_errors(f"read the quotas of {region}"):
            row = self.client("RegionsClient").get(project=self.project, region=region)
        name = next(each.name for each in gcp_quotas() if each.metric == metric)
        return _allowance(row.quotas, metric, name)

    def _network_quota(self) -> Allowance | None:
        with translate_errors("read the quotas of the project"):
            row = self.client("ProjectsClient").get(project=self.project)
        quota = network_quota()
        return _allowance(row.quotas, quota.metric, quota.name)

    # What runs

    def members(self, zone: str, label: str, value: str) -> tuple[Member, ...]:
        """Instances with a label, the oldest first: members of a group have names that the cloud chose."""
        with translate_errors("list the nodes"):
            rows = list(
                self.client("InstancesClient").list(
                    request={"project": self.project, "zone": zone, "filter": f"labels.{label}={value}"}
                )
            )
        return tuple(sorted((_member(row) for row in rows), key=lambda each: (each.created, each.name)))

    def _running(self, zone: str, group: str) -> int:
        return sum(not each.stopped for each in self.members(zone, "orch-group", group))

    def exists(self, zone: str, instance: str, id: str) -> bool:
        """Whether an instance is there by its name, and no other one of that name, whatever its labels."""
        with translate_errors(f"look for {instance}"):
            try:
                row = self.client("InstancesClient").get(project=self.project, zone=zone, instance=instance)
            except not_found():
                return False
        return str(row.id) == id

    def operations(self, zone: str, types: Sequence[str]) -> tuple[Operation, ...]:
        """What GCP still knows of operations of these types, the oldest first."""
        wanted = " OR ".join(f'(operationType = "{each}")' for each in types)
        with translate_errors("ask how instances were stopped"):
            rows = list(
                self.client("ZoneOperationsClient").list(
                    request={"project": self.project, "zone": zone, "filter": wanted}
                )
            )
        found = [
            Operation(str(row.operation_type), str(row.target_id), at)
            for row in rows
            if (at := moment(str(row.insert_time))) is not None
        ]
        return tuple(sorted(found, key=lambda each: each.at))

    def guest_attribute(self, zone: str, instance: str, path: str) -> str | None:
        """What an instance has written at `NAMESPACE/KEY`; None while it has not."""
        with translate_errors(f"read the host key that {instance} shows"):
            try:
                row = self.client("InstancesClient").get_guest_attributes(
                    request={
                        "project": self.project,
                        "zone": zone,
                        "instance": instance,
                        "query_path": path,
                    }
                )
            except not_found():
                return None
        values = [str(each.value) for each in row.query_value.items if f"{each.namespace}/{each.key}" == path]
        return values[0].strip() if values else None

    def refused_request(self, zone: str, group: str, request: str) -> CloudError | None:
        """Why a resize request will never be fulfilled: it failed, or somebody cancelled it."""
        with translate_errors(f"look at the request {request}"):
            row = self.client("InstanceGroupManagerResizeRequestsClient").get(
                project=self.project, zone=zone, instance_group_manager=group, resize_request=request
            )
        if str(row.state) not in ("FAILED", "CANCELLED"):
            return None
        for each in (*row.status.error.errors, *row.status.last_attempt.error.errors):
            return errors.by_code(str(each.code), str(each.message))
        return errors.by_code(str(row.state), f"the request {request} is {row.state}")

    def labelled(self, zone: str, value: str) -> tuple[tuple[str, str], ...]:
        """Instances of a stack by name, and the mark of the resource each was made for."""
        with translate_errors("look for resources by label"):
            rows = list(
                self.client("InstancesClient").list(
                    request={"project": self.project, "zone": zone, "filter": f"labels.orch-stack={value}"}
                )
            )
        return tuple(sorted((str(row.name), str(dict(row.labels).get("orch-urn", ""))) for row in rows))


def moment(text: str) -> datetime | None:
    """A time as GCP writes it, to the second; None for anything else."""
    try:
        return datetime.fromisoformat(_FRACTION.sub(lambda found: "+00:00" if found[0] == "Z" else "", text))
    except ValueError:
        return None


def carries_key(user_data: str) -> bool:
    """Whether user data holds a host key, as that of nodes does which an earlier version made."""
    return "ed25519_private:" in user_data


def _member(row: Any) -> Member:
    nic = row.network_interfaces[0]
    public = next((str(each.nat_i_p) for each in nic.access_configs if each.nat_i_p), None)
    physical_host = str(row.resource_status.physical_host or "")
    return Member(
        name=str(row.name),
        address=str(nic.network_i_p),
        public=public,
        created=str(row.creation_timestamp),
        host=tuple(part for part in physical_host.split("/") if part),
        id=str(row.id),
        keyed=any(each.key == "user-data" and carries_key(str(each.value)) for each in row.metadata.items),
        started=moment(str(row.last_start_timestamp or row.creation_timestamp)),
        stopped=str(row.status) in STOPPED,
    )


def _allowance(rows: Iterable[Any], metric: str, name: str) -> Allowance | None:
    for row in rows:
        if str(row.metric) == metric:
            return Allowance(metric, name, float(row.limit), float(row.usage))
    return None


def _lets_in(rule: Any, network: str) -> bool:
    """Whether a firewall rule lets all of TCP and UDP into a network."""
    if short(str(rule.network)) != network or rule.direction != "INGRESS" or rule.disabled:
        return False
    whole = {str(each.I_p_protocol) for each in rule.allowed if not each.ports or "0-65535" in each.ports}
    return "all" in whole or {"tcp", "udp"} <= whole
