"""The command line and the providers without the wait for their imports: a process that has made them forks
one for each call.

Each call is a process of its own, with the folder, the environment, the streams and the end that the
console script would have; what differs is the command line that others see of it, and that the interpreter
does not begin anew, nor takes apart what it holds at the end. `anew` tells for which calls it has to.

The engine starts providers by an interpreter's name, or by that of a script beside it: `Interpreter` is a
folder with both, whose interpreter has providers forked and starts all else as it is.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# What verbs load when they are called. No SDK of a cloud: some tests hide those.
_VERBS_LOAD = """
orch.cli.main orch.cli.apply orch.cli.doctor orch.cli.fleets.fleet orch.cli.offers orch.cli.fleets.preview
orch.cli.fleets.provision orch.cli.fleets.up
orch.cli.show
orch.cli.nodes.check orch.cli.targets.nodes orch.cli.output.fleet orch.review.tree
orch.cli.output.review orch.cli.output.run orch.cli.output.untrusted
orch.stacks.provisioning.operations orch.rehearsal.project orch.runner.runs.lifecycle orch.runner.ssh.pool
orch.runner.ledger.ledger orch.runner.hosts.survey orch.catalog.load orch.components.registry.planning
orch.components.aws.backend orch.components.gcp.backend orch.components.local.resources
orch.components.ssh.resources
orch.spec.models.backends.azure orch.spec.models.backends.crusoe orch.spec.models.backends.kubernetes
orch.spec.models.backends.lambda_ orch.spec.models.backends.nebius orch.spec.models.backends.oci
orch.spec.models.backends.runpod orch.spec.models.backends.ssh orch.stacks.runs.nodes_for_runs
orch.ci.comments orch.ci.drift orch.ci.findings orch.ci.github orch.ci.gitlab orch.ci.pipeline github gitlab
jinja2 pulumi.automation._server rich.console rich.table sqlalchemy.dialects.sqlite typer.rich_utils
"""
LOADED = (*_VERBS_LOAD.split(), str(Path(__file__).with_name("transit.py")))

# What its SDK imports when it is first called, and the methods of the simulated account.
NEBIUS = (
    *("nebius.sdk", "nebius.aio.service_error", "nebius.base.protos.json_format", "nebius.aio.token.options"),
    *(f"nebius.api.nebius.{each}" for each in ("common.v1", "compute.v1", "vpc.v1")),
    *(f"nebius.api.nebius.{each}" for each in ("iam.v1", "iam.v2", "capacity.v1", "quotas.v1")),
    *(f"orch.rehearsal.nebius.api.{each}" for each in ("identity", "vpc", "compute", "instances", "billing")),
)

# What serves our own resources and the simulated clouds. None of Google's libraries: protobuf takes either
# them or the SDK of providers.
PROVIDERS = (
    *("orch.providers.orch.plugin", "orch.providers.orch.keys", "orch.providers.orch.local_network"),
    *("orch.providers.orch.local_node", "orch.providers.orch.ssh_host"),
    *("orch.rehearsal.aws.plugin", "orch.rehearsal.aws.data.tables", "orch.rehearsal.gcp.plugin"),
    *("orch.rehearsal.nebius.plugin", "orch.rehearsal.nebius.data.tables", *NEBIUS),
    *("httpx", "orch.rehearsal.crusoe.plugin", "orch.rehearsal.crusoe.data.tables"),
    *(f"orch.rehearsal.crusoe.api.{each}" for each in ("catalog", "networks", "storage", "instances")),
    *("orch.rehearsal.lambda_.plugin", "orch.rehearsal.lambda_.data.tables"),
    *("orch.rehearsal.lambda_.api.instances", "orch.rehearsal.lambda_.api.resources"),
)

# What the interpreter or an import reads, once.
_READ_AT_START = ("PYTHON", "LANG", "LC_", "TZ", "LD_", "GRPC_", "OTEL_", "PULUMI_")
_READ_AT_START += (
    "TERMINAL_",
    "FORCE_COLOR",
    "PY_COLORS",
    "TYPER_",
    "_TYPER_STANDARD",
    "_TYPER_FORCE",
)


def anew(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a call needs an interpreter of its own: it writes over its arguments (`--env`), it tells others
    which one to start (`engine env`), or its environment says what is read at the start."""
    if tuple(words[:2]) == ("engine", "env") or any(word.startswith(("-e", "--env")) for word in words):
        return True
    own = {**os.environ}
    changed = (name for name in {*own, *environment} if own.get(name) != environment.get(name))
    return any(name.startswith(_READ_AT_START) for name in changed)


