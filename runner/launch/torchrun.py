"""`torchrun` on every node, with rank, counts and rendezvous filled in.

Flags have underscores and an equals sign: torch 1.13 knows no other spelling, torch 2 knows both. Rendezvous
is static (1-2 s quicker: no store election) unless workers may come, go or restart, which only c10d
survives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orch.runner.launch.hostfile import Dialect
from orch.runner.launch.launcher import LaunchContext, quote_word, quote_words

if TYPE_CHECKING:
    from orch.spec.models import Torchrun

# Seconds between an agent's looks at its workers. The old default of 5 delays every end by half of that on
# average.
MONITOR_INTERVAL_S = 0.2

_FIND = """\
if command -v torchrun >/dev/null 2>&1; then orch_torchrun=torchrun
elif command -v python3 >/dev/null 2>&1 && python3 -c 'import torch.distributed.run' >/dev/null 2>&1
then orch_torchrun='python3 -m torch.distributed.run'
else echo 'orch: this image has no torchrun: choose an image with PyTorch' >&2; exit 127; fi"""


@dataclass(frozen=True)
class TorchrunLauncher:
    """The `torchrun:` block of a task, arguments already rendered for one job."""

    block: Torchrun
    args: tuple[str, ...]
    name: Literal["torchrun"] = "torchrun"
    counts_slots: bool = True
    dialect: Dialect = "openmpi"
    ssh_between: bool = False
    startup_order: None = None
    stop_criteria: None = None

    def tasks_per_node(self, gpus: int) -> int:
        return self.block.nproc_per_node or max(1, gpus)

    def script(self, context: LaunchContext) -> str:
        flags = " \\\n  ".join((*self._flags(context), *(quote_word(word) for word in self.block.extra)))
        return f"{_FIND}\nexec $orch_torchrun \\\n  {flags} \\\n  {self._program()}"

    def backend(self) -> Literal["static", "c10d"]:
        """The rendezvous in use: as written, else the quickest that can do what is asked."""
        block = self.block
        elastic = block.nnodes is not None and block.nnodes[0] != block.nnodes[1]
        return block.rdzv.backend or ("c10d" if elastic or block.max_restarts > 0 else "static")

    def _flags(self, context: LaunchContext) -> list[str]:
        block, backend = self.block, self.backend()
        low, high = block.nnodes or (len(context.addresses), len(context.addresses))
        host = context.addresses[block.rdzv.host or 0]
        port = str(block.rdzv.port) if block.rdzv.port is not None else '"$MASTER_PORT"'
        timeout = "timeout" if backend == "static" else "join_timeout"
        settings = {timeout: block.rdzv.timeout_s, **block.rdzv.conf}
        flags = [
            f"--nnodes={low if low == high else f'{low}:{high}'}",
            f"--nproc_per_node={context.slots[context.rank]}",
        ]
        if backend == "static":
            # Only the static rendezvous reads it; c10d gives out ranks itself.
            flags.append(f"--node_rank={context.rank}")
        return [
            *flags,
            f"--max_restarts={block.max_restarts}",
            f"--monitor_interval={MONITOR_INTERVAL_S}",
            f"--rdzv_id={quote_word(context.run)}",
            f"--rdzv_backend={backend}",
            f"--rdzv_endpoint={host}:{port}",
            "--rdzv_conf=" + quote_word(",".join(f"{key}={value}" for key, value in settings.items())),
        ]

    def _program(self) -> str:
        if self.block.module is not None:
            words = ("-m", self.block.module, *self.args)
        elif self.block.program is not None and not self.block.program.endswith(".py"):
            words = ("--no_python", self.block.program, *self.args)
        else:
            words = (self.block.program or "", *self.args)
        return quote_words(*words)
