"""A byte stream to an SSH server: over TCP, through a jump host, or from a proxy command.

Each way to fail has its own sentence, for the remedy differs.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import paramiko

from orch.runner.errors import ForwardingRefused, HostUnreachable, RunnerError, UnsafeName
from orch.runner.ssh.openssh import proxy_words
from orch.runner.ssh.safe_text import safe_host

# Bytes read at once from a forwarded connection: as many as a packet of the connection to the node holds.
FORWARD_CHUNK = 1 << 15

_NO_ROUTE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EADDRNOTAVAIL})


class Patience:
    """How long one call may try to connect: as often as fits into `total_s`, or once where that is 0.

    Waiting for others in front of a jump host does not count.
    """

    def __init__(self, connect_s: float, total_s: float) -> None:
        self._connect_s = connect_s
        self._deadline = time.monotonic() + (total_s or connect_s)
        self.once = not total_s

    @property
    def left(self) -> float:
        return self._deadline - time.monotonic()

    @property
    def for_connect(self) -> float:
        """Seconds that the next attempt may take."""
        return min(self._connect_s, max(0.5, self.left))

    @contextmanager
    def queueing(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._deadline += time.monotonic() - started


def dial_tcp(address: str, port: int, timeout_s: float) -> socket.socket:
    """A connection to the first address of a name that takes one.

    Raises HostUnreachable; UnsafeName for what can be no name, which nobody needs to try again.
    """
    try:
        sock = socket.create_connection((address, port), timeout_s)
    except (socket.gaierror, UnicodeError) as error:
        kind = HostUnreachable if safe_host(address) else UnsafeName
        raise kind(
            f"the name {address} does not resolve",
            detail=getattr(error, "strerror", None) or str(error),
            hint="is the name right, and does DNS know it from this machine?",
        ) from error
    except OSError as error:
        raise _connect_error(address, port, error, timeout_s) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def dial_through(
    wire: paramiko.Transport, jump: str, address: str, port: int, timeout_s: float
) -> paramiko.Channel:
    """A channel of the connection to a jump host that ends at `address`.

    Raises HostUnreachable, ForwardingRefused.
    """
    try:
        return wire.open_channel("direct-tcpip", (address, port), ("", 0), timeout=timeout_s)
    except paramiko.ChannelException as error:
        if error.code == 1:  # administratively prohibited
            raise ForwardingRefused(
                f"{jump} refuses to forward connections",
                detail=f"asked for {address} port {port}: {error.text}",
                hint="`AllowTcpForwarding yes` in /etc/ssh/sshd_config of the jump host (`PermitOpen` limits "
                "it too), then reload sshd",
            ) from error
        raise HostUnreachable(
            f"{jump} cannot reach port {port} of {address}",
            detail=error.text,
            hint="is the address the one that the jump host knows, and is sshd up there?",
        ) from error
    except paramiko.SSHException as error:
        if "Timeout" not in str(error):
            raise
        raise HostUnreachable(
            f"{jump} got no answer from port {port} of {address} within {timeout_s:.3g} s",
            hint="is the host up, and does a firewall between the two let SSH through?",
        ) from error


def dial_command(
    template: str, address: str, port: int, user: str, environment: Mapping[str, str] | None = None
) -> ProxySocket:
    """What a proxy command says on its stdin and stdout. `%h`, `%n`, `%p`, `%r` and `%%` are filled in.

    A shell reads the command; `environment` is given to it beside the caller's own. Raises UnsafeName for an
    address or a user that would be more than that to the shell.
    """
    return ProxySocket(proxy_words(template, address, port, user), environment)


class ProxySocket(socket.socket):
    """A socket whose other end is a command of this machine, which ends with it.

    A real socket, unlike the library's own: it can be waited for whatever its number, and tells when the
    command is gone.
    """

    def __init__(self, command: str, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the socket
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        super().__init__(fileno=ours.detach())

    def close(self) -> None:
        super().close()
        if self._process.returncode is not None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(0.5)
        except ProcessLookupError:
            self._process.poll()
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """The end of what the command wrote to stderr."""
        if self._stderr.closed:
            return ""
        self._stderr.seek(0)
        return self._stderr.read()[-600:].decode(errors="replace").strip()


@contextmanager
def forwarded(
    open_channel: Callable[[], paramiko.Channel], listener: socket.socket | None = None
) -> Iterator[int]:
    """A port of this machine's loopback while the block lasts; each connection to it gets a channel.

    `listener`: the socket to take connections from, any free port if not given; closed with the block. One
    whose channel is refused is closed, and the next one gets another try.
    """
    with listener or socket.create_server(("127.0.0.1", 0)) as server:
        links: set[_Link] = set()

        def accept() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                try:
                    link = _Link(client, open_channel())
                except RunnerError:
                    client.close()
                    continue
                links.difference_update([each for each in links if each.over])
                links.add(link)

        thread = threading.Thread(target=accept, name="orch-forward", daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            thread.join(5.0)
            for link in list(links):
                link.close()


class _Link:
    """A client and its channel: what comes from one goes to the other.

    Each direction has a thread and ends by itself: who has sent all may still receive, and a side that does
    not read holds up nothing but what is for it.
    """

    def __init__(self, client: socket.socket, channel: paramiko.Channel) -> None:
        self._client, self._channel = client, channel
        self._going = 2
        self._guard = threading.Lock()
        up = (client.recv, channel.sendall, channel.shutdown_write)
        down = (channel.recv, client.sendall, lambda: client.shutdown(socket.SHUT_WR))
        for direction in (up, down):
            threading.Thread(target=self._carry, args=direction, name="orch-forward", daemon=True).start()

    @property
    def over(self) -> bool:
        return self._going == 0

    def close(self) -> None:
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)  # wakes who reads it
        self._channel.close()
        self._client.close()

    def _carry(
        self, receive: Callable[[int], bytes], send: Callable[[bytes], object], end: Callable[[], object]
    ) -> None:
        try:
            while data := receive(FORWARD_CHUNK):
                send(data)
            end()
        except (OSError, EOFError, paramiko.SSHException):
            self.close()
        with self._guard:
            self._going -= 1
        if self.over:
            self.close()


def _connect_error(address: str, port: int, error: OSError, timeout_s: float) -> HostUnreachable:
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return HostUnreachable(
            f"port {port} of {address} does not answer within {timeout_s:.3g} s",
            hint="is the host up, and does a firewall drop SSH on the way?",
        )
    if error.errno == errno.ECONNREFUSED:
        return HostUnreachable(
            f"port {port} of {address} refuses connections",
            hint="is sshd running there, and is this its port?",
        )
    if error.errno in _NO_ROUTE:
        return HostUnreachable(
            f"there is no route to {address}",
            detail=error.strerror,
            hint="is this machine in the right network or VPN, or is a `proxy_jump` needed?",
        )
    return HostUnreachable(f"port {port} of {address} cannot be connected to", detail=error.strerror)
