"""A second way to have nodes: each is a folder of this machine, and a rank's job is a process in it.

What a container that is the node itself comes to, without the container: no SSH, no Docker, no address.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kit.engine.forkserver import Forked
from kit.support import ROOT, code_of, fork_server, free_port

from orch.runner.connect import ConnectorByKind
from orch.runner.errors import CommandTimeout, HostUnreachable, NodesBusy, RunnerError
from orch.runner.events import Processor
from orch.runner.node.registry import RegistryLogin
from orch.runner.node.runtime import WHOLE_LOG, CloudNotice, FilesMissing, LogPart, ObservedRank, StartedRank
from orch.runner.node_api.claims import Claim
from orch.runner.node_api.commands import NODE_HOME, Command
from orch.runner.node_api.connector import Address, Completed, Connector, NodeResult
from orch.runner.plan.run_plan import RunPlan
from orch.spec.access import OtherAccess
from orch.spec.state import FleetState, NodeState

_START = """\
mkdir -p {home}/claims
ln -s {claim} {home}/claims/0 2>/dev/null ||
  case $(readlink {home}/claims/0) in {name}'|'*) ;; *) exit 40;; esac
# A killed start leaves its claim and some of its files; the log is there once the job begins.
[ ! -e {stage}/log ] || exit 0
rm -rf {stage}
lacks=
for tree in {trees}; do [ -e {home}/files/trees/$tree ] || {{ echo $tree; lacks=1; }}; done
[ -z "$lacks" ] || {{ echo have; ls -1t {home}/files/trees 2>/dev/null; rm {home}/claims/0; exit 49; }}
mkdir -p {stage}/state {stage}/files && tar -xf - -C {stage} || exit 42
printf '%s\n' {trees} > {stage}/trees
index=0
for tree in {trees}; do ln -s {home}/files/trees/$tree {stage}/files/$index; index=$((index + 1)); done
for file in entry.sh job.sh env hostfile session.sh; do sed -i s,/run/orch,{stage},g {stage}/$file; done
stamped() {{ while IFS= read -r line; do echo "$(date -u +%Y-%m-%dT%H:%M:%S.%NZ) $line"; done; }}
: > {stage}/log
{{
  (setsid sh -c 'echo $$ > {stage}/pid; exec sh {stage}/entry.sh' 2>&1; echo $? > {stage}/ending) |
    (stamped >> {stage}/log; mv {stage}/ending {stage}/exit)
}} </dev/null >/dev/null 2>&1 &
"""


def driver(dot: Path, ledger: str, run: str, delay_s: float) -> Forked:
    """A process that drives a run, in a session of its own."""
    words = ["drive_folders.py", str(dot), ledger, run, str(delay_s)]
    streams = (os.open(os.devnull, os.O_RDONLY), os.dup(1), os.dup(2))
    code = code_of(ROOT / "tests/runner/drive_folders.py")
    return fork_server().start(code, words, os.environ, streams)


def folder_of(node: NodeState) -> Path:
    assert isinstance(node.access, OtherAccess)
    return Path((node.access.model_extra or {})["folder"])


def _pass_on(listener: socket.socket, port: int) -> None:
    """Connections to `listener` end at a port of this machine."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:
            client.close()
            continue
        for ends in ((client, server), (server, client)):
            threading.Thread(target=copy, args=ends, daemon=True).start()


