"""Public keys of hosts: given, pinned, in the user's known_hosts, or asked of the host itself.

Asking is a key exchange without a log-in; what it brings is shown to a person and accepted with a plan.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Literal

import paramiko

from orch.runner.errors import HostKeyRefused, HostKeyUnaccepted, HostUnreachable
from orch.runner.peers import Peer, read_host_key
from orch.runner.ssh import Patience, SshTransport
from orch.runner.wire import Wire, handshake_failed

KeySource = Literal["given", "pinned", "known_hosts", "accepted", "scanned"]
ACCEPT = (
    "compare with the host's own (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there), then accept: "
    "`orch up FILE` on a terminal asks, `--accept-new-host-keys` takes every new one; a `host_key` in the "
    "file and your known_hosts count too"
)
"""What to do about a key that nobody has accepted."""

_BEST_FIRST = ("ssh-ed25519", "ecdsa-sha2-", "rsa-sha2-", "ssh-rsa")


@dataclass(frozen=True)
class HostKey:
    """The public key of a host, `ssh-ed25519 AAAA…`, and how it came to be known."""

    public: str
    source: KeySource

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)


def fingerprint(public: str) -> str:
    """`SHA256:…` of a public key, as OpenSSH writes it. Raises ValueError for what is no key."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1], validate=True)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def given_key(peer: Peer, text: str) -> HostKey:
    """A key as the fleet file gives it, with or without a host before and a comment behind it.

    Raises HostKeyRefused.
    """
    found = re.search(r"(?:^|\s)((?:ssh|ecdsa|sk)-[\w@.-]+\s+[A-Za-z0-9+/=]{40,})", text)
    public = " ".join(found.group(1).split()) if found else text
    try:
        read_host_key(Peer(peer.kind, peer.name, peer.address, peer.port, peer.user, None, public))
    except HostKeyRefused as error:
        raise HostKeyRefused(
            f"the `host_key` of {peer.label} is not a public key",
            where=peer.where,
            hint="write it as in known_hosts: `ssh-ed25519 AAAA…`; `ssh-keyscan HOST` shows it",
            code="ORCH363",
        ) from error
    return HostKey(public, "given")


class KnownHosts:
    """Files in the form of known_hosts, read once. A file that is missing or unreadable holds nothing."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    def lookup(self, name: str) -> HostKey | None:
        """The best key of a server by its name in such files (`host`, `[host]:port`), or None."""
        found = [key for marker, names, key in self._entries if not marker and _names(names, name)]
        usable = [key for key in found if not self.revoked(key)]
        usable.sort(key=_rank)
        return HostKey(usable[0], "known_hosts") if usable else None

    def revoked(self, public: str) -> bool:
        """Whether some `@revoked` line bans this key."""
        return any(marker == "@revoked" and key == public for marker, _, key in self._entries)

    @cached_property
    def _entries(self) -> tuple[tuple[str, str, str], ...]:
        return tuple(entry for file in self._files for entry in _read(Path(os.path.expanduser(file))))


def scan(transport: SshTransport, peer: Peer, patience: Patience) -> HostKey:
    """Ask a host for its key, Ed25519 if it has one, directly or by way of its jump hosts.

    Raises HostUnreachable, and what a jump host on the way refuses.
    """
    with transport.stream_to(peer, patience) as stream:
        wire = Wire(stream)
        timeout_s = wire.banner_timeout = patience.for_connect
        began = time.monotonic()
        try:
            wire.start_client(timeout=timeout_s)
            key = wire.get_remote_server_key()
        except (paramiko.SSHException, OSError, EOFError) as error:
            slow = time.monotonic() - began >= timeout_s * 0.9
            raise handshake_failed(peer, error, wire=wire, stream=stream, slow=slow) from error
        finally:
            wire.close()
    return HostKey(f"{key.get_name()} {key.get_base64()}", "scanned")


def unknown_key(peer: Peer, offered: HostKey | HostUnreachable) -> HostKeyRefused:
    """The error for `known_hosts: strict` and a host whose key nothing tells."""
    if isinstance(offered, HostKey):
        detail = f"it offers {offered.public.split()[0]} {offered.fingerprint}"
        hint = f'compare that with the host\'s own; then write `host_key: "{offered.public}"`'
    else:
        detail = f"it could not be asked either: {offered.summary}"
        hint = "give its `host_key`, or connect once with ssh and accept it"
    return HostKeyRefused(
        f"no host key is known for {peer.label}, and `known_hosts` is `strict`",
        where=peer.where,
        detail=detail,
        hint=hint,
        code="ORCH363",
    )


def unaccepted_key(peer: Peer, offered: HostKey, host: str) -> HostKeyUnaccepted:
    """The error for a host whose key nothing tells and nobody has accepted; `host`: what it is pinned as."""
    return HostKeyUnaccepted(
        f"not looked at: nobody has accepted the host key of {peer.label}",
        host=host,
        key=offered.public,
        fingerprint=offered.fingerprint,
        where=peer.where,
        detail=f"it offers {offered.public.split()[0]} {offered.fingerprint}",
        hint=ACCEPT,
        code="ORCH388",
    )


def revoked_key(peer: Peer, key: HostKey) -> HostKeyRefused:
    return HostKeyRefused(
        f"the host key of {peer.label} is revoked in your known_hosts",
        where=peer.where,
        detail=f"{key.public.split()[0]} {key.fingerprint}",
        hint="give the host a new key",
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


def _names(patterns: str, name: str) -> bool:
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
