"""One rank's container: the commands that start, release, observe, stop and remove it, and their results.

Pure. Each command is one round trip and may be repeated. The output of a node is untrusted: words and numbers
in it are checked before use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from orch.runner.errors import CommandTimeout, HostUnreachable, NodeDiskFull, PodGone, RunFailed
from orch.runner.launch.dev_environment import ticks
from orch.runner.node.clock import seconds_of
from orch.runner.node.runtime import WHOLE_LOG, CloudNotice, LogPart, ObservedRank
from orch.runner.node_api.accelerators import device_access, watched
from orch.runner.node_api.commands import NODE_HOME, Command, StdinSource, as_root
from orch.runner.node_api.connector import Completed
from orch.runner.placement.block_resources import share_of
from orch.runner.plan.run_plan import RunPlan
from orch.templates import render

BUSY, NO_IMAGE, FAILED, NO_STAGE, NO_DOCKER, CORDONED, PREPARING, UNFIT = 40, 41, 42, 44, 45, 46, 47, 48
UNHEALTHY = 51
PORT_TAKEN, NO_FILES, NO_PATH = 49, 50, 51
# A copy takes as long as it takes: what ends it is its connection.
COPY_S = 24 * 3600.0
# How long lifting the barrier waits to see commands begin: most do within one tick, and it saves a look.
GO_TICKS = 20
# Seconds after its deadline at which a container is killed, and after which it is killed again.
SLACK_S = 30

# Of Linux, on all machines that nodes are: this one may number them otherwise.
_SIGNAL_NUMBERS = {
    **{"HUP": 1, "INT": 2, "QUIT": 3, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15},
    **{"CONT": 18, "URG": 23, "XCPU": 24, "WINCH": 28},
}

# What Docker calls the states of a container, and our word for none.
_STATES = frozenset({"created", "running", "paused", "restarting", "removing", "exited", "dead", "absent"})
_NUMBER = re.compile(r"[0-9]{1,9}")
TREE = re.compile(r"[0-9a-f]{64}")
MESSAGE = re.compile(r"^orch:(\w+)=(.*)$", re.MULTILINE)
_NO_SPACE = re.compile(
    r"no space left on device|disk quota exceeded|wrote only \d+ of \d+ bytes", re.IGNORECASE
)
# What tar says last, after what was wrong.
_TAR_ENDS = "Exiting with failure status due to previous errors"


def number(result: Completed, key: str, text: str, minimum: int, maximum: int) -> int:
    """A number in a node's output, from `minimum` to `maximum`. Raises RunFailed."""
    if not _NUMBER.fullmatch(text) or not minimum <= int(text) <= maximum:
        raise RunFailed(
            f"node {result.node} answered with something else than what was asked",
            where=result.node,
            detail=f"it said {key}={text[:80]}: a number from {minimum} to {maximum} is expected",
            hint="look for what changes the output of commands there, such as a wrapper of its shell",
            reason="creating_container_error",
        )
    return int(text)


def failure(result: Completed, summary: str, hint: str | None = None) -> RunFailed:
    """The error for a command that failed on a node, with the last telling line of its output."""
    lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
    telling = [line for line in lines if _TAR_ENDS not in line] or lines
    detail = telling[-1] if telling else result.ending
    detail = re.sub(r"^(docker: )?Error response from daemon: ", "", detail).removesuffix(
        "See 'docker run --help'."
    )
    if _NO_SPACE.search(result.stderr + result.stdout):
        return NodeDiskFull(
            f"the disk of node {result.node} is full",
            where=result.node,
            detail=next((line for line in lines if _NO_SPACE.search(line)), detail),
            hint="free space there (`docker image prune` on the node), or provision a larger `disk`",
            reason="creating_container_error",
        )
    return RunFailed(summary, where=result.node, detail=detail, hint=hint, reason="creating_container_error")


def go_command(plan: RunPlan, rank: int, port: int | None) -> Command:
    """Let one rank's commands begin, and start its `max_duration` and its `inactivity_duration`."""
    needs_port = len(plan.ranks) > 1 or plan.launcher == "torchrun"
    inactivity_s = plan.dev.inactivity_s if plan.dev is not None else None
    content = f'export MASTER_PORT="${{MASTER_PORT:-{port}}}"' if needs_port and port is not None else ":"
    text = render(
        "node-go.sh.j2",
        home=NODE_HOME,
        name=plan.container(rank),
        max_duration_s=plan.max_duration_s,
        inactivity_s=inactivity_s,
        look_s=ticks(inactivity_s)[0] if inactivity_s is not None else None,
        stop_duration_s=plan.stop_duration_s,
        slack_s=SLACK_S,
        content=content,
        ticks=GO_TICKS,
        signal=_signal_script(plan, rank),
        signal_before_s=plan.signal.before_s if plan.signal else 0,
        watch=_watch_script(plan, rank),
    )
    return Command(as_root(text), f"release {plan.container(rank)}")


def _signal_script(plan: RunPlan, rank: int) -> str:
    """Sends a rank its signal, as root of its node; "" where it gets none."""
    if plan.signal is None:
        return ""
    return render(
        "node-signal.sh.j2",
        home=NODE_HOME,
        name=plan.container(rank),
        signal=plan.signal.name,
        number=_SIGNAL_NUMBERS[plan.signal.name],
        shell_only=plan.signal.shell_only,
    )


