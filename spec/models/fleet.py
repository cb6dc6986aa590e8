"""`type: fleet`: nodes that belong together."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar.characters import check_word
from orch.spec.grammar.hosts import parse_public_key
from orch.spec.grammar.values import Problem, Problems, check_name
from orch.spec.models.blocks import (
    Budget,
    Health,
    InitStep,
    Mount,
    Network,
    Partition,
    Scratch,
    ScratchSetting,
)
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import describe
from orch.spec.models.fields.parsing import Reads
from orch.spec.models.fields.sizes import Blocks, Nodes
from orch.spec.models.fields.types import (
    Env,
    Flag,
    Image,
    Name,
    Tags,
    choice,
    duration,
    rows,
    switch,
    text,
)
from orch.spec.models.resources import Resources
from orch.spec.models.retry import FleetRetry
from orch.spec.models.selection import Backends, Choosing, check_backend
from orch.spec.models.ssh import SshConfig

__all__ = ["DEFAULT_IDLE_S", "Fleet", "Nodes", "Scratch"]

DEFAULT_IDLE_S = 3 * 86_400


def _os_image(value: object) -> object:
    if isinstance(value, dict):
        return {
            check_backend(backend): check_word(text(image))
            for backend, image in cast("dict[str, object]", value).items()
        }
    return check_word(text(value, "text, or `backend: image` lines"))


def _backend_options(value: object) -> tuple[dict[str, object], ...]:
    if not isinstance(value, (list, tuple)):
        raise Problem(
            "ORCH112", "a list of options is expected", hint="begin a line below it with `- type: aws`"
        )
    read: list[dict[str, object]] = []
    for index, item in enumerate(cast("list[object]", value)):
        if not isinstance(item, dict):
            raise Problem("ORCH112", f"options of a backend cannot be {describe(item)}", at=(index,))
        options = cast("dict[str, object]", item)
        if options.get("type") is None:
            raise Problem(
                "ORCH113", "options of a backend need its `type`", hint="add `type: aws`", at=(index,)
            )
        try:
            check_backend(text(options["type"]))
        except Problem as problem:
            problem.at = (index, "type")
            raise
        read.append(options)
    return tuple(read)


def _public_keys(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise Problem("ORCH112", "a list of public keys is expected", hint="begin each with a dash")
    read: list[str] = []
    for index, item in enumerate(cast("list[object]", value)):
        try:
            read.append(parse_public_key(text(item)))
        except Problem as problem:
            problem.at = (index, *problem.at)
            raise
    return tuple(dict.fromkeys(read))


def _fleets(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        return (check_name(text(value, "the name of a fleet, or a list of them,")),)
    read: list[str] = []
    wrong: list[Problem] = []
    for index, item in enumerate(cast("list[object]", value)):
        try:
            read.append(check_name(text(item)))
        except Problem as problem:
            problem.at = (index, *problem.at)
            wrong.append(problem)
    if wrong:
        raise Problems(tuple(wrong))
    return tuple(dict.fromkeys(read))


def _topology(data: dict[str, Any]) -> Literal["any", "rank-ordered"]:
    return "rank-ordered" if data.get("placement") == "cluster" else "any"


def _gang(data: dict[str, Any]) -> Literal["all-or-nothing", "best-effort"]:
    return "all-or-nothing" if data.get("placement") == "cluster" else "best-effort"


class Fleet(Choosing):
    """Nodes created together, or hosts taken together; interconnected when `placement` is `cluster`."""

    noun: ClassVar[str] = "a fleet"

    type: Literal["fleet"] = Field(default="fleet", description="`fleet`.")
    name: Name = Field(
        default="", description="Its identity; the file's name if not given. Renaming replaces the fleet."
    )
    placement: Annotated[Literal["any", "cluster"], choice("any", "cluster")] = Field(
        default="any", description="`cluster`: interconnected nodes, needed by distributed tasks."
    )
    nodes: Nodes | None = Field(
        default=None,
        description="How many nodes: `4`, `0..8`, `{min, target, max, spare}`, 4096 at most; not with "
        "`ssh_config`.",
    )
    ssh_config: SshConfig | None = Field(default=None, description="Existing hosts in place of `nodes`.")
    resources: Resources = Field(default=Resources(), description="What each node must have.")
    backends: Backends = Field(
        default=(),
        description="Where nodes may be created; those of `orch.yml` if not given, else `local`: containers "
        "on this machine.",
    )
    idle_duration_s: Annotated[int | None, duration(DEFAULT_IDLE_S)] = Field(
        default=DEFAULT_IDLE_S,
        validation_alias="idle_duration",
        description="A node above the minimum without a job for this long is terminated.",
    )
    blocks: Blocks = Field(
        default=1, description="Jobs that may share a node; `auto`: its GPUs, else its CPUs."
    )
    retry: Annotated[FleetRetry | None, switch(FleetRetry)] = Field(
        default=None, description="Try again when there is no capacity; `true` for an hour."
    )
    env: Env = Field(default={}, description="Variables given to every job.")
    authorized_keys: Annotated[
        tuple[str, ...], Reads(_public_keys, json_schema.rows(json_schema.TEXT, "public keys"))
    ] = Field(default=(), description="Public SSH keys that may log in on the nodes.")
    tags: Tags = Field(default={}, description="Tags, also of cloud resources.")
    backend_options: Annotated[
        tuple[dict[str, object], ...],
        Reads(_backend_options, json_schema.rows(json_schema.SETTINGS, "list of settings")),
    ] = Field(default=(), description="Read for compatibility.")
    network: Network | None = Field(default=None, description="Your own network; one is made if not given.")
    os_image: Annotated[
        str | dict[str, str] | None,
        Reads(
            _os_image, json_schema.either("text, or {backend: image}", json_schema.TEXT, json_schema.SETTINGS)
        ),
    ] = Field(default=None, description="Machine image; a tested one, pinned in `orch.lock`, if not given.")
    image: Image | None = Field(default=None, description="Container image of jobs that name none.")
    init: Annotated[tuple[InitStep, ...], rows("steps")] = Field(
        default=(), description="Scripts run on each host."
    )
    mounts: Annotated[tuple[Mount, ...], rows("mounts")] = Field(
        default=(), description="Shared file systems."
    )
    scratch: ScratchSetting = Field(
        default="auto", description="Local NVMe disks; `auto`: where an instance has them."
    )
    health: Health = Field(default=Health(), description="Checks of nodes.")
    topology: Annotated[Literal["any", "rank-ordered"], choice("any", "rank-ordered")] = Field(
        default_factory=_topology,
        description="Ranks by network distance; `rank-ordered` in a cluster, else `any`.",
    )
    gang: Annotated[Literal["all-or-nothing", "best-effort"], choice("all-or-nothing", "best-effort")] = (
        Field(
            default_factory=_gang,
            description="What a launch with too few nodes leaves; `all-or-nothing` in a cluster, else "
            "`best-effort`.",
        )
    )
    ttl_s: Annotated[int | None, duration()] = Field(
        default=None, validation_alias="ttl", description="Delete the fleet this long after its creation."
    )
    budget: Budget | None = Field(default=None, description="Bounds of cost.")
    protect: Flag = Field(default=False, description="Refuse to delete or replace the fleet.")
    depends_on: Annotated[
        tuple[str, ...],
        Reads(_fleets, json_schema.either("name, or a list of names", json_schema.NAME, json_schema.TEXTS)),
    ] = Field(default=(), description="Fleets that are brought up before it, and removed after it.")
    partitions: Annotated[tuple[Partition, ...], rows("partitions")] = Field(
        default=(), description="Slurm partition names of the fleet."
    )

    @property
    def written_backends(self) -> tuple[str, ...] | None:
        """The backends that the file names, None where it names none."""
        return self.backends if "backends" in self.model_fields_set else None

    @classmethod
    def expand(cls, data: object) -> object:
        """A plain `nodes: N` beside a written `idle_duration` may shrink to nothing when idle."""
        if isinstance(data, dict):
            written = cast("dict[str, object]", data)
            nodes, idle = written.get("nodes"), written.get("idle_duration", written.get("idle_duration_s"))
            plain = isinstance(nodes, int) or (isinstance(nodes, str) and nodes.isascii() and nodes.isdigit())
            if idle is not None and plain and not isinstance(nodes, bool):
                return {**written, "nodes": {"min": "0", "target": nodes, "max": nodes}}
        return cast(object, data)
