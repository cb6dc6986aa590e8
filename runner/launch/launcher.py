"""How a task's processes are started: `torchrun` on every node, `mpirun` from rank 0; and the hostfile."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from orch.runner.errors import HostfileIncomplete
from orch.runner.placement.rank_groups import rank_groups
from orch.runner.plan.environment import SSH_PORT
from orch.runner.plan.run_plan import Dialect, Elastic
from orch.spec.grammar.hosts import fold
from orch.spec.grammar.interpolate import render_args
from orch.spec.state import NodeState
from orch.templates import ShellText, render

if TYPE_CHECKING:
    from orch.spec.models import Mpirun, Task, Torchrun

_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})")


def hostfile(addresses: Sequence[str], slots: Sequence[int] | None, dialect: Dialect = "openmpi") -> str:
    """One line per node in rank order, each ended by a newline.

    `slots` are the processes per node; None (no accelerators and no launcher) writes bare addresses in any
    dialect.
    """
    if slots is None or dialect == "plain":
        return "".join(f"{address}\n" for address in addresses)
    form = "{}:{}\n" if dialect in ("mpich", "intel") else "{} slots={}\n"
    return "".join(form.format(address, count) for address, count in zip(addresses, slots, strict=True))


def internal_addresses(nodes: Sequence[NodeState]) -> tuple[str, ...]:
    """The internal address of each node, in order.

    A run of one node without one uses loopback. Raises HostfileIncomplete (ORCH420) naming every node of a
    larger run that has none: a partial hostfile would hang the job instead.
    """
    missing = [node.name for node in nodes if node.internal_ip is None]
    if missing and len(nodes) > 1:
        raise HostfileIncomplete(
            f"{'node' if len(missing) == 1 else 'nodes'} {fold(missing)} "
            f"{'has' if len(missing) == 1 else 'have'} no internal address",
            where=missing[0],
            detail="ranks find each other by internal addresses; no command was started",
            hint="set `network` (or `internal_ip` on every host) in the fleet",
            code="ORCH420",
        )
    return tuple(node.internal_ip or "127.0.0.1" for node in nodes)


@dataclass(frozen=True)
class LaunchContext:
    """What a launcher knows: addresses and processes per node in rank order, and its own rank."""

    rank: int
    addresses: tuple[str, ...]
    slots: tuple[int, ...]
    run: str
    interconnect: str
    export: tuple[str, ...] = ()


class Launcher(Protocol):
    """One way to start a task's processes."""

    @property
    def name(self) -> Literal["commands", "torchrun", "mpirun", "image"]: ...

    @property
    def counts_slots(self) -> bool:
        """Whether hostfile lines carry a process count even without accelerators."""
        ...

    @property
    def dialect(self) -> Dialect: ...

    @property
    def startup_order(self) -> Literal["any", "master-first", "workers-first"] | None:
        """The order the launcher needs, whatever the task says."""
        ...

    @property
    def stop_criteria(self) -> Literal["all-done", "master-done"] | None:
        """When the launcher considers the run finished, whatever the task says."""
        ...

    @property
    def elastic(self) -> Elastic | None:
        """How many ranks may leave a run that goes on; None: it ends with the first that does."""
        ...

    def tasks_per_node(self, gpus: int) -> int:
        """Processes started on a node with `gpus` accelerators for this job."""
        ...

    def script(self, context: LaunchContext) -> str | None:
        """POSIX shell text that follows the task's commands on one rank; None adds nothing."""
        ...


def quote_words(*words: str) -> ShellText:
    """Words as `quote_word` quotes them, spaces between."""
    return ShellText(" ".join(map(quote_word, words)))


def quote_word(word: str) -> ShellText:
    """`word` as shell text: all literal except `$NAME` and `${NAME}`, which the job's environment fills.

    So that `--out $ORCH_CHECKPOINT_DIR` means what its writer expects, while `$(…)`, backquotes and spaces
    stay text.
    """
    parts: list[str] = []
    end = 0
    for match in _VARIABLE.finditer(word):
        if match.start() > end:
            parts.append(shlex.quote(word[end : match.start()]))
        parts.append(f'"{match.group()}"')
        end = match.end()
    if end < len(word) or not word:
        parts.append(shlex.quote(word[end:]))
    return ShellText("".join(parts))


# Seconds between an agent's looks at its workers. The old default of 5 delays every end by half of that on
# average.
MONITOR_INTERVAL_S = 0.2

_FIND_TORCHRUN = """\
if command -v torchrun >/dev/null 2>&1; then orch_torchrun=torchrun
elif command -v python3 >/dev/null 2>&1 && python3 -c 'import torch.distributed.run' >/dev/null 2>&1
then orch_torchrun='python3 -m torch.distributed.run'
else echo 'orch: this image has no torchrun: choose an image with PyTorch' >&2; exit 127; fi"""