def _watch_script(plan: RunPlan, rank: int) -> str:
    """Watches how a rank uses its GPUs, as root of its node; "" where that is not asked for, or cannot be."""
    rank_plan = plan.ranks[rank]
    access = device_access(rank_plan.node.gpus)
    if plan.utilization is None or access is None or not watched(plan, rank_plan):
        return ""
    return render(
        "node-watch.sh.j2",
        home=NODE_HOME,
        name=plan.container(rank),
        least=plan.utilization.min_gpu_utilization,
        window_s=plan.utilization.window_s,
        every_s=max(5, min(60, plan.utilization.window_s // 10)),
        per_block=0 if rank_plan.whole else share_of(rank_plan.node, 1).gpus,
        use=access.use,
        stop_duration_s=-1 if plan.stop_duration_s is None else plan.stop_duration_s,
    )


def observe_command(plan: RunPlan, rank: int) -> Command:
    """Observe one rank."""
    script = as_root(render("node-observe.sh.j2", home=NODE_HOME, name=plan.container(rank)))
    return Command(script, f"look at {plan.container(rank)}", timeout_s=10.0)


def read_observation(
    rank: int, result: Completed | HostUnreachable | CommandTimeout, *, now: float
) -> ObservedRank:
    """The result of `observe_command`, which came at `now`, in seconds since the epoch.

    A rank is `silent` when its node, or Docker there, does not answer. It ended with a node that is gone."""
    if isinstance(result, PodGone):
        marks = {"started", "interrupted"} if result.taken else {"started"}
        return ObservedRank(
            rank,
            "dead",
            exit_code=137 if result.container_code is None else result.container_code,
            out_of_memory=result.reason == "OOMKilled",
            marks=frozenset(marks),
            detail=result.detail or result.summary,
        )
    if isinstance(result, CommandTimeout):  # its detail is the command, which is of no use to anybody else
        return ObservedRank(rank, "silent", detail="it did not tell in time how the job is")
    if isinstance(result, HostUnreachable):
        return ObservedRank(rank, "silent", detail=result.detail or result.summary)
    # The last line: what a login shell prints comes before it.
    state, code, oom, _, finished, clock, marks, *more = (
        *result.stdout.strip().rpartition("\n")[2].split("|"),
        *[""] * 7,
    )
    ended = state in ("exited", "dead")
    shown = seconds_of(clock)
    if not result.ok or len(more) != 7 or state not in _STATES or (ended and not _NUMBER.fullmatch(code)):
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
        return ObservedRank(
            rank, "silent", detail=f"Docker on the node: {lines[0][:200]}" if lines else "no answer"
        )
    return ObservedRank(
        rank,
        state,
        exit_code=int(code) if ended else None,
        out_of_memory=oom == "true",
        finished_at=finished if ended else "",
        marks=frozenset(marks.split()),
        notice=CloudNotice.found(marks),
        ahead_s=0.0 if shown is None else shown - now,
    )


def signal_command(plan: RunPlan, rank: int) -> Command:
    """Send one rank its signal, unless it has had it."""
    return Command(as_root(_signal_script(plan, rank)), f"signal {plan.container(rank)}", timeout_s=30.0)


def stop_command(plan: RunPlan, rank: int, *, kill: bool = False) -> Command:
    """Stop one rank, within `stop_duration` or at once. The command returns before the rank has ended.

    What has not ended by then gets the run's signal as long before it is killed as that asks for.
    """
    killed_after_s = plan.stop_duration_s
    signalled = plan.signal and killed_after_s is not None and killed_after_s >= plan.signal.before_s
    text = render(
        "node-stop.sh.j2",
        home=NODE_HOME,
        name=plan.container(rank),
        kill=kill,
        stop_duration_s=killed_after_s,
        slack_s=SLACK_S,
        signal=_signal_script(plan, rank) if signalled else "",
        signal_after_s=(killed_after_s or 0) - plan.signal.before_s if plan.signal and signalled else "",
    )
    return Command(as_root(text), f"{'kill' if kill else 'stop'} {plan.container(rank)}", timeout_s=30.0)


def release_command(plan: RunPlan, rank: int) -> Command:
    """Remove a rank's container and stage, and release its blocks."""
    scratch = plan.ranks[rank].node.scratch
    text = render(
        "node-release.sh.j2",
        home=NODE_HOME,
        name=plan.container(rank),
        scratch=scratch if scratch and scratch.clean else None,
    )
    return Command(as_root(text), f"remove {plan.container(rank)}", timeout_s=120.0)


def hold_command(plan: RunPlan, rank: int) -> Command:
    """Refresh a rank's claims while it has no container yet."""
    name = plan.container(rank)
    return Command(as_root(render("node-hold.sh.j2", home=NODE_HOME, name=name)), f"hold {name}")


def read_path_command(plan: RunPlan, rank: int, path: str) -> Command:
    """A file or folder of one rank's container as a tar archive, also after the job's end."""
    name = plan.container(rank)
    text = render("node-read.sh.j2", home=NODE_HOME, name=name, path=path, no_path=NO_PATH)
    return Command(as_root(text), f"read {path} of {name}", timeout_s=COPY_S)


def write_path_command(plan: RunPlan, rank: int, path: str, archive: Iterable[bytes]) -> Command:
    """Unpack a tar archive in a folder of one rank's running container."""
    name = plan.container(rank)
    text = render("node-write.sh.j2", name=name, path=path)
    return Command(as_root(text), f"write {path} of {name}", StdinSource(archive), COPY_S)


def log_command(plan: RunPlan, rank: int, part: LogPart = WHOLE_LOG) -> Command:
    """Return the command that prints a part of a rank's log; each line starts with its time."""
    options = ["--timestamps"]
    if part.follow:
        options.append("--follow")
    if part.tail is not None:
        options.append(f"--tail={part.tail}")
    if part.since is not None:
        options.append(f"--since={part.since}")
    text = render(
        "node-log.sh.j2",
        name=plan.container(rank),
        options=options,
        skip=part.skip,
        no_stage=NO_STAGE,
        no_docker=NO_DOCKER,
    )
    return Command(as_root(text), f"log of {plan.container(rank)}", timeout_s=None)