class FolderConnector:
    """Commands of a node run here, with its folder in place of a node's own."""

    def run(
        self,
        node: NodeState,
        command: Command,
        *,
        deadline_s: float | None = None,
        connect_timeout_s: float | None = None,
        on_lines: Callable[[bytes], None] | None = None,
        on_data: Callable[[bytes], None] | None = None,
        until: threading.Event | None = None,
    ) -> Completed:
        del deadline_s, connect_timeout_s
        folder, began = folder_of(node), time.monotonic()
        if not folder.is_dir():
            raise HostUnreachable(f"node {node.name} cannot be reached", where=str(folder))
        text = command.text.replace(NODE_HOME, str(folder))
        with subprocess.Popen(
            ["sh", "-c", f'sudo() {{ shift; "$@"; }}\n{text.replace("exec sudo", "sudo")}'],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            given = command.stdin
            with suppress(BrokenPipeError):
                for chunk in (given,) if isinstance(given, bytes) else given or ():
                    process.stdin.write(chunk)
                process.stdin.close()
            over = threading.Event()
            guard = threading.Thread(target=self._end, args=(process, command, until, over), daemon=True)
            guard.start()
            lines: list[str] = []
            while on_data is not None and (data := process.stdout.read1(1 << 16)):
                on_data(data)
            rest = b""
            while on_lines is not None and (data := process.stdout.read1(1 << 16)):
                whole, end, rest = (rest + data).rpartition(b"\n")
                if end:
                    on_lines(whole + end)
            if rest and on_lines is not None and not (until is not None and until.is_set()):
                on_lines(rest + b"\n")
            lines += [line.decode() for line in process.stdout]
            errors = process.stderr.read().decode()
            code = process.wait()
            over.set()
        seconds = time.monotonic() - began
        if until is not None and until.is_set():
            code = -1
        elif command.timeout_s is not None and seconds > command.timeout_s:
            raise CommandTimeout(f"a command on node {node.name} took too long", where=str(folder))
        return Completed(node.name, command, code, "".join(lines), errors, seconds)

    @staticmethod
    def _end(
        process: subprocess.Popen[bytes],
        command: Command,
        until: threading.Event | None,
        over: threading.Event,
    ) -> None:
        """End a command that takes too long, or that nobody waits for."""
        end = time.monotonic() + (command.timeout_s or 3600.0)
        while not over.wait(0.05):
            if time.monotonic() > end or (until is not None and until.is_set()):
                process.kill()
                return

    def send(self, node: NodeState, source: Path, target: str) -> None:
        shutil.copy(source, folder_of(node) / target)

    def receive(self, node: NodeState, source: str, target: Path) -> None:
        shutil.copy(folder_of(node) / source, target)

    @contextmanager
    def forward(self, node: NodeState, port: int, *, listener: socket.socket | None = None) -> Iterator[int]:
        """The node is this machine: `port` itself where any will do."""
        del node
        if listener is None:
            yield port
            return
        with listener:
            threading.Thread(target=_pass_on, args=(listener, port), daemon=True).start()
            yield listener.getsockname()[1]
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)

    def terminal(self, node: NodeState, folder: Path, more: Sequence[str]) -> list[str]:
        del folder
        return ["env", "-C", str(folder_of(node)), "sh", *more]

    def command_line(self, node: NodeState, folder: Path, text: str, *, terminal: bool) -> list[str]:
        del folder, terminal
        return ["sh", "-c", text.replace(NODE_HOME, str(folder_of(node)))]

    def address(self, node: NodeState) -> Address:
        return Address(str(folder_of(node)))

    def drop(self, node: NodeState) -> None:
        del node

    def close(self) -> None: ...

    def hang_up(self) -> None: ...


