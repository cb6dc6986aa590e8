"""What a run brings along: files, repositories, volumes, ports, credentials of a registry."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar import values
from orch.spec.grammar.characters import check_word
from orch.spec.grammar.values import Problem, shown
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Reads
from orch.spec.models.fields.types import (
    AnyText,
    FilePath,
    Flag,
    LocalPath,
    Text,
    absolute,
    check_mounted,
    checked,
    choice,
    mounted,
    text,
    whole,
)


class FileMount(Section):
    """A file or folder copied into every job, or what a pattern matches: `data/*.csv`, `src/**/*.py`.
    `local_path` starts at the document's folder, `path` at the working directory. Of a folder, `.orch`,
    `.git` and what `.gitignore`, `.dstackignore` or `.orchignore` name stay behind. Copies belong to the
    job's user; modes are kept, but for the group's.
    """

    noun: ClassVar[str] = "an entry of `files`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.PATH,)

    local_path: LocalPath = Field(description="On this machine; `~` is your home.")
    path: FilePath = Field(default="", description="In the container; the same as `local_path` if not given.")

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


class OutputPath(Section):
    """A file or folder of every job that is collected when the job ends, also when it failed. `to` starts at
    the document's folder; of several ranks each has a folder in it, named after its rank.
    """

    noun: ClassVar[str] = "an entry of `outputs`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.PATH,)

    path: Annotated[str, absolute("an output")] = Field(description="In the container.")
    to: LocalPath | None = Field(
        default=None, description="On this machine; the run's folder, `.orch/runs/RUN/outputs`, if not given."
    )

    @classmethod
    def expand(cls, data: object) -> object:
        return {"path": data} if isinstance(data, str) else data

    @classmethod
    def form(cls) -> str:
        return "write `/path`, or `{path: /path, to: folder}`"


_URL = re.compile(r"((?:https?|ssh|git)://[^/\s]+/[^:\s]+|[\w.-]+@[\w.-]+:[^:\s]+)(?::(\S+))?")


def _remote(url: str) -> str:
    """The URL of a repository. A host that begins with a dash would be an option of ssh."""
    check_word(url)
    host = (url.partition("://")[2] or url).rpartition("@")[2]
    if host.startswith("-"):
        raise Problem(
            "ORCH129", f"{shown(url)} is not a repository", hint="such as `https://host/owner/name`"
        )
    return url


class Repo(Section):
    """A Git repository: a working copy as it is now, with what is not committed yet, or a remote one, cloned
    by your own git. `branch` and `hash` take a commit instead of the working copy as it is.
    """

    noun: ClassVar[str] = "an entry of `repos`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.PATH,)

    local_path: LocalPath | None = Field(default=None, description="A working copy on this machine.")
    url: Annotated[str | None, checked(_remote)] = Field(
        default=None, description="A remote one; either this or `local_path`."
    )
    branch: Text | None = Field(default=None, description="Branch; the remote's own if not given.")
    hash: Text | None = Field(default=None, description="Commit.")
    path: FilePath = Field(
        default=".",
        description="Where it is put, from the working directory; `/workflow` where an image starts in `/`.",
    )
    if_exists: Annotated[Literal["error", "skip"], choice("error", "skip")] = Field(
        default="error", description="When something is there already."
    )
    single_branch: Flag = Field(default=False, description="Fetch this branch alone.")

    @classmethod
    def expand(cls, data: object) -> object:
        if not isinstance(data, str):
            return data
        remote = _URL.fullmatch(data)
        if remote:
            return {"url": remote.group(1), **({"path": remote.group(2)} if remote.group(2) else {})}
        if "://" in data:
            raise Problem(
                "ORCH129", f"{shown(data)} is not a repository", hint="such as `https://host/owner/name`"
            )
        local, colon, path = data.partition(":")
        if not local.strip() or (colon and not path.strip()):
            raise Problem("ORCH129", f"{shown(data)} lacks a path", hint="write `.` or `path:destination`")
        return {"local_path": local, **({"path": path} if path else {})}

    @classmethod
    def form(cls) -> str:
        return "write `.`, a path or the URL of a repository"


def _volume_names(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        return (check_volume_name(text(value)),)
    read: list[str] = []
    for index, item in enumerate(cast("list[object]", value)):
        try:
            read.append(check_volume_name(text(item)))
        except Problem as problem:
            problem.at = (index,)
            raise
    return tuple(read)


def check_volume_name(name: str) -> str:
    """A volume's name; one that holds a reference is checked when it is filled in."""
    return name if "${{" in name else values.check_name(name)


def _written_names(names: object) -> object:
    read = list(cast("tuple[str, ...]", names))
    return read[0] if len(read) == 1 else read


