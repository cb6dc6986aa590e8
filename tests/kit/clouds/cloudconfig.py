"""A cloud-config as cloud-init reads it, with keys filled in, and its files as they lie on the machine."""

from __future__ import annotations

import base64
import email
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from orch.components.cloud.machines.cloudinit import filled
from orch.runner.preparation.mounts import CREATED

HOST_KEY = "-----BEGIN-----\nabc\n-----END-----\n"


@dataclass(frozen=True)
class Written:
    content: str
    mode: int


def config(text: str) -> dict[str, Any]:
    """What cloud-init makes of user data, for a node n-0."""
    keys = {"host_key": HOST_KEY, "host_key_public": "ssh-ed25519 AAAA"}
    return yaml.safe_load(filled(text, name="n-0", authorized_key="ssh-ed25519 BBBB me", **keys))


def unwrapped(user_data: str) -> str:
    """The cloud-config in user data that travels as a MIME message of one compressed part."""
    (found,) = [
        gzip.decompress(payload)
        for part in email.message_from_string(user_data).walk()
        if isinstance(payload := part.get_payload(decode=True), bytes) and not part.is_multipart()
    ]
    return found.decode()


def text(config: str) -> str:
    """All that a cloud-config says, with the text of its files."""
    return config + "".join(each.content for each in files(config).values())


def files(text: str) -> dict[str, Written]:
    """Files of a machine, by path, but for the one that is filled in when file systems are there."""
    return {
        each["path"]: Written(_content(each), int(each["permissions"], 8))
        for each in config(text)["write_files"]
        if each["path"] != CREATED
    }


def _content(file: Mapping[str, Any]) -> str:
    if file.get("encoding") == "gz+b64":
        return gzip.decompress(base64.b64decode(file["content"])).decode()
    assert "encoding" not in file
    return file["content"]