class FolderRuntime:
    """A rank's job is a process group of its node."""

    def provide_image(
        self,
        connector: Connector,
        nodes: Sequence[NodeState],
        image: str,
        processor: Processor,
        login: RegistryLogin | None = None,
    ) -> tuple[NodeResult[None], ...]:
        del connector, image, processor, login
        return tuple(NodeResult(node) for node in nodes)

    def start(
        self, connector: Connector, plan: RunPlan, rank: int, archive: Iterable[bytes], *, begin: bool
    ) -> StartedRank:
        del begin  # each waits at its barrier
        name = plan.container(rank)
        claim = Claim.now(name, plan.run, plan.ranks[rank].node.blocks).line
        trees = tuple(file.tree for file in plan.files)
        text = _START.format(
            home=NODE_HOME,
            stage=_stage(plan, rank),
            name=name,
            claim=shlex.quote(claim),
            trees=shlex.join(trees),
        )
        done = self._run(connector, plan, rank, text, b"".join(archive))
        if done.exit_code == 49:
            lacks, _, have = done.stdout.partition("have")
            trees, present = tuple(lacks.split()), tuple(have.split())
            raise FilesMissing("files are missing", where=done.node, trees=trees, present=present)
        if done.exit_code == 40:
            raise NodesBusy(f"node {done.node} is busy with another run", where=done.node)
        if not done.ok:
            raise RunnerError(f"rank {rank} could not be started", where=done.node, detail=done.stderr)
        return StartedRank(rank, free_port() if rank == 0 else None, (0,))

    def lift_barrier(self, connector: Connector, plan: RunPlan, rank: int, port: int | None) -> None:
        line = shlex.quote(f"export MASTER_PORT={port}")
        stage = _stage(plan, rank)
        self._run(connector, plan, rank, f"echo {line} > {stage}/go.new && mv {stage}/go.new {stage}/go")

    def observe(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> ObservedRank:
        text = (
            f"cd {_stage(plan, rank)} 2>/dev/null && [ -e log ] || {{ echo absent; exit; }}\n"
            "if code=$(cat exit 2>/dev/null); then echo exited $code; else echo running -; fi\n"
            "for mark in go state/started stopping interrupted signalled; do\n"
            "[ ! -e $mark ] || echo ${mark#state/}; done\n"
            f"[ ! -s {NODE_HOME}/notice ] || echo notice=$(tr ' ' @ < {NODE_HOME}/notice)"
        )
        try:
            words = self._run(connector, plan, rank, text).stdout.split()
        except HostUnreachable as error:
            return ObservedRank(rank, "silent", detail=error.summary)
        if words[0] == "absent":
            return ObservedRank(rank, "absent")
        state, code, *marks = words
        notice = CloudNotice.found(" ".join(marks))
        exit_code = None if code == "-" else int(code)
        return ObservedRank(rank, state, exit_code, marks=frozenset(marks), notice=notice)

    def signal(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> None:
        assert plan.signal is not None
        stage = _stage(plan, rank)
        text = f"mkdir {stage}/signalled && pkill -{plan.signal.name} -g $(cat {stage}/pid)"
        self._run(connector, plan, rank, text)

    def stop(
        self,
        connector: Connector,
        plan: RunPlan,
        rank: int,
        *,
        kill: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        sign = "KILL" if kill else "TERM"
        stage = _stage(plan, rank)
        # By the job's first process, which may not run yet; somebody else may remove the job meanwhile.
        written = f"until [ -s pid ] || [ ! -e {stage} ]; do sleep 0.05; done"
        text = f"cd {stage} && mkdir -p stopping && {written} && kill -{sign} -$(cat pid)"
        self._run(connector, plan, rank, text)

    def remove(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> None:
        self._run(connector, plan, rank, f"rm -rf {_stage(plan, rank)} {NODE_HOME}/claims/0")

    def hold(self, connector: Connector, plan: RunPlan, rank: int) -> None:
        self._run(connector, plan, rank, f"touch -h {NODE_HOME}/claims/0")

    def read_log(
        self,
        connector: Connector,
        plan: RunPlan,
        rank: int,
        on_lines: Callable[[bytes], object],
        part: LogPart = WHOLE_LOG,
        *,
        deadline_s: float | None = None,
        until: threading.Event | None = None,
    ) -> bool:
        def tell(lines: bytes) -> None:
            for line in [lines] if part.since is None else lines.splitlines(keepends=True):
                if part.since is None or line >= part.since.encode():
                    on_lines(line)

        stage = _stage(plan, rank)
        log = f"{stage}/log"
        first = f"-n +{part.skip + 1}" if part.tail is None else f"-n {part.tail}"
        # The stamps are written by a process that outlives the job by a moment; readers may be killed.
        ended = f"[ -e {stage}/exit ] || [ ! -e {stage} ]"
        ends = f"(until {ended}; do sleep 0.1; done) & p=$!\n" if part.follow else ""
        text = (
            f"[ -e {log} ] || exit 44\n{ends}tail {first} {'-f -s 0.1 --pid=$p' if part.follow else ''} {log}"
        )
        command = Command(text, "read the log", timeout_s=None)
        done = connector.run(plan.ranks[rank].node, command, on_lines=tell, until=until)
        return done.exit_code != 44

    def read_path(
        self, connector: Connector, plan: RunPlan, rank: int, path: str, on_data: Callable[[bytes], None]
    ) -> bool:
        folder, _, name = path.rpartition("/")
        text = (
            f"[ -e {shlex.quote(path)} ] || exit 44; tar -cf - -C {shlex.quote(folder)}/ {shlex.quote(name)}"
        )
        command = Command(text, "read a path", timeout_s=None)
        done = connector.run(plan.ranks[rank].node, command, on_data=on_data)
        if done.exit_code not in (0, 44):
            raise RunnerError("it cannot be read", where=done.node, detail=done.stderr)
        return done.ok

    def write_path(
        self, connector: Connector, plan: RunPlan, rank: int, path: str, archive: Iterable[bytes]
    ) -> None:
        text = f"mkdir -p {shlex.quote(path)} && tar -xf - -C {shlex.quote(path)}"
        done = self._run(connector, plan, rank, text, b"".join(archive))
        if not done.ok:
            raise RunnerError("it cannot be written", where=done.node, detail=done.stderr)

    def is_folder(self, connector: Connector, plan: RunPlan, rank: int, path: str) -> bool:
        return self._run(connector, plan, rank, f"[ -d {shlex.quote(path)} ]").ok

    def job_command(
        self, plan: RunPlan, rank: int, text: str, *, root: bool = False, terminal: bool = False
    ) -> str:
        del root, terminal
        return f"exec {shlex.join(['sh', f'{_stage(plan, rank)}/session.sh', text])}"

    def job_process(self, plan: RunPlan, rank: int) -> str:
        return f"cat {_stage(plan, rank)}/pid"

    def health_check(self) -> str:
        return ":"

    def _run(
        self, connector: Connector, plan: RunPlan, rank: int, text: str, stdin: bytes | None = None
    ) -> Completed:
        return connector.run(plan.ranks[rank].node, Command(text, f"rank {rank}", stdin=stdin))


def _stage(plan: RunPlan, rank: int) -> str:
    return f"{NODE_HOME}/runs/{plan.container(rank)}"


def targets(folder: Path, name: str) -> list[Path]:
    """A file of this name for each of two ranks, where both nodes may place a file of the task.

    Both ranks place both files, for both nodes are this machine, and `cp` cannot create a file twice at once.
    """
    found = [folder / f"target-{rank}" / name for rank in range(2)]
    for file in found:
        file.parent.mkdir()
        file.touch()
    return found


@dataclass
class FolderLab:
    """Two such nodes, and what reaches them."""

    path: Path
    connector: ConnectorByKind = field(default_factory=lambda: ConnectorByKind({"folder": FolderConnector}))

    def node(self, index: int) -> NodeState:
        folder = self.path / f"node-{index}"
        folder.mkdir(exist_ok=True)
        return NodeState.model_validate(
            {
                "index": index,
                "name": f"box-{index}",
                "access": {"kind": "folder", "folder": str(folder)},
                "runtime": "folder",
                "internal_ip": f"127.0.0.{index + 1}",
                "cpus": 2,
                "memory_mib": 2048,
            }
        )

    def end(self) -> None:
        """End what a test that failed has left at work."""
        for file in self.path.glob("*/runs/*/pid"):
            with suppress(ProcessLookupError, ValueError):
                os.killpg(int(file.read_text()), signal.SIGKILL)

    def fleet(self) -> FleetState:
        return FleetState(
            name="boxes",
            stack="boxes",
            backend="local",
            placement="cluster",
            nodes=(self.node(0), self.node(1)),
            image="none",
        )
