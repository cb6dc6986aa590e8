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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kit.engine.forkserver import LOADED, NEBIUS, Forked, server_of
from kit.support import ROOT

_CLOUDS = ("aws", "crusoe", "gcp", "lambda_", "nebius", "runpod")


def _modules(cloud: str) -> Iterator[str]:
    """The modules of a cloud's backend and of its simulated account."""
    yield f"orch.components.{cloud}.backend"
    for file in sorted((ROOT / "rehearsal" / cloud).rglob("*.py")):
        if file.stem != "plugin" and file.parent.name != "resources":
            yield ".".join(("orch", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


LIBRARIES = (
    *LOADED,
    *(f"orch.components.{each}.account.gather_facts" for each in ("aws", "gcp")),
    *(f"orch.components.{each}.resources" for each in _CLOUDS),
    *(name for cloud in _CLOUDS for name in _modules(cloud)),
    *("orch.components.kubernetes.backend", "orch.components.local.backend"),
    *("orch.rehearsal.nodes.containers", "orch.rehearsal.http_service", "orch.catalog.refresh"),
    *("orch.cli.output.live", "orch.stacks.volumes.operations", "orch.runner.runs.read_logs"),
    *("boto3.session", "google.auth.credentials", "google.cloud.compute_v1", "grpc._server"),
    *("httpx", "pydantic.type_adapter", "requests", *NEBIUS),
    str(Path(__file__).with_name("warmed.py")),
)


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
