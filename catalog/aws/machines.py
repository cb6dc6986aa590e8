"""What EC2 types carry beside CPUs and GPUs, the quotas they count against, and the images they boot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal

from orch.catalog.errors import BadCatalogFile
from orch.catalog.load import AWS_TYPES, SHIPPED, read_rows
from orch.catalog.records import InstanceType

Market = Literal["on-demand", "spot"]


@dataclass(frozen=True)
class Nics:
    """One type. `cards` is 0 where their layout is not known; `per_card`: interfaces that a card holds, None
    when not known (more than one).

    `efa_device` is the device index of an EFA-only interface on the cards after the first. `levels`: how many
    levels of the network the cloud tells of, 0 for none. `disk_gb` is of one disk, of all where they were not
    `counted`.
    """

    type: str
    cards: int
    per_card: int | None
    efa: int
    gbps: int
    efa_device: int
    cluster: bool
    disks: int
    disk_gb: int
    levels: int
    counted: bool = True

    @property
    def fast(self) -> bool:
        """Return True if it has EFA, on cards that are known."""
        return self.efa > 0 and self.cards > 0


@dataclass(frozen=True)
class QuotaRow:
    """A quota: `unit` is vcpu, address or interface."""

    service: str
    pattern: str
    market: str
    code: str
    unit: str
    name: str


@dataclass(frozen=True)
class ImageRow:
    """The image of nodes that name none. `carries`: what need not be installed."""

    kind: str
    arch: str
    user: str
    carries: frozenset[str]
    parameter: str


def nics() -> Mapping[str, Nics]:
    """Return all types, by name. Raises BadCatalogFile."""
    return _nics()


@cache
def _nics() -> Mapping[str, Nics]:
    path = AWS_TYPES
    nics: dict[str, Nics] = {}
    try:
        for row in read_rows(path):
            nics[row["type"]] = Nics(
                type=row["type"],
                cards=int(row["cards"] or 0),
                per_card=int(row["per_card"]) if row["per_card"] else None,
                efa=int(row["efa"] or 0),
                gbps=int(row["gbps"] or 0),
                # Cards after the first take their interface at index 1: as those of the types kept by hand.
                efa_device=1,
                cluster=row["cluster"] == "yes",
                disks=1 if row["disks_gb"] else 0,
                disk_gb=int(row["disks_gb"] or 0),
                levels=int(row["levels"] or 0),
                counted=False,
            )
        path = SHIPPED / "nics-aws.csv"
        for row in read_rows(path):
            nics[row["type"]] = Nics(
                type=row["type"],
                cards=int(row["cards"]),
                per_card=int(row["per_card"]) if row["per_card"] else None,
                efa=int(row["efa"]),
                gbps=int(row["gbps"]),
                efa_device=int(row["efa_device"]),
                cluster=row["cluster"] == "yes",
                disks=int(row["disks"]),
                disk_gb=int(row["disk_gb"]),
                levels=int(row["levels"]),
            )
    except (KeyError, ValueError, TypeError) as error:
        raise BadCatalogFile(
            "a file of the catalogue does not read", where=str(path), detail=str(error)
        ) from error
    return nics


@cache
def quotas() -> tuple[QuotaRow, ...]:
    """Return all rows in file order. Raises BadCatalogFile."""
    return tuple(
        QuotaRow(row["service"], row["pattern"], row["market"], row["code"], row["unit"], row["name"])
        for row in read_rows(SHIPPED / "quotas-aws.csv")
    )


def vcpu_quota(instance_type: str, market: Market) -> QuotaRow | None:
    """The quota that a type's vCPUs count against; None when it is not known."""
    for row in quotas():
        if row.unit == "vcpu" and row.market == market and fnmatchcase(instance_type, row.pattern):
            return row
    return None


def unit_quota(unit: Literal["address", "interface"]) -> QuotaRow:
    """The quota of Elastic IPs, or of network interfaces."""
    return next(row for row in quotas() if row.unit == unit)


@cache
def images() -> tuple[ImageRow, ...]:
    """Return all rows. Raises BadCatalogFile."""
    return tuple(
        ImageRow(row["kind"], row["arch"], row["user"], frozenset(row["carries"].split()), row["parameter"])
        for row in read_rows(SHIPPED / "images-aws.csv")
    )


def image_kind(each: InstanceType) -> str:
    """`cpu`, or the vendor of what the type carries: `nvidia`, `aws` (Trainium)."""
    return each.gpu.vendor if each.gpu is not None else "cpu"


def default_image(each: InstanceType) -> ImageRow | None:
    """The image a type boots when the file names none; None when there is none for what it carries."""
    kind = image_kind(each)
    return next((row for row in images() if (row.kind, row.arch) == (kind, each.arch)), None)
