"""Cloud-init user data of simulated instances: the SSH keys and files in it."""

from __future__ import annotations

import email
import gzip
import hashlib
import re
import zlib
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from orch.rehearsal.store import Doc

_ATTRIBUTE = re.compile(r"\bPUT\b[^\n]*/guest-attributes/([\w-]+/[\w-]+)")


@dataclass(frozen=True)
class NodeKeys:
    """The SSH keys in user data. `host_seed`: the Ed25519 private seed, hex."""

    host_seed: str
    host_public: str
    authorized: str


def keys_of(user_data: bytes, own_seed: str | None = None) -> NodeKeys | None:
    """The keys in cloud-init user data, or None where it carries no host key or nobody who may log in.

    `own_seed`: the Ed25519 private seed, hex, of the key that the machine makes where user data asks it to.
    """
    candidates = (_keys(config, own_seed) for config in _configs(user_data))
    return next((keys for keys in candidates if keys is not None), None)


def host_seed(account: str, instance: str) -> str:
    """The private seed, hex, of the key that an instance makes at its first boot. `account`: its seed."""
    return hashlib.sha256(f"{account} host key {instance}".encode()).hexdigest()


def public_key(seed: str) -> str:
    """The public half of such a key, as in known_hosts."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)).public_key()
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return public.public_bytes(*form).decode()


@lru_cache(maxsize=16)
def host_key_attributes(user_data: bytes) -> frozenset[str]:
    """The guest attributes (GCP, `NAMESPACE/KEY`) to which scripts of the user data write the machine's host
    key."""
    return frozenset(
        path
        for config in _configs(user_data)
        for file in config.get("write_files") or ()
        if isinstance(file, dict)
        for path in _ATTRIBUTE.findall(_content(file).decode(errors="replace"))
    )


@lru_cache(maxsize=16)
def shows_host_key(user_data: bytes) -> bool:
    """Whether cloud-init makes an Ed25519 host key and prints it on the console.

    It does unless told not to. Source: cloud-init's modules "SSH" and "Keys to Console".
    """
    return any(
        "ed25519" in (config.get("ssh_genkeytypes") or ())
        and not (config.get("ssh_keys") or {}).get("ed25519_private")
        and (config.get("ssh") or {}).get("emit_keys_to_console", True)
        for config in _configs(user_data)
    )


def file_of(user_data: bytes, path: str) -> bytes | None:
    """The content that cloud-init user data writes to a path, or None."""
    for config in _configs(user_data):
        for file in config.get("write_files") or ():
            if isinstance(file, dict) and file.get("path") == path:
                return _content(file)
    return None


def _content(file: Doc) -> bytes:
    """A file's content as cloud-init decodes it."""
    text, encoding = str(file.get("content") or ""), str(file.get("encoding") or "")
    decoders = {"b64": ("b64",), "base64": ("b64",), "gz+b64": ("b64", "gz"), "gzip+base64": ("b64", "gz")}
    data = text.encode()
    for step in decoders.get(encoding, ()):
        data = b64decode(data) if step == "b64" else gzip.decompress(data)
    return data


def _configs(user_data: bytes) -> Iterator[Doc]:
    for part in _parts(user_data):
        if not part.lstrip().startswith("#cloud-config"):
            continue
        try:
            config: Any = yaml.safe_load(part)
        except yaml.YAMLError:
            continue
        if isinstance(config, dict):
            yield config


def _parts(data: bytes) -> list[str]:
    """The parts of user data as cloud-init reads it: gzip and MIME multipart are unpacked."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, zlib.error, EOFError):
            return []
    text = data.decode(errors="replace")
    if text.lstrip().lower().startswith(("content-type:", "mime-version:")):
        message = email.message_from_string(text)
        parts = []
        for part in message.walk():
            payload = part.get_payload(decode=True)
            if isinstance(payload, bytes) and not part.is_multipart():
                parts += _parts(payload)
        return parts
    return [text]


def _keys(config: Doc, own_seed: str | None) -> NodeKeys | None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    authorized = list(config.get("ssh_authorized_keys") or ())
    for user in config.get("users") or ():
        if isinstance(user, dict):
            authorized += user.get("ssh_authorized_keys") or ()
    private = (config.get("ssh_keys") or {}).get("ed25519_private")
    if not authorized or not (private or (own_seed and "ed25519" in (config.get("ssh_genkeytypes") or ()))):
        return None
    try:
        if private:
            key = serialization.load_ssh_private_key(private.strip().encode() + b"\n", password=None)
        else:
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(own_seed or ""))
    except ValueError:
        return None
    if not isinstance(key, Ed25519PrivateKey):
        return None
    raw = serialization.Encoding.Raw
    seed = key.private_bytes(raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return NodeKeys(seed.hex(), public.decode(), "\n".join(authorized))
