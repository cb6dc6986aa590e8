"""One handshake with one SSH server over a stream that is open already: a log-in with host key, user key and
keep-alive, or the question for its host key alone.

Fabric's `Connection` holds it, with an empty configuration: the fleet says everything, ~/.ssh/config and
fabric.yml must not change it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import paramiko
from fabric import Config, Connection

from orch.runner.errors import LoginRefused
from orch.runner.ssh.endpoint import SshEndpoint, changed_key, read_host_key
from orch.runner.ssh.identities import Identity
from orch.runner.ssh.protocol import Protocol, Stream, handshake_failed

KEEPALIVE_S = 15

# One for all connections, which only read it: making one takes longer than all else of a `Connection`.
_EMPTY = Config(ssh_config=paramiko.SSHConfig(), lazy=True)


class _Connection(Connection):
    """Fabric's connection without a trap: an attribute that its class lacks is written into the
    configuration, which is then merged anew. That took half the time of making one.
    """

    inline_ssh_env: bool = False


def log_in(peer: SshEndpoint, stream: Stream, identities: Sequence[Identity], timeout_s: float) -> Connection:
    """One attempt, on a stream that is closed again if it fails.

    Raises HostKeyRefused, LoginRefused or HostUnreachable.
    """
    connection = _Connection(
        peer.address,
        user=peer.user,
        port=peer.port,
        config=_EMPTY,
        connect_kwargs={
            "sock": stream,
            "timeout": timeout_s,
            "banner_timeout": timeout_s,
            "channel_timeout": timeout_s,
            "transport_factory": Protocol,
            "auth_strategy": _PublicKeys(peer, identities, time.monotonic() + timeout_s),
        },
    )
    client = connection.client
    if client is None:
        raise TypeError("a Fabric connection without a client")
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    started = time.monotonic()
    pinned = None
    try:
        if peer.host_key:
            pinned = read_host_key(peer)
            client.get_host_keys().add(peer.known_as, pinned.get_name(), pinned)
        else:
            client.load_system_host_keys()
        connection.open()
        transport = client.get_transport()
        if transport is None:
            raise EOFError("the connection closed after the login")
        transport.set_keepalive(KEEPALIVE_S)
    except BaseException as error:
        transport = client.get_transport()
        client.close()
        if transport is None:
            stream.close()
        translated = _translate(peer, error, pinned)
        if translated is error and isinstance(error, (paramiko.SSHException, OSError, EOFError)):
            seconds = time.monotonic() - started
            raise handshake_failed(
                peer, error, transport=transport, stream=stream, slow=seconds >= timeout_s * 0.9
            ) from error
        if translated is error:
            raise
        raise translated from error
    return connection


def ask_host_key(peer: SshEndpoint, stream: Stream, timeout_s: float) -> paramiko.PKey:
    """The key that a server shows in a key exchange, without a log-in. Raises HostUnreachable."""
    transport = Protocol(stream)
    transport.banner_timeout = timeout_s
    started = time.monotonic()
    try:
        transport.start_client(timeout=timeout_s)
        return transport.get_remote_server_key()
    except (paramiko.SSHException, OSError, EOFError) as error:
        slow = time.monotonic() - started >= timeout_s * 0.9
        raise handshake_failed(peer, error, transport=transport, stream=stream, slow=slow) from error
    finally:
        transport.close()


class _PublicKeys:
    """Tries keys one after another; what Paramiko calls an authentication strategy."""

    def __init__(self, peer: SshEndpoint, identities: Sequence[Identity], end: float) -> None:
        self._peer = peer
        self._identities = identities
        self._end = end

    def authenticate(self, transport: paramiko.Transport) -> None:
        peer = self._peer
        tried: list[str] = []
        for identity in self._identities:
            tried.append(identity.name)
            transport.auth_timeout = max(0.5, self._end - time.monotonic())
            try:
                other_methods = transport.auth_publickey(peer.user, identity.key)
            except paramiko.BadAuthenticationType as error:
                raise self._login_refused(
                    f"it takes no keys, only {', '.join(error.allowed_types)}",
                    "`PubkeyAuthentication yes` in its /etc/ssh/sshd_config, then reload sshd",
                ) from error
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error).lower():
                    raise
                if not transport.is_active():  # as sshd does after MaxAuthTries
                    break
                continue
            if other_methods:
                raise self._login_refused(
                    f"{identity.name} alone is not enough, it wants {', '.join(other_methods)} too",
                    "give orch a user that logs in with a key alone",
                )
            return
        if not tried:
            raise self._login_refused(
                "there is no key to try: none in the SSH agent, and no unencrypted ~/.ssh/id_* file",
                "set `identity_file`, or `ssh-add` a key",
            )
        raise self._login_refused(
            f"tried {', '.join(tried)}",
            f"is `user` right, and is the public half of {'it' if len(tried) == 1 else 'one of them'} in "
            f"~{peer.user}/.ssh/authorized_keys there?",
        )

    def _login_refused(self, detail: str, hint: str) -> LoginRefused:
        peer = self._peer
        return LoginRefused(
            f"{peer.label} refuses the login of {peer.user}", where=peer.where, detail=detail, hint=hint
        )


def _translate(peer: SshEndpoint, error: BaseException, pinned: paramiko.PKey | None) -> BaseException:
    """What a refusal means; anything else as it is."""
    if isinstance(error, paramiko.BadHostKeyException):
        return changed_key(peer, error.expected_key, error.key)
    if isinstance(error, paramiko.AuthenticationException) and "timeout" not in str(error).lower():
        return LoginRefused(
            f"{peer.label} refuses the login of {peer.user}", where=peer.where, detail=str(error)
        )
    if isinstance(error, paramiko.SSHException) and "not found in known_hosts" in str(error):
        return changed_key(peer, pinned, None)
    return error
