"""The startup script of a Crusoe VM: a cloud-config as a shell script. Pure.

Crusoe has no user data for cloud-init, but a script that root runs at each boot: ASCII, below 64 kB. It does
its work once, and again when it is another one or was cut short.
Source: docs.crusoecloud.com, Lifecycle scripts.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import shlex
import tarfile
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

import yaml

from orch.templates import ShellText, render

MOST = 64_000
"""Bytes that a script may have: below 64 kB."""


def startup_script(config: str) -> str:
    """The script that makes of a VM what cloud-init would make of it by this cloud-config, as
    `components/cloud/machines/cloudinit.py` writes it. The same text gives the same script."""
    data: dict[str, Any] = yaml.load(config, yaml.CSafeLoader)
    payload = b64encode(gzip.compress(_tar(_files(data)), mtime=0)).decode()
    users = [each for each in data["users"] if isinstance(each, dict) and each["name"] != "root"]
    return render(
        "crusoe-startup.sh.j2",
        mark=hashlib.sha256(config.encode()).hexdigest()[:16],
        hostname=data.get("hostname"),
        users=[(each["name"], each.get("shell") or "/bin/bash") for each in users],
        commands=[ShellText(_words(each)) for each in (*data.get("bootcmd", ()), *data.get("runcmd", ()))],
        payload=ShellText("\n".join(wrap(payload, 76))),
    )


def _files(data: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Path, mode and content of all files."""
    keys = data.get("ssh_keys") or {}
    if keys:
        yield "etc/ssh/ssh_host_ed25519_key", 0o600, str(keys["ed25519_private"])
        yield "etc/ssh/ssh_host_ed25519_key.pub", 0o644, f"{str(keys['ed25519_public']).strip()}\n"
    for user in data["users"]:
        if isinstance(user, Mapping):
            home = "root" if user["name"] == "root" else f"home/{user['name']}"
            lines = "".join(f"{str(key).strip()}\n" for key in user.get("ssh_authorized_keys") or ())
            yield f"{home}/.ssh/authorized_keys", 0o600, lines
    for file in data["write_files"]:
        yield str(file["path"]).lstrip("/"), _mode(file["permissions"]), str(file["content"])


def _mode(written: object) -> int:
    """YAML reads a mode without quotes as the number that it is."""
    return written if isinstance(written, int) else int(str(written), 8)


def _tar(files: Iterator[tuple[str, int, str]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, mode, content in files:
            data = content.encode()
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _words(command: str | Sequence[str]) -> str:
    return command if isinstance(command, str) else shlex.join(command)
