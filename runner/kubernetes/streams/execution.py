"""One command in a container: how it is asked for, and its input, output and time limits on an open channel.

Three things differ from a command over SSH. The text of a command is part of the request's address, which
proxies cut and auditors keep, so a long one travels before the command's input. Before version 5 of the
protocol the end of an input cannot be told, so it is written down. And nobody ends a command whose caller is
gone, so one that may be left has its input open as long as somebody waits for it.
"""

from __future__ import annotations

import base64
import json
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from orch.runner.errors import CommandTimeout, HostUnreachable, RunnerError
from orch.runner.kubernetes.errors import shortened
from orch.runner.kubernetes.streams.channel import CLOSE, STATUS, STDERR, STDIN, STDOUT, Channel, ChannelLost
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Completed
from orch.spec.state import NodeState

LONGEST_IN_ADDRESS = 4096
"""Characters of a command in a request's address: load balancers in front of API servers cut at 8 KiB."""

_LONGEST_WORD = 120_000  # Linux: one word of a command line has at most 128 KiB.

# The shell reads a pipe byte by byte: what comes behind the text is left for the command.
_READ = """\
IFS= read -r _n || exit 255; _t=
while [ "$_n" -gt 0 ]; do IFS= read -r _l || exit 255; _t="$_t$_l
"; _n=$((_n - 1)); done
"""
_RUN = f'{_READ}eval "$_t"'
_RUN_WITHOUT_INPUT = f'{_READ}exec </dev/null; eval "$_t"'
_RUN_WITH_WRITTEN_INPUT = f"""{_READ}sed -n '/^\\.$/q;p' | base64 -d | sh -c "$_t\""""
_RUN_WHILE_WAITED_FOR = f"""\
{_READ}exec 3<&0 </dev/null
own=; ! command -v setsid >/dev/null 2>&1 || own=setsid
$own sh -c "$_t" 3<&- &
_p=$!
{{ while IFS= read -r _l <&3; do :; done; kill -HUP "${{own:+-}}$_p"; }} >/dev/null 2>&1 &
_w=$!
exec 3<&-
wait "$_p"; _c=$?
kill "$_w" 2>/dev/null
exit "$_c"
"""


@dataclass(frozen=True)
class ExecRequest:
    """What an API server is asked for: the words of a command, and whether they have an input.

    `preface`: what of that comes before the command's own; `written`: its end is written down; `closes`: its
    end is told.
    """

    words: tuple[str, ...]
    stdin: bool = False
    preface: bytes = b""
    written: bool = False
    closes: bool = False

    def query(self, container: str, *, terminal: bool = False) -> list[tuple[str, str]]:
        """The query of a request for it. A terminal has no stream for errors."""
        streams = {"stdin": self.stdin, "stdout": True, "stderr": not terminal, "tty": terminal}
        flags = [(name, "true") for name, wanted in streams.items() if wanted]
        return [("container", container), *flags, *(("command", word) for word in self.words)]


def exec_request(text: str, *, stdin: bool, leavable: bool, ends: bool = True) -> ExecRequest:
    """How shell text is asked for.

    `leavable`: its caller may go before it ends, and it ends then. `ends`: the protocol can tell the end of
    an input (v5).
    """
    short = len(quote(text)) <= LONGEST_IN_ADDRESS
    if leavable and not stdin and len(text.encode()) < _LONGEST_WORD:
        return ExecRequest(("sh", "-c", _RUN_WHILE_WAITED_FOR), stdin=True, preface=_preface(text))
    if not stdin:
        if short:
            return ExecRequest(("sh", "-c", text))
        return ExecRequest(("sh", "-c", _RUN_WITHOUT_INPUT), stdin=True, preface=_preface(text))
    if not ends:
        return ExecRequest(
            ("sh", "-c", _RUN_WITH_WRITTEN_INPUT), stdin=True, preface=_preface(text), written=True
        )
    if short:
        return ExecRequest(("sh", "-c", text), stdin=True, closes=True)
    return ExecRequest(("sh", "-c", _RUN), stdin=True, preface=_preface(text), closes=True)


def _preface(text: str) -> bytes:
    lines = text.split("\n")
    return "".join(f"{line}\n" for line in (str(len(lines)), *lines)).encode()