class ForkCalls:
    """Calls through a process that forks, which listens at an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def call(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        timeout: float = 300,
        *,
        code: str = "",
        stdin: int | None = None,
    ) -> tuple[int, str, str]:
        """Exit code (negative: the signal), what it printed, and what it told. Raises TimeoutExpired.

        With `code` it is that which runs, with the words as its `sys.argv`, and not the command line. `stdin`
        is closed here.
        """
        asked = {"words": [*words], "folder": str(folder), "environment": {**environment}}
        out, err = os.pipe(), os.pipe()
        asked |= {"code": code} if code else {}
        read = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
        with self._line(asked, (read, out[1], err[1])) as line:
            return _follow(line, out[0], err[0], [*words], timeout)

    def start(
        self,
        code: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[int, int, int],
        folder: Path | None = None,
    ) -> Forked:
        """Run code, or without it the command line, in a session of its own, with streams that are closed
        here; in this folder unless another is given."""
        asked: dict[str, object] = {"words": [*words], "folder": str(folder or os.getcwd()), "session": True}
        asked |= {"code": code} if code else {}
        return Forked(self._line({**asked, "environment": {**environment}}, streams))

    def _line(self, asked: Mapping[str, object], streams: tuple[int, int, int]) -> socket.socket:
        """Ask for a fork; where its PID and its exit code are told. The streams are closed here."""
        line = socket.socket(socket.AF_UNIX)
        line.connect(self.address)
        text = json.dumps(asked).encode()
        socket.send_fds(line, [len(text).to_bytes(8, "big")], streams)
        line.sendall(text)
        for each in streams:
            os.close(each)
        return line


class ForkServer(ForkCalls):
    """A process that forks, and calls through it. It ends with the process that started it.

    `loaded` are the modules that it imports when it is first asked, and files that it runs. Engines of the
    command line have their providers forked as well when it is given an `interpreter` for them.
    """

    def __init__(self, loaded: Sequence[str] = LOADED, interpreter: str = "") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="orch-fork-")
        super().__init__(f"{self._folder.name}/s")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.address)
        listener.listen(64)
        ours, theirs = socket.socketpair()
        self._alive = ours
        self._process = subprocess.Popen(
            [
                *(sys.executable, __file__, str(listener.fileno()), str(theirs.fileno())),
                *(",".join(loaded), interpreter),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(listener.fileno(), theirs.fileno()),
        )
        listener.close()
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        """End it; what it forked goes on."""
        self._alive.close()
        self._process.wait()
        self._folder.cleanup()


class Forked:
    """One that was started and goes on."""

    def __init__(self, line: socket.socket) -> None:
        self._told = line.makefile()
        line.close()
        self.pid = int(self._told.readline())

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def ends(self, timeout: float | None = None) -> bool:
        """Whether it ends in time."""
        ready = select.poll()  # `select` takes no file whose number is 1024 or more
        ready.register(self._told, select.POLLIN)
        return bool(ready.poll(None if timeout is None else timeout * 1000))

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal. It is killed when it does not end in time."""
        if not self.ends(timeout):
            self.send_signal(signal.SIGKILL)
        with self._told:
            return int(self._told.readline())


def _follow(
    line: socket.socket, out: int, err: int, words: list[str], timeout: float
) -> tuple[int, str, str]:
    """Read both streams to their ends, and the PID and the exit code from the line."""
    read: dict[int, bytearray] = {out: bytearray(), err: bytearray(), line.fileno(): bytearray()}
    end = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for each in read:
            selector.register(each, selectors.EVENT_READ)
        try:
            while selector.get_map():
                left = end - time.monotonic()
                if left <= 0:
                    raise subprocess.TimeoutExpired(words, timeout, bytes(read[out]), bytes(read[err]))
                for key, _ in selector.select(left):
                    more = os.read(key.fd, 1 << 16)
                    read[key.fd] += more
                    if not more:
                        selector.unregister(key.fd)
        except BaseException:  # an interrupt, the test's own time limit
            _kill(bytes(read[line.fileno()]))
            raise
        finally:
            os.close(out)
            os.close(err)
    _, code = read[line.fileno()].split()
    return int(code), _text(read[out]), _text(read[err])


def _kill(said: bytes) -> None:
    """The process that was forked, unless it has ended."""
    match said.split():
        case [pid]:
            os.kill(int(pid), signal.SIGKILL)


def _text(data: bytearray) -> str:
    return io.TextIOWrapper(io.BytesIO(data)).read()


class Interpreter:
    """A folder with the interpreter and the scripts that an engine starts providers by.

    Its interpreter asks a process that has their imports for a fork, passes on how that ends, and takes it
    along when it is killed; the fork's parent is the engine by all that it can see.
    """

    def __init__(self) -> None:
        self._server = ForkServer(PROVIDERS)
        self._folder = tempfile.TemporaryDirectory(prefix="orch-python-")
        folder = Path(self._folder.name)
        ours = f'exec "{sys.executable}" -IS "{Path(__file__).with_name("forked_provider.py")}"'
        head = f'#!/bin/sh\n{ours} "{self._server.address}" "{sys.executable}"'
        scripts = {"python": '"$@"'}
        for package, module in (("orch", "providers.orch"), ("kubernetes", "components.kubernetes")):
            serve = f"from orch.{module}.plugin import main; main()"
            scripts[f"pulumi-resource-{package}"] = f'-c "{serve}" "$@"'
        for name, words in scripts.items():
            (folder / name).write_text(f"{head} {words}\n")
            (folder / name).chmod(0o755)
        self.executable = str(folder / "python")
        atexit.register(self._folder.cleanup)


