"""SSH host keys: those that follow from a fleet's seed, one per machine, and those that machines made.

A key from the seed is known before its machine exists, so the first connection is already checked; and one
resource holds the keys of any number of machines. Who has the seed has them all, so it travels nowhere: local
nodes and bastions have a key of it, and nodes that an earlier version made.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import wrap

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


@dataclass(frozen=True)
class HostKey:
    """The public host key of a node. `machine`: the instance that made it; None: it follows from the seed."""

    public: str
    machine: str | None = None


def known_keys(
    pinned: Mapping[str, tuple[str, str]], seed: str, instances: Iterable[tuple[str, str, str | None]]
) -> dict[str, HostKey]:
    """The host keys that are known without asking the cloud, by instance.

    `pinned`: node -> the instance that showed a key, and the key. `instances`: each node, its instance, and
    the name from which an earlier version derived the instance's key of the seed, None for no such key.
    """
    keys: dict[str, HostKey] = {}
    for node, instance, derived_from in instances:
        machine, public = pinned.get(node, ("", ""))
        if machine == instance and public:
            keys[instance] = HostKey(public, instance)
        elif derived_from is not None:
            keys[instance] = HostKey(public_host_key(seed, derived_from))
    return keys


def host_key_seed(seed: str, node: str) -> str:
    """The Ed25519 private seed of the host key of `node`, 32 bytes in hex. `seed`: a secret of the stack,
    likewise.

    Not the OpenSSH file: its text holds random check bytes, and a value that differs each time is a change
    each time.
    """
    derived = HKDF(hashes.SHA256(), 32, salt=None, info=f"orch ssh host key {node}".encode())
    return derived.derive(bytes.fromhex(seed)).hex()


def public_host_key(seed: str, node: str) -> str:
    """Its public half as in known_hosts: `ssh-ed25519 AAAA…`."""
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(host_key_seed(seed, node)))
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        .decode()
    )


def private_host_key(seed: str, node: str) -> str:
    """Its private half as OpenSSH's file, for machines that get it as text.

    The file's check bytes, which others draw at random, follow from the key: the same key is the same text.
    Source of the form: openssh-portable, PROTOCOL.key.
    """
    secret = bytes.fromhex(host_key_seed(seed, node))
    public = (
        Ed25519PrivateKey.from_private_bytes(secret)
        .public_key()
        .public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    )
    kind, check = _field(b"ssh-ed25519"), hashlib.sha256(b"check" + secret).digest()[:4]
    inner = check * 2 + kind + _field(public) + _field(secret + public) + _field(node.encode())
    inner += bytes(range(1, 1 + -len(inner) % 8))
    none = _field(b"none") * 2 + _field(b"")
    whole = (
        b"openssh-key-v1\0" + none + (1).to_bytes(4, "big") + _field(kind + _field(public)) + _field(inner)
    )
    lines = wrap(b64encode(whole).decode(), 70)
    return "\n".join(("-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""))


def _field(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value
