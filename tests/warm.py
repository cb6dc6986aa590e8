"""The command line in a process of its own that has its libraries already: a fork of one that waits.

Most of a short command is an interpreter that reads the clouds' SDKs, two seconds of three on GCP. What a
command does here is what it does when `orch` is started, from its `main` to its exit code.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from forkserver import LOADED, interpreter

# The clouds' SDKs, and the accounts of a rehearsal.
_CLOUDS = """
orch.components.aws.account.gather_facts orch.components.aws.resources
orch.components.gcp.account.gather_facts orch.components.gcp.resources
orch.rehearsal.nodes orch.rehearsal.aws.client_hook orch.rehearsal.aws.hooks orch.rehearsal.gcp.account
orch.rehearsal.gcp.client_hook orch.rehearsal.gcp.hooks orch.rehearsal.aws.api.account_services
orch.rehearsal.aws.api.actions orch.rehearsal.aws.api.compute orch.rehearsal.aws.api.iam
orch.rehearsal.aws.api.network orch.rehearsal.aws.api.tags orch.rehearsal.gcp.api.compute
orch.rehearsal.gcp.api.methods orch.rehearsal.gcp.api.network orch.rehearsal.gcp.api.operations
orch.rehearsal.gcp.api.quotas boto3.session google.auth.credentials google.cloud.compute_v1 grpc._server
orch.catalog.refresh requests
"""
LIBRARIES = (*LOADED, *_CLOUDS.split())
LONGEST = 1 << 17
"""Bytes of what is asked: words, folder and environment."""


@dataclass
class Command:
    """One command under way, as subprocess.Popen tells it."""

    words: tuple[str, ...]
    pid: int
    _told: socket.socket
    _out: IO[bytes]
    _err: IO[bytes]
    returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it said, at its end. Raises TimeoutExpired when it had to be killed."""
        self._told.settimeout(timeout)
        try:
            self.returncode = int(self._told.recv(LONGEST))
        except BaseException as error:
            self.send_signal(signal.SIGKILL)
            if isinstance(error, TimeoutError):
                raise subprocess.TimeoutExpired(["orch", *self.words], timeout) from None
            raise
        finally:
            self._told.close()
        said: list[str] = []
        for file in (self._out, self._err):
            file.seek(0)
            said.append(file.read().decode())
            file.close()
        return said[0], said[1]


class Waiting:
    """A process that has the libraries, and starts others. It ends with this one."""

    def __init__(self) -> None:
        self._asked, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, __file__, str(its.fileno()), interpreter()]
        self._process = subprocess.Popen(words, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
        its.close()

    def start(self, words: tuple[str, ...], folder: Path, env: Mapping[str, str]) -> Command:
        """Start `orch WORDS` in a folder, in a session of its own."""
        told, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - until it is read
        asked = json.dumps({"words": words, "folder": str(folder), "env": dict(env)}).encode()
        assert len(asked) <= LONGEST
        socket.send_fds(self._asked, [asked], [out.fileno(), err.fileno(), its.fileno()])
        its.close()
        return Command(words, int(told.recv(LONGEST)), told, out, err)


@functools.cache
def waiting() -> Waiting:
    """The one of this process."""
    return Waiting()


def requests(asked: socket.socket) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """What is wanted: words, folder and environment; descriptors of its output, its errors and who waits."""
    while True:
        told, descriptors, _, _ = socket.recv_fds(asked, LONGEST, 3)
        if not told:
            return
        yield json.loads(told), descriptors


def read_services() -> None:
    """Have AWS's own descriptions of its services at hand, which each client's session reads anew."""
    from boto3.session import Session
    from botocore.loaders import JSONFileLoader

    read = functools.cache(JSONFileLoader().load_file)
    JSONFileLoader.load_file = lambda self, path: read(path)  # type: ignore[method-assign]
    session = Session("nobody", "nothing", region_name="us-east-1")
    for service in ("ec2", "service-quotas", "ssm", "sts", "iam"):
        session.client(service)


def read_libraries() -> None:
    for library in LIBRARIES:
        importlib.import_module(library)
    # Types of a cloud are read when they are first named.
    aws = importlib.import_module("pulumi_aws")
    assert aws.ec2.Instance
    assert aws.iam.Role
    assert importlib.import_module("pulumi_gcp").compute.Network
    main = importlib.import_module("orch.cli.main")
    for verb in main.VERBS:
        main.load(verb.name)
    main.commands()
    importlib.import_module("orch.catalog.load").catalog()
    importlib.import_module("orch.catalog.load").gpu_models()
    read_services()
    assert threading.active_count() == 1
    gc.freeze()


def serve(asked: socket.socket, interpreter: str) -> bool:
    """Start one command after the other. True in each of them, when the process is as it has to be."""
    read_libraries()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    for wanted, (out, err, told) in requests(asked):
        if os.fork():
            for each in (out, err, told):
                os.close(each)
            continue
        asked.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        waits = socket.socket(fileno=told)
        if pid := os.fork():
            waits.send(str(pid).encode())
            _, status = os.waitpid(pid, 0)
            with suppress(BrokenPipeError):
                waits.send(str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)
        waits.close()
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, each in enumerate((out, err), 1):
            os.dup2(each, number)
            os.close(each)
        os.chdir(wanted["folder"])
        os.environ.clear()
        os.environ.update(wanted["env"])
        sys.argv = [str(Path(sys.executable).parent / "orch"), *wanted["words"]]
        sys.executable = interpreter
        return True
    return False


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))
    if serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]):
        importlib.import_module("orch.cli.main").main()
