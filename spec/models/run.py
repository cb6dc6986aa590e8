"""What tasks, dev environments and profiles have in common: where, when and how long a run goes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.grammar.characters import check_container_user, check_program
from orch.spec.grammar.hosts import check_host
from orch.spec.grammar.values import Problem, shown
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.parsing import Reads
from orch.spec.models.fields.sizes import MAX_NODES
from orch.spec.models.fields.types import (
    AutoFlag,
    Commands,
    Env,
    Flag,
    Image,
    Name,
    Names,
    Tags,
    Text,
    absolute,
    checked,
    choice,
    duration,
    names_of,
    rows,
    switch,
    text,
    whole,
)
from orch.spec.models.mounts import FileMount, OutputPath, PortMapping, RegistryAuth, Repo, VolumeMount
from orch.spec.models.resources import Resources
from orch.spec.models.retry import Retry
from orch.spec.models.scheduling import Checkpoint, InstanceRef, Schedule, Signal, UtilizationPolicy
from orch.spec.models.selection import Backends, Choosing
from orch.spec.suggest import listed

STOP_S = 300
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


def _python(value: object) -> str:
    version = text(value)
    if version in PYTHONS:
        return version
    raise Problem(
        "ORCH111", f"{shown(version)} is not a Python of the default image", hint=f"use {listed(PYTHONS)}"
    )


class Terms(Choosing):
    """Where a run may go, when, and for how long. A value here narrows the fleet's."""

    backends: Backends = Field(default=(), description="Backends it may use; the fleet's if not given.")
    resources: Resources = Field(default=Resources(), description="What each node must have.")
    fleets: Names = Field(
        default=(),
        description="Fleets that may run it, or their partitions; all if not given. The best that fits is "
        "taken: idle nodes first, then the price.",
    )
    instances: Annotated[tuple[InstanceRef, ...], rows("nodes")] = Field(
        default=(), description="Nodes that may run it."
    )
    exclude_nodes: Annotated[tuple[str, ...], names_of("nodes", check_host)] = Field(
        default=(), description="Nodes it must not use; names may be folded."
    )
    tags: Tags = Field(default={}, description="Tags of the run.")
    idle_duration_s: Annotated[int | None, duration()] = Field(
        default=None,
        validation_alias="idle_duration",
        description="Of nodes above the minimum that are made for it, when shorter than the fleet's.",
    )
    creation_policy: Annotated[Literal["reuse", "reuse-or-create"], choice("reuse", "reuse-or-create")] = (
        Field(default="reuse-or-create", description="`reuse`: existing nodes only.")
    )
    priority: Annotated[int, whole(0, 100)] = Field(default=0, description="Higher runs first.")
    preempt: Annotated[Literal["never", "requeue", "cancel"], choice("never", "requeue", "cancel")] = Field(
        default="never", description="What a run of higher priority may do to this one."
    )
    retry: Annotated[Retry | None, switch(Retry)] = Field(
        default=None, description="Start again after a failure; `true`: after all, for an hour."
    )
    max_duration_s: Annotated[int | None, duration(low=1)] = Field(
        default=None, validation_alias="max_duration", description="Longest running time."
    )
    stop_duration_s: Annotated[int | None, duration(STOP_S)] = Field(
        default=STOP_S,
        validation_alias="stop_duration",
        description="From the polite signal to the kill; `off`: never killed.",
    )
    signal: Signal | None = Field(default=None, description="A signal ahead of the end: `USR1@300`.")
    checkpoint: Checkpoint | None = Field(default=None, description="Where the run keeps its state.")
    startup_order: Annotated[
        Literal["any", "master-first", "workers-first"], choice("any", "master-first", "workers-first")
    ] = Field(default="any", description="Whose commands start first.")
    stop_criteria: Annotated[Literal["all-done", "master-done"], choice("all-done", "master-done")] = Field(
        default="all-done", description="`master-done`: the end of rank 0 stops the others."
    )
    utilization_policy: UtilizationPolicy | None = Field(
        default=None, description="End a run that leaves its GPUs idle."
    )
    schedule: Schedule | None = Field(default=None, description="Start it at these times.")
    singleton: Flag = Field(default=False, description="One active run of this name; others wait.")
    ntasks_per_node: Annotated[int, whole(1, 4096)] = Field(
        default=1, description="Start `commands` this often on each node."
    )
    slurm_env: AutoFlag = Field(
        default="auto", description="Set SLURM_* variables; `auto`: when the text mentions them."
    )


class Run(Terms):
    """A container on one node or several."""

    name: Name | None = Field(
        default=None, description="Name of the run; the file's name and four characters if not given."
    )
    image: Image | None = Field(
        default=None,
        description="Container image; the fleet's, else the project's, else a default image if not given.",
    )
    python: Annotated[
        Literal["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"] | None,
        Reads(
            _python, json_schema.either(" ".join(PYTHONS), {"type": "number"}, json_schema.words(*PYTHONS))
        ),
    ] = Field(default=None, description="Python version of the default image.")
    nvcc: Flag = Field(default=False, description="The default image with the CUDA compiler.")
    docker: Flag = Field(default=False, description="The default image with Docker; implies `privileged`.")
    shell: Annotated[str, checked(check_program)] | None = Field(
        default=None, description="`sh`, `bash` or a path; bash, with an image of your own sh."
    )
    user: Annotated[str, checked(check_container_user)] | None = Field(
        default=None, description="`user[:group]` in the container."
    )
    privileged: Flag = Field(default=False, description="Run the container privileged.")
    working_dir: Annotated[str | None, absolute("`working_dir`")] = Field(
        default=None, description="Directory commands start in."
    )
    registry_auth: RegistryAuth | None = Field(default=None, description="Log-in for `image`.")
    env: Env = Field(default={}, description="Variables; one without a value is taken from your environment.")
    repos: Annotated[tuple[Repo, ...], rows("repos")] = Field(
        default=(), description="At most one Git repository."
    )
    single_branch: Flag | None = Field(
        default=None, description="Of `repos`: fetch this branch alone; dstack's place for it."
    )
    files: Annotated[tuple[FileMount, ...], rows("files")] = Field(
        default=(), description="Copied into every job."
    )
    outputs: Annotated[tuple[OutputPath, ...], rows("paths")] = Field(
        default=(), description="Collected from every job when it ends, also when it failed."
    )
    volumes: Annotated[tuple[VolumeMount, ...], rows("volumes")] = Field(
        default=(), description="Volumes and folders of the node to mount."
    )
    ports: Annotated[tuple[PortMapping, ...], rows("ports")] = Field(
        default=(), description="Forwarded to this machine while attached."
    )
    nodes: Annotated[int, whole(1, MAX_NODES)] = Field(
        default=1, description="Nodes; 2 and more make it distributed."
    )


class DevEnvironment(Run):
    """A container, or a small cluster of them, held until you stop it."""

    noun: ClassVar[str] = "a dev environment"

    type: Literal["dev-environment"] = Field(default="dev-environment", description="`dev-environment`.")
    ide: Annotated[
        Literal["vscode", "cursor", "windsurf", "zed"] | None, choice("vscode", "cursor", "windsurf", "zed")
    ] = Field(default=None, description="A desktop link is printed for it; SSH works without.")
    version: Text | None = Field(default=None, description="Of the IDE; `version@commit` for windsurf.")
    init: Commands = Field(default=(), description="Commands at the start.")
    inactivity_duration_s: Annotated[int | None, duration(low=1)] = Field(
        default=None,
        validation_alias="inactivity_duration",
        description="Stop when nobody was connected for this long.",
    )
