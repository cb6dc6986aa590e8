"""A Slurm of Debian's packages on this machine, as somebody to be compared with. Needs root."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_CONFIG = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MaxJobCount=20000
NodeName=DEFAULT CPUs=1 RealMemory=1000
NodeName=n[0-{last}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}]
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=NO
"""


class Slurm:
    """A cluster of this many nodes of one CPU; each is a slurmd on this machine. Up inside `with`."""

    def __init__(self, folder: Path, *, nodes: int) -> None:
        self._folder, self._nodes = folder, nodes
        self._munged: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Slurm:
        missing = [name for name in ("slurmctld", "slurmd", "munged") if _program(name) is None]
        if missing:
            sys.exit(f"{', '.join(missing)} is not on this machine: `apt-get install slurm-wlm munge`")
        folder = self._folder
        (folder / "state").mkdir(parents=True)
        ports = _free_ports(self._nodes + 1)
        text = _CONFIG.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            port=ports[-1],
            last=self._nodes - 1,
            first_port=ports[0],
            last_port=ports[self._nodes - 1],
        )
        (folder / "slurm.conf").write_text(text)
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _start(self) -> None:
        self._start_munge()
        for index in range(self._nodes):
            (self._folder / f"spool-n{index}").mkdir()
        self._daemon("slurmctld")
        for index in range(self._nodes):
            self._daemon("slurmd", "-N", f"n{index}")
        self.wait_until_idle()

    def _end(self) -> None:
        daemons: list[int] = []
        for file in self._folder.glob("slurm*.pid"):
            with suppress(ValueError, OSError):
                daemons.append(int(file.read_text()))
        for pid in daemons:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        # They write their state at the end, into a folder that is about to be removed.
        for _ in range(300):
            if not any(Path(f"/proc/{pid}").exists() for pid in daemons):
                break
            time.sleep(0.1)
        if self._munged is not None:
            self._munged.terminate()
            self._munged.wait()

    def wait_until_idle(self) -> None:
        """Wait until jobs can begin on all nodes."""
        for _ in range(600):
            if self.call("sinfo", "--noheader", "--states=idle", "--format=%D").strip() == str(self._nodes):
                return
            time.sleep(0.1)
        sys.exit(f"Slurm's nodes are not idle:\n{(self._folder / 'slurmctld.log').read_text()[-2000:]}")

    @property
    def version(self) -> str:
        return " ".join(self.call("sinfo", "--version").split()).replace("slurm-wlm", "Slurm")

    def call(self, name: str, *words: str) -> str:
        """Output of a command of Slurm that must succeed."""
        done = subprocess.run([name, *words], env=self.env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name} {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self._folder / "slurm.conf")}

    def _daemon(self, name: str, *words: str) -> None:
        config = str(self._folder / "slurm.conf")
        done = subprocess.run(
            [str(_program(name)), "-f", config, *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{name} does not start:\n{done.stdout}{done.stderr}")

    def _start_munge(self) -> None:
        """A daemon of its own with a key of its own, as this user."""
        place = self._folder / "munge"
        place.mkdir(mode=0o700)
        key, socket_file = place / "key", self._folder / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"pid-file": place / "pid", "log-file": place / "log", "seed-file": place / "seed"}
        self._munged = subprocess.Popen(
            [
                *(str(_program("munged")), "--foreground", "--force"),
                *(f"--key-file={key}", f"--socket={socket_file}"),
                *(f"--{option}={path}" for option, path in files.items()),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(100):
            if socket_file.exists():
                return
            time.sleep(0.1)
        sys.exit("munged did not come up")


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(count: int) -> range:
    """Neighbouring ports that nobody listens on, below those that the kernel gives away."""
    for first in range(20_000, 30_000, count):
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return range(first, first + count)
    sys.exit("there are no free ports")
