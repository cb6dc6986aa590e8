"""Host keys that this user's files of known hosts tell, and those that they ban.

A ban holds however a key came to be known: given, pinned in a state, accepted.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Literal

from orch.runner.errors import BadSshConfig, HostKeyRefused
from orch.runner.ssh.endpoint import SshEndpoint, fingerprint
from orch.runner.ssh.user_config import KNOWN_HOSTS, UserConfig

KeySource = Literal["given", "pinned", "known_hosts", "accepted", "scanned"]
_BEST_FIRST = ("ssh-ed25519", "ecdsa-sha2-", "rsa-sha2-", "ssh-rsa")


@dataclass(frozen=True)
class HostKey:
    """The public key of a host, `ssh-ed25519 AAAA…`, and how it came to be known."""

    public: str
    source: KeySource

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)


class KnownHosts:
    """Files in the form of known_hosts, read once. A file that is missing or unreadable holds nothing."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    def lookup(self, name: str) -> HostKey | None:
        """The best key of a server by its name in such files (`host`, `[host]:port`), or None."""
        keys = [key for marker, names, key in self._entries if not marker and _matches(names, name)]
        usable_keys = [key for key in keys if not self.revoked(key)]
        usable_keys.sort(key=_rank)
        return HostKey(usable_keys[0], "known_hosts") if usable_keys else None

    def revoked(self, public: str) -> bool:
        """Whether some `@revoked` line bans this key."""
        return " ".join(public.split()[:2]) in self._banned

    @cached_property
    def _banned(self) -> frozenset[str]:
        return frozenset(key for marker, _, key in self._entries if marker == "@revoked")

    @cached_property
    def _entries(self) -> tuple[tuple[str, str, str], ...]:
        return tuple(entry for file in self._files for entry in _read(Path(os.path.expanduser(file))))


class RevokedKeys:
    """The bans of one user, whose SSH configuration says in which files they are. Each file is read once."""

    def __init__(self, user_config: UserConfig) -> None:
        self._user_config = user_config
        self._files: dict[tuple[str, ...], KnownHosts] = {}

    def refuse(self, peer: SshEndpoint, public: str | None = None) -> None:
        """Raises HostKeyRefused when the key of a peer is banned: its pinned one, or the one it shows."""
        key = public or peer.host_key
        if key and self._known_hosts(peer).revoked(key):
            raise revoked_key(peer, HostKey(key, "pinned"))

    def _known_hosts(self, peer: SshEndpoint) -> KnownHosts:
        name = peer.ssh_alias or peer.address
        try:
            files = self._user_config.known_hosts(
                name=name, address=peer.address, port=peer.port, user=peer.user
            )
        except BadSshConfig:  # what needs it tells of it
            files = KNOWN_HOSTS
        return self._files.setdefault(files, KnownHosts(files))


def revoked_key(peer: SshEndpoint, key: HostKey) -> HostKeyRefused:
    return HostKeyRefused(
        f"the host key of {peer.label} is revoked in your known_hosts",
        where=peer.where,
        detail=f"{key.public.split()[0]} {key.fingerprint}",
        hint="give the host a new key; if this one is good after all, remove its `@revoked` line there",
        code="ORCH363",
    )


def _read(file: Path) -> Iterator[tuple[str, str, str]]:
    """Marker, names and key of each line that holds one."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) >= 3:
            yield marker, words[0], f"{words[1]} {words[2]}"


def _matches(patterns: str, name: str) -> bool:
    """Whether the first field of a line means a server: hashed, or patterns of which `!` excludes."""
    if patterns.startswith("|1|"):
        try:
            _, _, *hashed = patterns.split("|")
            salt, digest = map(base64.b64decode, hashed)
        except (ValueError, binascii.Error):
            return False
        # ssh makes a name lower-case before it looks it up, and before it hashes it.
        return hmac.compare_digest(hmac.digest(salt, name.lower().encode(), "sha1"), digest)
    matched = False
    for pattern in patterns.lower().split(","):
        # Brackets stand for themselves here.
        plain = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatchcase(name.lower(), plain):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def _rank(public: str) -> int:
    kind = public.split(maxsplit=1)[0]
    return next((at for at, best in enumerate(_BEST_FIRST) if kind.startswith(best)), len(_BEST_FIRST))
