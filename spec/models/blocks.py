"""Blocks of a fleet: network, host scripts, shared file systems, local disks, health, money, partitions."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar import hosts
from orch.spec.grammar.values import Problem
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section, plain
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Reads, read_as
from orch.spec.models.fields.types import (
    AutoFlag,
    Block,
    Env,
    Flag,
    LocalPath,
    Money,
    Name,
    Names,
    Size,
    Text,
    User,
    choice,
    duration,
    mounted,
    names_of,
    switch,
    text,
    whole,
)
from orch.spec.models.ssh import Jumps

Cidrs = Annotated[tuple[str, ...], names_of("networks", hosts.parse_network)]


def _subnets(value: object) -> object:
    if isinstance(value, dict):
        return {
            region: names_of("subnets").read([given] if isinstance(given, str) else given)
            for region, given in cast("dict[str, object]", value).items()
        }
    return names_of("subnets").read(value)


class Network(Section):
    """Given pieces are used and never changed; missing ones are made with the fleet."""

    noun: ClassVar[str] = "`network`"

    vpc: Text | None = Field(default=None, description="An existing network, by id or name.")
    subnets: Annotated[
        tuple[str, ...] | dict[str, tuple[str, ...]],
        Reads(
            _subnets, json_schema.either("list, or {region: list}", json_schema.TEXTS, json_schema.SETTINGS)
        ),
    ] = Field(default=(), description="Existing subnets.")
    security_groups: Names = Field(default=(), description="Existing security groups.")
    ssh_cidrs: Cidrs | None = Field(
        default=None, description="Networks that may reach SSH; the backend's, else none."
    )
    public_ips: AutoFlag = Field(
        default="auto", description="`auto`: private where an instance has several interfaces."
    )
    proxy_jump: Jumps | None = Field(default=None, description="Way to private nodes: one hop, or a list.")
    bastion: AutoFlag = Field(
        default="auto", description="A small machine to jump over; `auto`: for private nodes without a hop."
    )
    interconnect: Annotated[
        Literal["auto", "required", "ethernet"], choice("auto", "required", "ethernet")
    ] = Field(default="auto", description="`required`: an error where there is no fast one.")
    extra_vpcs: Names = Field(default=(), description="GCP: networks of the further interfaces.")
    roce_vpcs: Names = Field(default=(), description="GCP: network of the RDMA interfaces.")
    fabric: Text | None = Field(default=None, description="InfiniBand fabric (Nebius) or network (Crusoe).")
    name: Name | None = Field(
        default=None, description="Fleets that name the same share the networks made for it."
    )


class InitStep(Section):
    """A script run on each host. It runs again only when its text or variables change."""

    noun: ClassVar[str] = "a step of `init`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.TEXT,)

    name: Text | None = Field(default=None, description="What progress calls it.")
    run: Block | None = Field(default=None, description="Commands; either these or `file`.")
    file: LocalPath | None = Field(default=None, description="A script beside the document.")
    env: Env = Field(default={}, description="Its variables.")
    when: Annotated[Literal["change", "create", "boot"], choice("change", "create", "boot")] = Field(
        default="change", description="When it runs again."
    )
    timeout_s: Annotated[int, duration(600, never=False, low=1)] = Field(
        default=600, validation_alias="timeout", description="Longest time; a failure keeps the node out."
    )
    user: User = Field(default="root", description="Who runs it.")

    @classmethod
    def expand(cls, data: object) -> object:
        return {"run": data} if isinstance(data, str) else data

    @classmethod
    def form(cls) -> str:
        return "write a command, or a mapping with `run` or `file`"


class Create(Section):
    """A shared file system made with the fleet."""

    noun: ClassVar[str] = "`create`"

    size_mib: Size | None = Field(
        default=None,
        validation_alias="size",
        description="Its size: 1200GB of FSx, 1TB of Filestore if not given.",
    )
    throughput: Annotated[int | None, whole(1)] = Field(
        default=None, description="EFS: MiB/s. FSx: MB/s per TiB, 125 if not given."
    )

    @classmethod
    def form(cls) -> str:
        return "write `true`, or `{size: 1.2TB}`"


class Mount(Section):
    """A shared file system, mounted on all hosts."""

    noun: ClassVar[str] = "a mount"

    type: Annotated[
        Literal["nfs", "efs", "fsx-lustre", "filestore", "lambda-filesystem", "lustre", "host"],
        choice("nfs", "efs", "fsx-lustre", "filestore", "lambda-filesystem", "lustre", "host"),
    ] = Field(description="Its kind.")
    path: Annotated[str, mounted()] = Field(description="Where it is mounted.")
    id: Text | None = Field(
        default=None, description="An existing one, by its cloud's id; Lambda's also by name."
    )
    source: Text | None = Field(default=None, description="An existing one, as `server:/export`.")
    create: Annotated[Create | None, switch(Create)] = Field(default=None, description="A new one.")
    options: Text | None = Field(default=None, description="Options of mount(8).")
    read_only: Flag = Field(default=False, description="Mount it read-only.")
    optional: Flag = Field(default=False, description="A failure to mount it does not keep the node out.")
    in_jobs: Flag = Field(default=True, description="The same path in every container.")

    @property
    def cloud(self) -> str | None:
        """The backend whose machines alone reach it; None: any may."""
        clouds = {"efs": "aws", "fsx-lustre": "aws", "filestore": "gcp", "lambda-filesystem": "lambda"}
        return clouds.get(self.type)

    @classmethod
    def form(cls) -> str:
        return "write `{type: nfs, source: server:/export, path: /shared}`"


def _raid(value: object) -> int:
    if text(value) != "0":
        raise Problem("ORCH111", "only RAID 0 is offered: scratch holds nothing that lasts", hint="write `0`")
    return 0


class Scratch(Section):
    """Where jobs get folders of their own, `ORCH_SCRATCH`: on clouds the local NVMe disks as one file system,
    elsewhere a folder that is there.
    """

    noun: ClassVar[str] = "`scratch`"

    path: Annotated[str, mounted()] = Field(default="/scratch", description="Where it is mounted.")
    raid: Annotated[Literal[0], Reads(_raid, json_schema.number(0, 0))] = Field(
        default=0, description="Level; striping only."
    )
    fs: Annotated[Literal["xfs", "ext4"], choice("xfs", "ext4")] = Field(
        default="xfs", description="File system."
    )
    clean: Annotated[Literal["job", "never"], choice("job", "never")] = Field(
        default="job", description="`job`: a job's folder is removed with the job."
    )
    required: Flag = Field(default=False, description="Give a node without it no jobs.")

    @classmethod
    def form(cls) -> str:
        return "write `true`, `false`, `auto` or `{path: /scratch}`"


def _scratch(value: object) -> object:
    return read_as(Scratch, cast(object, value)) if isinstance(value, (dict, Scratch)) else _auto(value)


_auto = next(mark.read for mark in AutoFlag.__metadata__ if isinstance(mark, Reads))  # type: ignore[attr-defined]
ScratchSetting = Annotated[
    Scratch | Literal["auto"] | bool, Reads(_scratch, json_schema.AUTO_FLAG, beside=True, write=plain)
]


class Health(Section):
    """What a node must pass before it takes jobs, and what is watched afterwards."""

    noun: ClassVar[str] = "`health`"

    gate: Annotated[Literal["light", "none", "dcgm", "nccl"], choice("light", "none", "dcgm", "nccl")] = (
        Field(default="light", description="`dcgm` adds diagnostics, `nccl` a bandwidth test.")
    )
    interval_s: Annotated[int, duration(60, never=False, low=1)] = Field(
        default=60, validation_alias="interval", description="Between looks at a running node."
    )
    min_busbw: Annotated[int | None, whole(1)] = Field(
        default=None, description="GB/s that the bandwidth test must reach; by type if not given."
    )
    auto_replace: Flag = Field(default=False, description="Replace a node that fails.")
    max_replacements: Annotated[int, whole(0, 1000)] = Field(
        default=2, description="Replacements before it stays as it is."
    )


class Budget(Section):
    """US dollars."""

    noun: ClassVar[str] = "`budget`"

    hourly: Money | None = Field(default=None, description="Of all nodes at most; checked in the plan.")
    total: Money | None = Field(
        default=None,
        description="Of all its nodes ever cost: once spent, none is added; warns at 80%.",
    )

    @classmethod
    def form(cls) -> str:
        return "write `{hourly: 100}`"


class Partition(Section):
    """A Slurm name for the fleet, usable wherever a fleet's name is."""

    noun: ClassVar[str] = "a partition"
    short: ClassVar[tuple[Form, ...]] = (json_schema.TEXT,)

    name: Text = Field(description="Its name.")
    max_duration_s: Annotated[int | None, duration()] = Field(
        default=None, validation_alias="max_duration", description="Longest run."
    )
    priority: Annotated[int, whole(0, 100)] = Field(default=0, description="Of runs that name none.")
    default: Flag = Field(default=False, description="Taken by runs that name no fleet.")

    @classmethod
    def expand(cls, data: object) -> object:
        return {"name": data} if isinstance(data, str) else data

    @classmethod
    def form(cls) -> str:
        return "write a name, or `{name: gpu, max_duration: 1d}`"
