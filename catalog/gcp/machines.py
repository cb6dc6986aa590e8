"""What GCP machine types carry, which networks that takes, what they start with, and their quotas.

A shape is a row of `shapes-gcp.csv`: what differs between A3 High, A3 Mega, A3 Ultra, A4, A4X and the rest is
data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal, cast

from orch.catalog.errors import BadCatalogFile
from orch.catalog.load import SHIPPED, gcp_siblings, read_rows
from orch.catalog.records import InstanceType

Market = Literal["on-demand", "spot"]
Placement = Literal["compact", "topology", "none"]


@dataclass(frozen=True)
class Shape:
    """One type.

    `hosts`: interfaces for IP traffic, the first of which has the node's address; `datas`: further ones for
    GPU traffic. Each is in a network of its own. `rdmas` interfaces are in one network of the zone's
    `profile`, over `rdma_subnets` subnets (0: that network makes its own). `domain`: nodes that one
    accelerator `topology` holds; `most`: nodes in one placement policy; `workload`: whether a group takes a
    workload policy. `accelerator`: name and number of GPUs that are not part of the type's name.
    """

    type: str
    fabric: str
    hosts: int
    host_nic: Literal["GVNIC", "IDPF"]
    host_mtu: int
    datas: int
    data_mtu: int
    rdmas: int
    rdma_subnets: int
    rdma_mtu: int
    profile: str
    stack: Literal["ipv4", "dual"]
    placement: Placement
    topology: str
    domain: int
    most: int
    workload: bool
    flex: bool
    gbps: int
    disks: int
    disk_gb: int
    boot: str
    accelerator: str
    levels: int

    @property
    def extras(self) -> int:
        """Networks beside the first that are no RDMA network."""
        return self.hosts - 1 + self.datas

    @property
    def fast(self) -> bool:
        return self.fabric != "ethernet"


@dataclass(frozen=True)
class GcpImage:
    """The image of nodes that name none: the newest of a family. `os`: ubuntu or cos."""

    kind: str
    arch: str
    fabric: str
    os: str
    project: str
    family: str


@dataclass(frozen=True)
class Software:
    """A container that nodes start with. `part`: receiver (runs all the time) or plugin (installs itself)."""

    fabric: str
    part: str
    types: str
    image: str
    version: str

    @property
    def reference(self) -> str:
        return f"{self.image}:{self.version}"


@dataclass(frozen=True)
class GcpQuota:
    """A quota: `unit` is gpu, vcpu or network."""

    pattern: str
    market: str
    unit: str
    metric: str
    name: str


@dataclass(frozen=True)
class CodeRow:
    """Meaning of an error code of the cloud, and a hint on what to do about it."""

    code: str
    kind: str
    hint: str | None


@cache
def shapes() -> Mapping[str, Shape]:
    """Return all types, by name. Raises BadCatalogFile."""
    path = SHIPPED / "shapes-gcp.csv"
    try:
        known = {row["type"]: _shape(row) for row in read_rows(path)}
    except (KeyError, ValueError, TypeError) as error:
        raise BadCatalogFile(
            "a file of the catalogue does not read", where=str(path), detail=str(error)
        ) from error
    like = ((each, known[each.like]) for each in gcp_siblings())
    return known | {
        each.type.name: replace(shape, type=each.type.name, disks=each.disks) for each, shape in like
    }


def _shape(row: Mapping[str, str]) -> Shape:
    return Shape(
        type=row["type"],
        fabric=row["fabric"],
        hosts=int(row["hosts"]),
        host_nic=cast('Literal["GVNIC", "IDPF"]', row["host_nic"]),
        host_mtu=int(row["host_mtu"]),
        datas=int(row["datas"]),
        data_mtu=int(row["data_mtu"]),
        rdmas=int(row["rdmas"]),
        rdma_subnets=int(row["rdma_subnets"]),
        rdma_mtu=int(row["rdma_mtu"]),
        profile=row["profile"],
        stack=cast('Literal["ipv4", "dual"]', row["stack"]),
        placement=cast(Placement, row["placement"]),
        topology=row["topology"],
        domain=int(row["domain"]),
        most=int(row["most"]),
        workload=row["workload"] == "yes",
        flex=row["flex"] == "yes",
        gbps=int(row["gbps"]),
        disks=int(row["disks"]),
        disk_gb=int(row["disk_gb"]),
        boot=row["boot"],
        accelerator=row["accelerator"],
        levels=int(row["levels"]),
    )


@cache
def gcp_images() -> tuple[GcpImage, ...]:
    """Return all rows. Raises BadCatalogFile."""
    return tuple(
        GcpImage(row["kind"], row["arch"], row["fabric"], row["os"], row["project"], row["family"])
        for row in read_rows(SHIPPED / "images-gcp.csv")
    )


def gcp_image(each: InstanceType, fabric: str) -> GcpImage | None:
    """The image a type boots when the file names none; None when there is none for what it carries."""
    kind = each.gpu.vendor if each.gpu is not None else "cpu"
    for row in gcp_images():
        if (row.kind, row.arch) == (kind, each.arch) and row.fabric in ("", fabric):
            return row
    return None


@cache
def _software() -> tuple[Software, ...]:
    return tuple(
        Software(row["fabric"], row["part"], row["types"], row["image"], row["version"])
        for row in read_rows(SHIPPED / "software-gcp.csv")
    )


def software(fabric: str, instance_type: str) -> Mapping[str, Software]:
    """Return the software that a type starts with on a fabric, by part. Raises BadCatalogFile."""
    versions: dict[str, Software] = {}
    for row in _software():
        if row.fabric == fabric and fnmatchcase(instance_type, row.types):
            versions.setdefault(row.part, row)
    return versions


@cache
def gcp_quotas() -> tuple[GcpQuota, ...]:
    """Return all rows in file order. Raises BadCatalogFile."""
    return tuple(
        GcpQuota(row["pattern"], row["market"], row["unit"], row["metric"], row["name"])
        for row in read_rows(SHIPPED / "quotas-gcp.csv")
    )


def type_quota(instance_type: str, market: Market) -> GcpQuota | None:
    """The quota that a type's GPUs or CPUs count against; None when it is not known."""
    for row in gcp_quotas():
        if row.market == market and fnmatchcase(instance_type, row.pattern):
            return row
    return None


def network_quota() -> GcpQuota:
    return next(row for row in gcp_quotas() if row.unit == "network")


@cache
def gcp_codes() -> Mapping[str, CodeRow]:
    """Return the cloud's error codes and their meanings, by code. Raises BadCatalogFile."""
    return {
        row["code"]: CodeRow(row["code"], row["kind"], row["hint"] or None)
        for row in read_rows(SHIPPED / "errors-gcp.csv")
    }
