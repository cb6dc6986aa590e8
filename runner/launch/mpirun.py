"""`mpirun` from rank 0, over an sshd in each job container.

The other ranks wait as log-in targets. A log-in gets the environment of the rank it lands on (the forced
command in templates/mpirun.sh.j2), so node-bound values such as ORCH_NODE_RANK are right everywhere; `-x`
carries only what rank 0 alone can know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orch.runner.launch.environment import MPI_HOSTFILE, SSH_PORT
from orch.runner.launch.hostfile import Dialect
from orch.runner.launch.launcher import LaunchContext, quote_words
from orch.templates import render

if TYPE_CHECKING:
    from orch.spec.models import Mpirun

# Open MPI on plain Ethernet. A silent partition is noticed in 9-12 s with these keep-alives and never
# without them.
_ETHERNET = (
    ("pml", "ob1"),
    ("btl", "self,vader,tcp"),
    ("btl_vader_single_copy_mechanism", "none"),
)
_KEEPALIVE = (
    ("oob_tcp_keepalive_time", "5"),
    ("oob_tcp_keepalive_intvl", "2"),
    ("oob_tcp_keepalive_probes", "3"),
)


@dataclass(frozen=True)
class MpirunLauncher:
    """The `mpirun:` block of a task, arguments already rendered for one job."""

    block: Mpirun
    args: tuple[str, ...]
    task_env: tuple[str, ...] = ()
    name: Literal["mpirun"] = "mpirun"
    counts_slots: bool = True
    ssh_between: bool = True
    startup_order: Literal["workers-first"] = "workers-first"
    stop_criteria: Literal["master-done"] = "master-done"

    @property
    def dialect(self) -> Dialect:
        if self.block.hostfile is not None:
            return self.block.hostfile
        return self.block.mpi if self.block.mpi in ("mpich", "intel") else "openmpi"

    def tasks_per_node(self, gpus: int) -> int:
        return self.block.nproc_per_node or max(1, gpus)

    def script(self, context: LaunchContext) -> str:
        ethernet = context.interconnect == "ethernet"
        return render(
            "mpirun.sh.j2",
            rank=context.rank,
            addresses=context.addresses,
            port=SSH_PORT,
            total=self.block.np or sum(context.slots),
            hostfile=MPI_HOSTFILE,
            mpi=self.block.mpi,
            bind_to=self.block.bind_to,
            mca=(*(_ETHERNET if ethernet else ()), *_KEEPALIVE),
            ethernet=ethernet,
            export=tuple(dict.fromkeys((*self.task_env, *self.block.export))),
            extra=quote_words(*self.block.extra),
            torch_env=self.block.torch_env,
            program=quote_words(self.block.program, *self.args),
        )
