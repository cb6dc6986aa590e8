"""The command line in a process of its own that has its libraries already: a fork of one that waits.

Most of a short command is an interpreter that reads the clouds' SDKs, two seconds of three on GCP. What a
command does here is what it does when `orch` is started, from its `main` to its exit code.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kit.engine.forkserver import LOADED, NEBIUS, Forked, server_of

# The clouds' SDKs, and the accounts of a rehearsal.
_CLOUDS = """
orch.components.aws.account.gather_facts orch.components.aws.resources
orch.components.gcp.account.gather_facts orch.components.gcp.resources
orch.rehearsal.nodes orch.rehearsal.aws.client_hook orch.rehearsal.aws.hooks orch.rehearsal.gcp.account
orch.rehearsal.gcp.hooks orch.rehearsal.aws.api.account_services
orch.rehearsal.aws.api.actions orch.rehearsal.aws.api.compute orch.rehearsal.aws.api.iam
orch.rehearsal.aws.api.network orch.rehearsal.aws.api.tags orch.rehearsal.gcp.api.compute
orch.rehearsal.gcp.api.methods orch.rehearsal.gcp.api.network orch.rehearsal.gcp.api.operations
orch.rehearsal.gcp.api.quotas boto3.session google.auth.credentials google.cloud.compute_v1 grpc._server
orch.catalog.refresh requests
orch.components.nebius.backend orch.components.nebius.resources orch.rehearsal.nebius.hooks
"""
LIBRARIES = (*LOADED, *_CLOUDS.split(), *NEBIUS, str(Path(__file__).with_name("warmed.py")))


@dataclass
class Command:
    """One command under way, as subprocess.Popen tells it."""

    words: tuple[str, ...]
    _forked: Forked
    _out: IO[bytes]
    _err: IO[bytes]
    returncode: int | None = None

    @property
    def pid(self) -> int:
        return self._forked.pid

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            self._forked.send_signal(number)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it said, at its end. Raises TimeoutExpired when it had to be killed."""
        try:
            late = not self._forked.ends(timeout)
        except BaseException:
            self.send_signal(signal.SIGKILL)
            raise
        self.returncode = self._forked.wait(0)
        if late:
            raise subprocess.TimeoutExpired(["orch", *self.words], timeout)
        said: list[str] = []
        for file in (self._out, self._err):
            file.seek(0)
            said.append(file.read().decode())
            file.close()
        return said[0], said[1]


def start(words: tuple[str, ...], folder: Path, env: Mapping[str, str]) -> Command:
    """Start `orch WORDS` in a folder, in a session of its own."""
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - until it is read
    streams = (os.open(os.devnull, os.O_RDONLY), os.dup(out.fileno()), os.dup(err.fileno()))
    orch = str(Path(sys.executable).parent / "orch")
    return Command(words, server_of(LIBRARIES).start("", [orch, *words], env, streams, folder), out, err)
