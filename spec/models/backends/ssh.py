"""Settings of the backend `ssh`: Defaults of every `ssh_config`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.fields.types import LocalPath, User, choice, duration, whole
from orch.spec.models.ssh import Jumps, PortNumber


class SshSettings(BackendSettings):
    """Defaults of every `ssh_config`."""

    noun: ClassVar[str] = "the backend `ssh`"
    title: ClassVar[str] = "SSH"
    supports: ClassVar[frozenset[str]] = frozenset({"init", "mounts", "scratch", "tags", "topology"})

    type: Annotated[Literal["ssh", "remote"], choice("ssh", "remote")] = Field(
        default="ssh", description="`ssh`, or its other name `remote`."
    )
    user: User | None = Field(default=None, description="As in `ssh_config`.")
    port: PortNumber | None = Field(default=None, description="As in `ssh_config`.")
    identity_file: LocalPath | None = Field(default=None, description="As in `ssh_config`.")
    proxy_jump: Jumps | None = Field(default=None, description="As in `ssh_config`.")
    known_hosts: Annotated[Literal["accept-new", "strict"] | None, choice("accept-new", "strict")] = Field(
        default=None, description="As in `ssh_config`."
    )
    connect_timeout_s: Annotated[int | None, duration(10, never=False, low=1)] = Field(
        default=None, validation_alias="connect_timeout", description="As in `ssh_config`."
    )
    parallel: Annotated[int | None, whole(1, 1024)] = Field(default=None, description="As in `ssh_config`.")
    preflight: Annotated[Literal["strict", "warn", "off"] | None, choice("strict", "warn", "off")] = Field(
        default=None, description="As in `ssh_config`."
    )
