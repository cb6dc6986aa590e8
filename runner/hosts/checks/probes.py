"""Checks that try something on a host: ports from this machine, and GPUs inside a container."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import select
import socket
import time
from collections.abc import Sequence

from orch.runner.hosts.checks.types import CheckOptions, ContainerProbe
from orch.runner.hosts.host_facts import HostFacts
from orch.runner.node.commands import Command, as_root
from orch.runner.node.connector import Address, Connector
from orch.spec.state import NodeState
from orch.templates import render

CONNECT_S = 2.0
CONTAINER_S = 60

# Images that hold what the tools of the host, put into a container, need: a C library.
_LIKELY = r"cuda|nvidia|pytorch|tensorflow|orch/|dstack|ubuntu|debian|rocky|almalinux|fedora"


def external_skip_reason(address: Address) -> str | None:
    """Why connections from this machine do not show what outsiders reach; None when they do."""
    if not address.direct or address.host is None:
        return "reached by way of another host, not from outside"
    try:
        addresses = {
            row[4][0] for row in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        }
    except OSError:
        return f"the name {address.host} is not known here"
    if all(ipaddress.ip_address(str(each).partition("%")[0]).is_loopback for each in addresses):
        return "reached over this machine's loopback, not from outside"
    return None


def open_ports(address: str, ports: Sequence[int], *, within_s: float = CONNECT_S) -> tuple[int, ...]:
    """Those of `ports` that accept a TCP connection from here, all tried at once."""
    waiting: dict[int, tuple[int, socket.socket]] = {}
    open_now: list[int] = []
    poll = select.poll()
    with contextlib.ExitStack() as closing:
        for port in ports:
            for family, kind, protocol, _, where in _resolved(address, port):
                sock = closing.enter_context(socket.socket(family, kind, protocol))
                sock.setblocking(False)
                with contextlib.suppress(OSError):
                    if sock.connect_ex(where) in (0, 115):  # EINPROGRESS on Linux
                        waiting[sock.fileno()] = (port, sock)
                        poll.register(sock, select.POLLOUT)
        deadline = time.monotonic() + within_s
        while waiting and (remaining_s := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(remaining_s * 1000):
                port, sock = waiting.pop(descriptor)
                poll.unregister(descriptor)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    open_now.append(port)
    return tuple(sorted(set(open_now)))


def _resolved(address: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    try:
        return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)  # type: ignore[return-value]
    except OSError:
        return []


def gpus_in_container(
    node: NodeState, facts: HostFacts, connector: Connector, options: CheckOptions
) -> ContainerProbe | None:
    """`nvidia-smi -L` in a container; None on a host without GPUs or Docker. Raises what `run` raises."""
    docker = facts.docker
    if not facts.working_count("nvidia") or docker is None or not docker.version:
        return None
    text = render(
        "host-container.sh.j2",
        image=options.image or "",
        pull=options.pull,
        likely=_LIKELY,
        limit_s=CONTAINER_S,
    )
    limit_s = 900.0 if options.pull else CONTAINER_S + 30.0
    script = as_root(text) if facts.root != "no" else text
    return read_container(
        connector.run(node, Command(script, "look for GPUs in a container", timeout_s=limit_s)).stdout,
        options.image,
    )


def read_container(text: str, image: str | None) -> ContainerProbe:
    """The result in the script's output."""
    head, _, rest = text.partition("\n")
    word, _, image_used = head.partition(" ")
    if word != "image":
        missing = f"{image} is not on the host" if image else "no image to try it with is on the host"
        return ContainerProbe(skip_reason=f"{missing}; a job brings its own")
    code = re.search(r"^exit ([0-9]{1,3})$", rest, re.MULTILINE)
    output = " ".join(line for line in rest.splitlines() if not line.startswith("exit "))
    return ContainerProbe(
        image=image_used,
        gpus=len(re.findall(r"^GPU \d+:", rest, re.MULTILINE)),
        exit_code=int(code.group(1)) if code else 1,
        output=("it took too long" if code and code.group(1) == "124" else output)[-300:],
    )
