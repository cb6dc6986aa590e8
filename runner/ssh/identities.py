"""The private keys of a log-in: a file, the SSH agent, the user's default files.

A file is read once per process and change, not once per host.
"""

from __future__ import annotations

import base64
import binascii
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.agent import AgentSSH

from orch.runner.errors import LoginRefused

DEFAULT_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_OPENSSH = b"openssh-key-v1\0"


@dataclass(frozen=True)
class Identity:
    """One key that may be tried, and what to call it in a message."""

    key: paramiko.PKey
    name: str


@dataclass(frozen=True)
class _Loaded:
    """A key file: its key, or why there is none. `public` is the public half, where it is known."""

    key: paramiko.PKey | None = None
    public: bytes | None = None
    encrypted: bool = False
    reason: str | None = None


class Agent(AgentSSH):
    """The SSH agent behind a socket, for many threads. Without one it has no keys."""

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self._lock = threading.Lock()
        if not path:
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(10.0)
        try:
            sock.connect(path)
            self._connect(sock)  # pyright: ignore[reportAttributeAccessIssue]
        except (OSError, paramiko.SSHException):
            # A socket that a past login left in the environment: as good as no agent.
            sock.close()

    def _send_message(self, msg: bytes) -> tuple[int, paramiko.Message]:
        with self._lock:
            return super()._send_message(msg)  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        self._close()  # pyright: ignore[reportAttributeAccessIssue]


class Keyring:
    """Finds identities for one transport: keys read so far, and its connection to the agent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._agents: dict[str, Agent] = {}
        self._loaded: dict[tuple[str, int], _Loaded] = {}

    def close(self) -> None:
        with self._lock:
            for agent in self._agents.values():
                agent.close()
            self._agents.clear()

    def identities(self, label: str, path: str | None, agent: Callable[[], str | None]) -> Iterator[Identity]:
        """What to try, in order: the key of `path`, or the agent's keys and the user's default files.

        `agent` tells the agent's socket, when it comes to that, where it is not the environment's. Raises
        LoginRefused when a given file is missing, unreadable or no private key, or is encrypted and not in
        the agent.
        """
        if path is None:
            yield from self._any_identity(agent)
            return
        file = Path(path).expanduser()
        loaded = self._load(label, file)
        if loaded.key is not None:
            yield Identity(loaded.key, str(file))
            return
        agent_keys = [
            Identity(key, f"{file} (SSH agent)")
            for key in self._agent(agent()).get_keys()
            if loaded.public in (None, key.asbytes())
        ]
        if not agent_keys:
            raise _unusable(label, file, loaded)
        yield from agent_keys

    def _any_identity(self, agent: Callable[[], str | None]) -> Iterator[Identity]:
        agent_keys = self._agent(agent()).get_keys()
        for key in agent_keys:
            yield Identity(key, f"{key.comment or key.fingerprint} (SSH agent)")
        public_keys = {key.asbytes() for key in agent_keys}
        for name in DEFAULT_FILES:
            file = Path(name).expanduser()
            if not file.is_file():
                continue
            loaded = self._load("", file)
            if loaded.key is not None and loaded.key.asbytes() not in public_keys:
                yield Identity(loaded.key, name)

    def _agent(self, path: str | None) -> Agent:
        socket_path = agent_socket(path)
        with self._lock:
            if socket_path not in self._agents:
                self._agents[socket_path] = Agent(socket_path or None)
            return self._agents[socket_path]

    def _load(self, label: str, file: Path) -> _Loaded:
        try:
            version = (str(file), file.stat().st_mtime_ns)
            with self._lock:
                if version not in self._loaded:
                    self._loaded[version] = _read(file)
                return self._loaded[version]
        except FileNotFoundError as error:
            raise LoginRefused(
                f"the private key for {label} is not here",
                where=str(file),
                hint="point `identity_file` at the key, or provision the fleet again from this machine",
            ) from error
        except OSError as error:
            raise LoginRefused(
                f"the private key for {label} cannot be read",
                where=str(file),
                detail=error.strerror or str(error),
                hint="it must be a file that you may read",
            ) from error


def agent_socket(setting: str | None) -> str:
    """The socket of the agent, where `setting` is what `IdentityAgent` says; empty for no agent."""
    if setting is None or setting == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK", "")
    if setting.lower() == "none":
        return ""
    return (
        os.environ.get(setting[1:].strip("{}"), "")
        if setting.startswith("$")
        else os.path.expanduser(setting)
    )


def _read(file: Path) -> _Loaded:
    """A key file of any of the three kinds. Raises OSError."""
    data = file.read_bytes()
    if data.startswith((b"ssh-", b"ecdsa-", b"sk-")):
        return _Loaded(public=_public_line(data), reason="this is the public half of a key")
    if b"-----BEGIN" not in data:
        return _Loaded(reason="this is not a private key", public=b"")
    reason = "this is not a private key that can be used"
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            key = kind.from_private_key_file(str(file))
        except paramiko.PasswordRequiredException:
            return _Loaded(public=_public_half(file), encrypted=True)
        except (paramiko.SSHException, ValueError, IndexError, UnicodeDecodeError) as error:
            if "mismatch" not in str(error) and "not a valid" not in str(error):
                reason = f"{reason}: {error}"
            continue
        certificate = file.with_name(f"{file.name}-cert.pub")
        if certificate.is_file():
            key.load_certificate(str(certificate))
        return _Loaded(key=key, public=key.asbytes())
    if b"ENCRYPTED" in data:
        return _Loaded(public=_public_half(file), encrypted=True)
    return _Loaded(reason=reason, public=b"")


def _public_half(file: Path) -> bytes | None:
    """The public half of an encrypted key: in the clear in OpenSSH's format, else in the file beside it."""
    text = file.read_text(errors="replace")
    if "BEGIN OPENSSH PRIVATE KEY" in text:
        body = "".join(line for line in text.splitlines() if not line.startswith("-----"))
        try:
            data = base64.b64decode(body)
        except binascii.Error:
            return None
        if data.startswith(_OPENSSH):
            message = paramiko.Message(data[len(_OPENSSH) :])
            for _ in range(3):  # cipher, key derivation, its options
                message.get_binary()
            message.get_int()
            return message.get_binary()
    public_file = file.with_name(f"{file.name}.pub")
    return _public_line(public_file.read_bytes()) if public_file.is_file() else None


def _public_line(data: bytes) -> bytes | None:
    words = data.split()
    try:
        return base64.b64decode(words[1]) if len(words) > 1 else None
    except binascii.Error:
        return None


def _unusable(label: str, file: Path, loaded: _Loaded) -> LoginRefused:
    if loaded.encrypted:
        return LoginRefused(
            f"the private key for {label} is encrypted and not in the SSH agent",
            where=str(file),
            hint=f"ssh-add {file}",
        )
    return LoginRefused(
        f"the private key for {label} is not usable",
        where=str(file),
        detail=loaded.reason,
        hint="`identity_file` is an RSA, ECDSA or Ed25519 private key file",
    )
