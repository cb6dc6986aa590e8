"""SSH host keys that follow from a fleet's seed, one per node.

A node's host key is known before the node exists, so the first connection is already checked; and one
resource holds the keys of any number of nodes.
"""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


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