@dataclass(frozen=True)
class TorchrunLauncher:
    """The `torchrun:` block of a task, arguments already rendered for one job.

    Flags have underscores and an equals sign: torch 1.13 knows no other spelling, torch 2 knows both.
    Rendezvous is static (1-2 s quicker: no store election) unless workers may come, go or restart, which only
    c10d survives.
    """

    block: Torchrun
    args: tuple[str, ...]
    name: Literal["torchrun"] = "torchrun"
    counts_slots: bool = True
    dialect: Dialect = "openmpi"
    startup_order: None = None
    stop_criteria: None = None

    @property
    def elastic(self) -> Elastic | None:
        block = self.block
        if block.nnodes is None or block.nnodes[0] == block.nnodes[1]:
            return None
        return Elastic(least=block.nnodes[0], rendezvous_rank=block.rdzv.host or 0)

    def tasks_per_node(self, gpus: int) -> int:
        return self.block.nproc_per_node or max(1, gpus)

    def script(self, context: LaunchContext) -> str:
        flags = " \\\n  ".join((*self._flags(context), *(quote_word(word) for word in self.block.extra)))
        return f"{_FIND_TORCHRUN}\nexec $orch_torchrun \\\n  {flags} \\\n  {self._program()}"

    def backend(self) -> Literal["static", "c10d"]:
        """The rendezvous backend: the one the task sets, else the fastest that supports its settings."""
        block = self.block
        return block.rdzv.backend or ("c10d" if self.elastic or block.max_restarts > 0 else "static")

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
    """The `mpirun:` block of a task, arguments already rendered for one job. It starts on rank 0, over an
    sshd in each job container.

    The other ranks wait as log-in targets. A log-in gets the environment of the rank it lands on (the forced
    command in templates/mpirun.sh.j2), so node-bound values such as ORCH_NODE_RANK are right everywhere; `-x`
    carries only what rank 0 alone can know.
    """

    block: Mpirun
    args: tuple[str, ...]
    task_env: tuple[str, ...] = ()
    name: Literal["mpirun"] = "mpirun"
    counts_slots: bool = True
    startup_order: Literal["workers-first"] = "workers-first"
    stop_criteria: Literal["master-done"] = "master-done"
    elastic: None = None

    @property
    def dialect(self) -> Dialect:
        if self.block.hostfile is not None:
            return self.block.hostfile
        return self.block.mpi if self.block.mpi in ("mpich", "intel") else "openmpi"

    def tasks_per_node(self, gpus: int) -> int:
        return self.block.nproc_per_node or max(1, gpus)

    def script(self, context: LaunchContext) -> str:
        ethernet = context.interconnect == "ethernet"
        # Only rank 0 starts processes: the other ranks need no list of all nodes.
        starts = context.rank == 0
        addresses = context.addresses if starts else ()
        slots = context.slots if starts else ()
        return render(
            "mpirun.sh.j2",
            rank=context.rank,
            nodes=len(context.addresses),
            addresses=addresses,
            port=SSH_PORT,
            total=self.block.np or sum(slots),
            machines=tuple(
                word
                for address, count in zip(addresses, slots, strict=True)
                for word in (address, str(count))
            ),
            mpi=self.block.mpi,
            bind_to=self.block.bind_to,
            mca=(*(_ETHERNET if ethernet else ()), *_KEEPALIVE),
            ethernet=ethernet,
            export=tuple(dict.fromkeys((*self.task_env, *self.block.export))),
            extra=quote_words(*self.block.extra),
            torch_env=self.block.torch_env,
            program=quote_words(self.block.program, *self.args),
        )


@dataclass(frozen=True)
class PlainLauncher:
    """No launcher. `name`: the task's commands run, or the image starts its own entry point."""

    name: Literal["commands", "image"] = "commands"
    counts_slots: bool = False
    dialect: Dialect = "openmpi"
    startup_order: None = None
    stop_criteria: None = None
    elastic: None = None

    def tasks_per_node(self, gpus: int) -> int:
        return max(1, gpus)

    def script(self, context: LaunchContext) -> str | None:
        del context
        return None


def launcher_of(task: Task, values: Mapping[str, str], run_args: Sequence[str]) -> Launcher:
    """The launcher of `task` with its arguments rendered for one job (`values`: interpolate.JOB_VALUES)."""
    if task.torchrun is not None:
        return TorchrunLauncher(task.torchrun, render_args(task.torchrun.args, values, run_args))
    if task.mpirun is not None:
        return MpirunLauncher(
            task.mpirun, render_args(task.mpirun.args, values, run_args), task_env=tuple(task.env)
        )
    has_commands = any(group.commands for group in rank_groups(task))
    return PlainLauncher("commands" if has_commands else "image")