GIVEN: dict[str, str] = {}
"""What the process that started this one has: its interpreter, and by what they load where servers listen."""


@functools.cache
def interpreter() -> str:
    """For processes whose engines start providers: one that has those forked."""
    return GIVEN.get("interpreter") or Interpreter().executable


@functools.cache
def server_of(loaded: tuple[str, ...] = LOADED) -> ForkCalls:
    """The one with these modules, from its first call on: one for all processes of a run of the tests."""
    address = GIVEN.get(",".join(loaded))
    return ForkCalls(address) if address else ForkServer(loaded, interpreter())


def given(*loaded: tuple[str, ...]) -> dict[str, str]:
    """What processes of tests are given, so that what a server imports is imported once for them all."""
    return {"interpreter": interpreter()} | {",".join(each): server_of(each).address for each in loaded}


# In the process that forks


def _serve(listener: socket.socket, alive: socket.socket, loaded: Sequence[str]) -> dict[str, Any]:
    """Answer until the caller has ended; in each process that is forked, return what it is to do."""
    if alive not in select.select([listener, alive], [], [])[0]:
        for name in loaded:
            runpy.run_path(name) if name.endswith(".py") else importlib.import_module(name)
        if "orch.cli.main" in loaded:
            verbs = importlib.import_module("orch.cli.verbs")
            for verb in verbs.VERBS:
                verbs.load(verb.name)
            verbs.commands()
            importlib.import_module("orch.catalog.load").catalog()
        gc.collect()
        gc.freeze()  # else each fork copies all of it when it ends
    lines: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake)
    with selectors.DefaultSelector() as selector:
        for each in (listener, alive, woken):
            selector.register(each, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if alive.fileno() in ready:
                os._exit(0)
            if woken in ready:
                os.read(woken, 4096)
                _tell_ends(lines)
            if listener.fileno() not in ready:
                continue
            line, _ = listener.accept()
            asked, streams = _receive(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for target, source in enumerate(streams):
                    os.dup2(source, target)
                for each in (*streams, woken, wake):
                    os.close(each)
                for each in (listener, alive, line, *lines.values()):
                    each.close()
                return asked
            for each in streams:
                os.close(each)
            lines[pid] = line
            try:
                line.sendall(f"{pid}\n".encode())
            except OSError:  # who asked has gone
                os.kill(pid, signal.SIGKILL)


def _receive(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size, streams, _, _ = socket.recv_fds(line, 8, 3)
    with line.makefile("rb") as reader:
        return json.loads(reader.read(int.from_bytes(size, "big"))), streams


def _tell_ends(lines: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            line = lines.pop(ended[0])
            with line, contextlib.suppress(OSError):
                line.sendall(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())


def _be_started_by(pid: int) -> None:
    """Have this process's parent be that of another one, for as long as that one is there."""

    def parent() -> int:
        try:
            # After its name, which may hold anything.
            state, found, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            return 1
        return 1 if state == "Z" else int(found)

    os.getppid = parent


def _read_again() -> None:
    """What Typer read of the environment when it was imported, and calls of workflows have another one of."""
    if typer := sys.modules.get("typer.rich_utils"):
        names = ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS")
        coloured = True if any(map(os.environ.get, names)) else None
        typer.FORCE_TERMINAL = False if typer._TYPER_FORCE_DISABLE_TERMINAL else coloured  # type: ignore[attr-defined]


def _main() -> None:
    listener, alive = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    loaded, interpreter = sys.argv[3].split(","), sys.argv[4]
    sys.path[0] = str(Path(sys.executable).parent)  # as for the console script
    asked = _serve(listener, alive, loaded)
    os.environ.clear()
    os.environ.update(asked["environment"])
    _read_again()
    os.chdir(asked["folder"])
    sys.argv = asked["words"]
    if "pid" in asked:
        os.umask(asked["umask"])
        _be_started_by(asked["pid"])
    if "session" in asked:
        os.setsid()
    try:
        if "code" in asked:
            exec(asked["code"], {"__name__": "__main__"})
            sys.exit()
        sys.executable = interpreter or sys.executable
        from orch.cli.main import main

        sys.exit(main())  # type: ignore[func-returns-value]
    except SystemExit as end:
        _end(end.code)
        raise


def _end(code: object) -> None:
    """End as the interpreter does, but for taking apart what the server had imported: that copies each page
    of it, which is more than half of a short command. Returns where the interpreter has something to say."""
    if not (code is None or isinstance(code, int)):
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (AttributeError, OSError, ValueError):
        return
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    _main()