class VolumeMount(Section):
    """A folder of the node (`instance_path`), a volume by name, or a folder that orch keeps for the name on
    each node (`instance: true`).
    """

    noun: ClassVar[str] = "a volume"
    short: ClassVar[tuple[Form, ...]] = (json_schema.pattern("name:/path or /host:/path", r"[^:]+:[^:]+"),)

    names: Annotated[
        tuple[str, ...],
        Reads(
            _volume_names,
            json_schema.either("name or list", json_schema.TEXT, json_schema.TEXTS),
            write=_written_names,
        ),
    ] = Field(default=(), validation_alias="name", description="A volume; of several the first usable one.")
    instance_path: Annotated[str, mounted("`instance_path`")] = Field(
        default="", description="Folder of the node."
    )
    path: Annotated[str, mounted()] = Field(description="In the container.")
    instance: Flag = Field(
        default=False, description="With `name`: a folder on each node instead of a volume."
    )
    optional: Flag = Field(default=False, description="Run without it where the node has none.")
    read_only: Flag = Field(default=False, description="Mount it read-only.")

    @property
    def kind(self) -> Literal["folder", "managed", "network"]:
        """A folder of the node, a folder kept by orch, or a volume."""
        return "folder" if self.instance_path else "managed" if self.instance else "network"

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, str):
            host, colon, path = data.partition(":")
            if not colon or not path or ":" in path or not host.strip():
                raise Problem(
                    "ORCH129",
                    f"{shown(data)} is not a volume",
                    hint="write `name:/path` or `/folder/of/node:/path`",
                )
            if "/" not in host:
                return {"name": [check_volume_name(host)], "path": check_mounted(path)}
            return {
                "instance_path": check_mounted(host, "the path on the node"),
                "path": check_mounted(path),
            }
        written = cast("dict[str, object]", data) if isinstance(data, dict) else None
        if written is not None and "path" in written:
            _check_kind(written)
        return cast(object, data)

    @classmethod
    def form(cls) -> str:
        return "write `name:/path` or `/folder/of/node:/path`"


def _check_kind(written: dict[str, object]) -> None:
    """Raises Problem ORCH158 unless the volume is of exactly one kind."""
    name = written.get("name", written.get("names"))
    if name is None and written.get("instance_path") is None:
        raise Problem(
            "ORCH158",
            "a volume needs `name` or `instance_path`",
            hint="add `name: NAME` or `instance_path: /folder`",
        )
    if name is not None and written.get("instance_path") is not None:
        raise Problem(
            "ORCH158",
            "a volume has either a `name` or an `instance_path`",
            hint="remove one of them",
            at=("instance_path",),
            on_key=True,
        )


class PortMapping(Section):
    """A port of the job, forwarded to this machine while attached."""

    noun: ClassVar[str] = "a port"
    short: ClassVar[tuple[Form, ...]] = (
        json_schema.number(1, 65_535),
        json_schema.pattern("local:job", r"(?:[0-9]{1,5}|\*)\s*:\s*[0-9]{1,5}"),
    )

    local_port: Annotated[int | None, whole(1, 65_535)] = Field(
        default=None, description="On this machine; any free one if not given."
    )
    container_port: Annotated[int, whole(1, 65_535)] = Field(description="In the container.")

    @classmethod
    def expand(cls, data: object) -> object:
        if not isinstance(data, (str, int)):
            return data
        local, colon, job = str(data).partition(":")
        if not colon and re.fullmatch(r"[0-9]+", local.strip()):
            number = str(values.parse_int(local.strip(), low=1, high=65_535))
            return {"local_port": number, "container_port": number}
        if not re.fullmatch(r"[0-9]+|\*", local.strip()) or not re.fullmatch(r"[0-9]+", job.strip()):
            raise Problem(
                "ORCH139", f"{shown(str(data))} is not a port", hint='write `8080`, `80:8080` or `"*:8080"`'
            )
        return {"local_port": None if local.strip() == "*" else local.strip(), "container_port": job.strip()}

    @classmethod
    def form(cls) -> str:
        return 'write `8080`, `80:8080` or `"*:8080"`'

    def plain(self) -> object:
        return f"{self.local_port or '*'}:{self.container_port}"


class RegistryAuth(Section):
    """How to log in to the registry of `image`."""

    noun: ClassVar[str] = "`registry_auth`"

    username: AnyText = Field(description="User; `$oauthtoken` is taken as it stands.")
    password: AnyText = Field(description="Password or token: write a reference, `${{ secrets.NAME }}`.")

    @classmethod
    def form(cls) -> str:
        return "write `{username: …, password: …}`"
