"""A person's shell in a pod, or one command of theirs, as a program.

    python -m orch.runner.kubernetes.shell FILE

`FILE` is what `KubernetesConnector.terminal` and `command_line` write. Own stdin, stdout and stderr are the
command's; on a terminal it is raw meanwhile, and the command's terminal has its size. The exit code is the
command's, 255 where there was none, as `ssh` has it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from orch.runner.errors import HostUnreachable
from orch.runner.kubernetes.connector import KubernetesConnector
from orch.runner.kubernetes.pod_state import Pod
from orch.runner.kubernetes.streams.channel import (
    CHUNK,
    CLOSE,
    RESIZE,
    STATUS,
    STDERR,
    STDIN,
    STDOUT,
    Channel,
    ChannelLost,
)
from orch.runner.kubernetes.streams.execution import Ending, ExecRequest, exec_request, login_shell
from orch.spec.access import KUBERNETES as KIND
from orch.spec.confidential import hidden
from orch.spec.errors import OrchError
from orch.spec.state import NodeState

NO_CODE = 255


class _Left(Exception):
    """This program was told to end."""


def main(words: Sequence[str]) -> int:
    """Its exit code."""
    if len(words) != 1:
        sys.stderr.write("usage: python -m orch.runner.kubernetes.shell FILE\n")
        return NO_CODE
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        return run(json.loads(Path(words[0]).read_text("utf-8")))
    except OrchError as error:
        sys.stderr.write(hidden(error.text()) + "\n")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {words[0]} cannot be read: {error}\n")
    except (_Left, KeyboardInterrupt):
        pass
    return NO_CODE


def run(record: Mapping[str, Any]) -> int:
    """Run what a record says on own streams. Raises OrchError."""
    access = {key: record[key] for key in Pod.__dataclass_fields__}
    if record["files"]:
        os.environ["KUBECONFIG"] = record["files"]
    node = NodeState.model_validate({"index": 0, "name": record["node"], "access": {"kind": KIND, **access}})
    here = os.isatty(0)
    terminal = here and os.isatty(1) if record["terminal"] is None else bool(record["terminal"]) and here
    text = record["text"] or login_shell(os.environ.get("TERM", "") if terminal else "")

    def ask(ends: bool) -> ExecRequest:
        if terminal:
            return ExecRequest(("sh", "-c", text), stdin=True)
        # Where the end of an input cannot be told, it is not: a person's command goes on as it comes.
        request = exec_request(text, stdin=True, leavable=False)
        return request if ends else ExecRequest(request.words, stdin=True, preface=request.preface)

    connector = KubernetesConnector()
    try:
        with connector.attached(node, ask, terminal=terminal) as (channel, request), _raw(terminal):
            channel.answers_pings = terminal
            threading.Thread(target=_feed, args=(channel, request), daemon=True).start()
            status = _pass_on(channel, terminal=terminal)
    finally:
        connector.close()
    if status is None:
        return 128 + signal.SIGPIPE
    if not status:
        raise HostUnreachable(f"the connection to node {node.name} was lost", where=node.name)
    ending = Ending.of(status)
    if ending.code is None:
        raise HostUnreachable(
            f"node {node.name} runs no such command", where=node.name, detail=ending.message
        )
    return ending.code


def _pass_on(channel: Channel, *, terminal: bool) -> bytes | None:
    """Pass on output until the command ends.

    Gives its status, empty where the connection was lost, None where nobody reads what is written here.
    """
    status = bytearray()
    size: os.terminal_size | None = None
    try:
        while not channel.closed:
            if terminal and (now := _size()) is not None and now != size:
                size = now
                content = json.dumps({"Width": now.columns, "Height": now.lines})
                channel.send(RESIZE, content.encode())
            for stream, data in channel.receive(0.2):
                if stream == STATUS:
                    status += data
                elif stream in (STDOUT, STDERR):
                    _write(1 if stream == STDOUT else 2, data)
    except ChannelLost:
        pass
    except BrokenPipeError:
        return None
    return bytes(status)


def _size() -> os.terminal_size | None:
    with suppress(OSError):
        return os.get_terminal_size(0)
    return None


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _feed(channel: Channel, request: ExecRequest) -> None:
    with suppress(ChannelLost, OSError):
        if request.preface:
            channel.send(STDIN, request.preface)
        while data := os.read(0, CHUNK):
            channel.send(STDIN, data)
        if request.closes:
            channel.send(CLOSE, bytes([STDIN]))


@contextmanager
def _raw(terminal: bool) -> Iterator[None]:
    """Own terminal passes on every key while the block lasts."""
    if not terminal:
        yield
        return
    before = termios.tcgetattr(0)
    try:
        # What was typed ahead stays.
        tty.setraw(0, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise _Left


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
