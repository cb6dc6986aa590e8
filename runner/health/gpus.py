"""NVIDIA GPUs of a node when one of them fails: what the kernel told, evidence, and their reset.

Which of the kernel's messages are faults of the hardware is the table of `xids`; of those not in it nothing
is decided.
"""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orch.runner.errors import RunnerError
from orch.runner.health.readers.xids import RECOVERY, XIDS, Action, Xid, short_pci, xids_in
from orch.runner.node_api.commands import NODE_HOME, Command, as_root
from orch.runner.node_api.connector import Completed
from orch.runner.private import private_folder
from orch.templates import render

TOOL_S = 120
"""How long one tool may take; `dcgmi diag -r 1` takes less than a minute, a bug report one or two."""
LOOK_S = 30
RESET_S = 300
MOST_MIB = 32
"""No file of the evidence is larger."""

BUSY = 41

EVIDENCE = frozenset(
    {
        "machine.txt",
        "nvidia-smi-q.txt",
        "nvidia-smi-L.txt",
        "gpus.csv",
        "dmesg-nvrm.txt",
        "dcgmi-diag.json",
        "dcgmi-diag.err",
        "nvidia-bug-report.log",
        "nvidia-bug-report.log.gz",
    }
)
"""Files that evidence may have; a node's archive is not trusted with other names."""


_RANK: dict[Action, int] = {"none": 0, "reset": 1, "reboot": 2, "replace": 3}


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver tells it. `ecc`: uncorrected errors since the last reset, where it counts them."""

    index: str
    uuid: str
    serial: str
    pci: str
    ecc: int | None


@dataclass(frozen=True)
class GpuLook:
    """The GPUs of a node. `present`: there is a driver's tool; `fabric`: NVSwitches join the GPUs."""

    present: bool
    gpus: tuple[Gpu, ...] = ()
    fabric: bool = False
    xids: tuple[Xid, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class Triage:
    """What the faults of a node ask for, why, and of which GPUs: indices, none for all of them."""

    action: Action
    why: str
    indices: tuple[str, ...] = ()


def look_command() -> Command:
    """Asks for the GPUs of a node; `read_look` reads the answer."""
    return Command(
        as_root(render("node-gpus.sh.j2", limit_s=LOOK_S)), "look at the GPUs", timeout_s=2.0 * LOOK_S
    )


def read_look(text: str) -> GpuLook:
    """The GPUs in a node's answer."""
    lines = text.splitlines()
    if "none" in lines:
        return GpuLook(present=False)
    gpus: list[Gpu] = []
    for line in lines:
        parts = [part.strip() for part in line.removeprefix("gpu ").split(",")]
        if line.startswith("gpu ") and len(parts) == 5 and parts[0].isdigit():
            ecc = int(parts[4]) if parts[4].isdigit() else None
            gpus.append(Gpu(parts[0], parts[1], parts[2], short_pci(parts[3]), ecc))
    kernel = [line.removeprefix("xid ") for line in lines if line.startswith("xid ")]
    trouble = " ".join(line.removeprefix("trouble ") for line in lines if line.startswith("trouble "))
    return GpuLook(True, tuple(gpus), "fabric" in lines, xids_in(kernel), trouble)


def triage(look: GpuLook) -> Triage:
    """What the faults of a node ask for. Without any fault that is known, a reset of all GPUs is as good as
    it was asked for."""
    # What Xid 154 says of another fault is in its text, which a look leaves out.
    known = [each for each in look.xids if each.number in XIDS and each.number != RECOVERY]
    if not known:
        others = sorted({each.number for each in look.xids})
        told = (
            f"Xid {', '.join(map(str, others))} decides nothing" if others else "the kernel told of no fault"
        )
        return Triage("reset", told)
    hardware = [each for each in known if XIDS[each.number].action != "none"]
    decisive = hardware or known
    action = max((XIDS[each.number] for each in decisive), key=lambda rule: _RANK[rule.action]).action
    why = "; ".join(f"Xid {each.number} at {each.pci}: {XIDS[each.number].title}" for each in decisive)
    places = {each.pci for each in hardware}
    indices = tuple(gpu.index for gpu in look.gpus if gpu.pci in places)
    # A GPU of a board with NVSwitches holds the NVLink domain of the others: all are reset.
    partly = indices and not look.fabric and len(indices) == len(places)
    return Triage(action, why, indices if partly else ())


def evidence_command() -> Command:
    """Collects what tells of a fault; `keep_evidence` unpacks the answer."""
    script = render("node-evidence.sh.j2", limit_s=TOOL_S, most_mib=MOST_MIB)
    return Command(as_root(f"({script}) | base64"), "collect evidence", timeout_s=6.0 * TOOL_S)


def keep_evidence(packed: str, folder: Path) -> tuple[Path, ...]:
    """Write the files of a node's archive into a private folder. Raises RunnerError for what is none."""
    private_folder(folder)
    kept: list[Path] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed)), mode="r:gz") as archive:
            for member in archive:
                source = archive.extractfile(member) if member.isreg() else None
                if source is None or member.name not in EVIDENCE or member.size > MOST_MIB << 20:
                    continue
                path = folder / member.name
                path.write_bytes(source.read())
                path.chmod(0o600)
                kept.append(path)
    except (ValueError, tarfile.TarError, EOFError, OSError) as error:
        raise RunnerError("the evidence of a node cannot be read", detail=str(error)) from error
    return tuple(sorted(kept))


def reset_command(change: str, indices: Iterable[str], *, fabric: bool) -> Command:
    """Stops what uses the GPUs, resets them, and starts it again; once for a change. `read_reset` reads its
    end."""
    script = render(
        "node-gpu-reset.sh.j2",
        home=NODE_HOME,
        change=change,
        ids=",".join(indices),
        fabric=fabric,
        busy=BUSY,
        limit_s=RESET_S,
    )
    return Command(as_root(script), "reset the GPUs", timeout_s=2.0 * RESET_S)


def read_reset(result: Completed) -> str:
    """What a reset came to. Raises RunnerError where it failed."""
    lines = result.stdout.splitlines()
    if result.ok and "already" in lines:
        return "was reset already"
    words = " ".join(f"{result.stdout} {result.stderr}".split())
    if result.exit_code == BUSY:
        users = ", ".join(line.removeprefix("client ") for line in lines if line.startswith("client "))
        raise RunnerError(f"GPUs of node {result.node} are in use", detail=f"by process {users}")
    if not result.ok:
        raise RunnerError(f"the GPUs of node {result.node} were not reset", detail=words or result.ending)
    return words
