"""`type: task`: commands, or a launcher, on one node or many."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field

from orch.spec import values
from orch.spec.values import Problem, shown

from .base import Section
from .fields import (
    AnyText,
    Commands,
    Env,
    Flag,
    Name,
    Names,
    Text,
    absolute,
    check_absolute,
    choice,
    duration,
    text,
    whole,
)
from .launchers import Mpirun, Torchrun
from .resources import Resources

STOP_S = 300


class FileMount(Section):
    """A file or folder copied into every job. `local_path` starts at the document's folder, `path` at the
    working directory.
    """

    noun: ClassVar[str] = "an entry of `files`"

    local_path: Text = Field(description="On this machine; `~` is your home.")
    path: Text = Field(default="", description="In the container; the same as `local_path` if not given.")

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, str):
            local, colon, path = data.partition(":")
            if not local.strip() or (colon and not path.strip()):
                raise Problem(
                    "ORCH129", f"{shown(data)} lacks a path", hint="write `local` or `local:destination`"
                )
            if ":" in path:
                raise Problem(
                    "ORCH129", f"{shown(data)} has two colons", hint="write `{local_path: …, path: …}`"
                )
            return {"local_path": local, "path": path or local}
        written = cast("dict[str, object]", data) if isinstance(data, dict) else {}
        if written.get("path") is None and isinstance(written.get("local_path"), str):
            return {**written, "path": written["local_path"]}
        return cast(object, data)

    @classmethod
    def form(cls) -> str:
        return "write `local` or `local:destination`"


class InstanceVolume(Section):
    """A folder of the node, mounted into the job. `optional`: run without it where the node has none."""

    noun: ClassVar[str] = "a volume"

    instance_path: Annotated[str, absolute("`instance_path`")] = Field(description="Folder of the node.")
    path: Annotated[str, absolute()] = Field(description="In the container.")
    optional: Flag = Field(default=False, description="Run without it where the node has none.")
    read_only: Flag = Field(default=False, description="Mount it read-only.")

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, str):
            host, colon, path = data.partition(":")
            if not colon or not path or ":" in path:
                raise Problem(
                    "ORCH129", f"{shown(data)} is not a volume", hint="write `/folder/of/node:/path`"
                )
            if "/" not in host:
                raise _network_volume()
            return {
                "instance_path": check_absolute(host, "the path on the node"),
                "path": check_absolute(path),
            }
        if isinstance(data, dict) and "name" in data:
            raise _network_volume()
        return cast(object, data)

    @classmethod
    def form(cls) -> str:
        return "write `/folder/of/node:/path`"


def _network_volume() -> Problem:
    return Problem(
        "ORCH118",
        "volumes by name are not supported by this version",
        hint="mount a folder of the node: `/folder/of/node:/path`",
    )


def _slurm_env(value: object) -> bool | str:
    written = text(value).lower()
    if written == "auto":
        return "auto"
    try:
        return values.parse_bool(written)
    except Problem:
        raise Problem("ORCH111", f"{shown(written)} is not `auto`, `true` or `false`") from None


def _rows(what: str) -> BeforeValidator:
    def read(value: object) -> object:
        if isinstance(value, (list, tuple)):
            return value  # pyright: ignore[reportUnknownVariableType]
        written = f"`- {value}`" if isinstance(value, str) and len(value) < 50 else "`- …`"
        raise Problem(
            "ORCH112", f"a list of {what} is expected", hint=f"begin a line below it with a dash: {written}"
        )

    return BeforeValidator(read)


class Task(Section):
    """What runs, where, and how long."""

    noun: ClassVar[str] = "a task"

    type: Literal["task"] = Field(default="task", description="`task`.")
    name: Name | None = Field(
        default=None, description="Name of the run; the file's name and four characters if not given."
    )
    commands: Commands = Field(
        default=(), description="Run one after the other; set-up steps before a launcher."
    )
    image: Text | None = Field(
        default=None, description="Container image; the fleet's, else the project's, if not given."
    )
    entrypoint: AnyText | None = Field(default=None, description="Instead of the image's entrypoint.")
    shell: Text | None = Field(
        default=None, description="`sh`, `bash` or a path; bash, with an image of your own sh."
    )
    user: Text | None = Field(default=None, description="`user[:group]` in the container.")
    privileged: Flag = Field(default=False, description="Run the container privileged.")
    working_dir: Annotated[str | None, absolute("`working_dir`")] = Field(
        default=None, description="Directory commands start in."
    )
    env: Env = Field(default={}, description="Variables; one without a value is taken from your environment.")
    files: Annotated[tuple[FileMount, ...], _rows("files")] = Field(
        default=(), description="Copied into every job."
    )
    volumes: Annotated[tuple[InstanceVolume, ...], _rows("volumes")] = Field(
        default=(), description="Folders of the node to mount."
    )
    nodes: Annotated[int, whole(1, 100_000)] = Field(
        default=1, description="Nodes; 2 and more make it distributed."
    )
    torchrun: Torchrun | None = Field(default=None, description="Start with torchrun on every node.")
    mpirun: Mpirun | None = Field(default=None, description="Start with mpirun over all nodes.")
    resources: Resources = Field(default=Resources(), description="What each node must have.")
    fleets: Names = Field(default=(), description="Fleets that may run it; any that fits if not given.")
    startup_order: Annotated[
        Literal["any", "master-first", "workers-first"], choice("any", "master-first", "workers-first")
    ] = Field(default="any", description="Whose commands start first.")
    stop_criteria: Annotated[Literal["all-done", "master-done"], choice("all-done", "master-done")] = Field(
        default="all-done", description="`master-done`: the end of rank 0 stops the others."
    )
    max_duration_s: Annotated[int | None, duration()] = Field(
        default=None, validation_alias="max_duration", description="Longest running time."
    )
    stop_duration_s: Annotated[int, duration(STOP_S, never=False)] = Field(
        default=STOP_S, validation_alias="stop_duration", description="From the polite signal to the kill."
    )
    priority: Annotated[int, whole(0, 100)] = Field(default=0, description="Higher runs first.")
    slurm_env: Annotated[Literal["auto"] | bool, BeforeValidator(_slurm_env)] = Field(
        default="auto", description="Set SLURM_* variables; `auto`: when the text mentions them."
    )
    ntasks_per_node: Annotated[int, whole(1, 4096)] = Field(
        default=1, description="Start `commands` this often on each node."
    )