def written(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """An input as lines of base64, and a line with a full stop behind it."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        whole = len(rest) - len(rest) % 3
        for start in range(0, whole, 24_576):
            yield base64.b64encode(rest[start : min(start + 24_576, whole)]) + b"\n"
        rest = rest[whole:]
    if rest:
        yield base64.b64encode(rest) + b"\n"
    yield b".\n"


class NotStarted(Exception):
    """The API server opened a stream, and there is no command behind it: it may be asked for again."""


@dataclass(frozen=True)
class Ending:
    """How a command ended, by its status document. `code` None: it did not, `message` says why."""

    code: int | None
    message: str = ""

    @classmethod
    def of(cls, content: bytes) -> Ending:
        """The ending of a status document (v1.Status, protocol v4 and later)."""
        try:
            document = json.loads(content)
            assert isinstance(document, Mapping)
        except (ValueError, AssertionError):
            return cls(None, shortened(content.decode(errors="replace")))
        if document.get("status") == "Success":
            return cls(0)
        if document.get("reason") == "NonZeroExitCode":
            details: Mapping[str, Any] = document.get("details") or {}
            for cause in details.get("causes") or ():
                if cause.get("reason") == "ExitCode" and str(cause.get("message")).isdigit():
                    return cls(int(cause["message"]))
        return cls(None, shortened(document.get("message")))

    @property
    def never_began(self) -> bool:
        """Whether the way to the container broke before there was a command."""
        return any(text in self.message for text in _BEFORE_ANY_COMMAND)


# k8s.io/client-go remotecommand, apiserver proxy, kubelet streaming: what they say before a command exists.
_BEFORE_ANY_COMMAND = (
    "error dialing backend",
    "unable to upgrade connection",
    "container not found",
    "error sending request",
    "is not running",
    "is in CONTAINER_EXITED state",
)


@dataclass
class Execution:
    """One command on one channel: feeds its input from a thread, reads its output, keeps the deadline.

    `started`: when the caller began, by the monotonic clock.
    """

    node: NodeState
    where: str
    command: Command
    request: ExecRequest
    channel: Channel
    on_lines: Callable[[bytes], None] | None
    on_data: Callable[[bytes], None] | None
    until: threading.Event | None
    started: float
    _out: bytearray = field(default_factory=bytearray, init=False)
    _err: bytearray = field(default_factory=bytearray, init=False)
    _status: bytearray = field(default_factory=bytearray, init=False)
    _output: bool = field(default=False, init=False)
    _feed_error: BaseException | None = field(default=None, init=False)

    def run(self) -> Completed:
        """Raises HostUnreachable, CommandTimeout, NotStarted, and what the source of the input raises."""
        command = self.command
        deadline = time.monotonic() + command.timeout_s if command.timeout_s is not None else None
        feeder = None
        self.channel.answers_pings = command.stdin is None
        if self.request.stdin:
            feeder = threading.Thread(target=self._feed, name="orch-stdin", daemon=True)
            feeder.start()
        try:
            stopped = self._read(deadline)
        except ChannelLost as lost:
            if self._feed_error is not None:
                raise self._feed_error from None
            if not self._status:
                raise self._lost(str(lost)) from lost
            stopped = False
        finally:
            self.channel.hang_up()
        if feeder is not None:
            feeder.join(5.0)
        if self._feed_error is not None:
            raise self._feed_error
        code = -1 if stopped else self._exit_code()
        if self.on_lines is not None and self._out and not stopped:
            # The last line may lack its end; a lost connection never gets here with half a line.
            self.on_lines(bytes(self._out) + b"\n")
            self._out.clear()
        return Completed(
            self.node.name,
            command,
            code,
            self._out.decode(errors="replace"),
            self._err.decode(errors="replace"),
            time.monotonic() - self.started,
        )

    def _exit_code(self) -> int:
        if not self._status:
            raise self._lost("the stream ended without a word of how the command did")
        ending = Ending.of(bytes(self._status))
        if ending.code is not None:
            return ending.code
        if ending.never_began and not self._output:
            raise NotStarted(ending.message)
        if "executable file not found" in ending.message or "no such file or directory" in ending.message:
            raise RunnerError(
                f"node {self.node.name} has no shell to run a command with",
                where=self.where,
                detail=ending.message,
                hint="the image of a pod needs `sh`",
            )
        raise self._lost(ending.message)

    def _lost(self, why: str) -> HostUnreachable:
        return HostUnreachable(
            f"the connection to node {self.node.name} was lost during a command",
            where=self.where,
            detail=f"{self.command}: {why}",
        )

    def _read(self, deadline: float | None) -> bool:
        """Read until the command ends (False) or `until` is set (True)."""
        while True:
            if self._left():
                return True
            wait = 0.25
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise CommandTimeout(
                        f"a command on node {self.node.name} took longer than {self.command.timeout_s:.0f} s",
                        where=self.where,
                        detail=str(self.command),
                    )
                wait = min(wait, left)
            for stream, data in self.channel.receive(wait):
                if stream == STDOUT:
                    self._output = True
                    if not self._left():
                        self._take(data)
                elif stream == STDERR:
                    self._output = True
                    self._err += data
                elif stream == STATUS:
                    self._status += data
            if self.channel.closed:
                return False

    def _left(self) -> bool:
        """Whether nobody waits for the command any more."""
        return self.until is not None and self.until.is_set()

    def _take(self, data: bytes) -> None:
        if self.on_data is not None:
            self.on_data(data)
            return
        self._out += data
        if self.on_lines is None:
            return
        end = self._out.rfind(b"\n", len(self._out) - len(data)) + 1
        if end:
            lines = bytes(self._out[:end])
            del self._out[:end]
            self.on_lines(lines)

    def _feed(self) -> None:
        source = self.command.stdin
        chunks: Iterable[bytes] = (source,) if isinstance(source, bytes) else source or ()
        try:
            if self.request.preface:
                self.channel.send(STDIN, self.request.preface)
            for chunk in written(chunks) if self.request.written else chunks:
                if chunk:
                    self.channel.send(STDIN, chunk)
            if self.request.closes:
                self.channel.send(CLOSE, bytes([STDIN]))
        except ChannelLost:
            # The command ended without reading all of it; its exit code tells the story.
            return
        except BaseException as error:  # noqa: BLE001 - handed to the calling thread, which raises it
            self._feed_error = error
            self.channel.hang_up()


def login_shell(term: str) -> str:
    """The text that gives a person a shell in a container: bash where it is there."""
    kind = f"TERM={shlex.quote(term)}; export TERM; " if term else ""
    return (
        f'{kind}if command -v bash >/dev/null 2>&1; then exec bash -l; else exec "${{SHELL:-/bin/sh}}" -l; fi'
    )
