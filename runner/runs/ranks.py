"""Acts on many ranks at once: start (with images where they are missing), release, observe, stop, collect."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from orch.runner.errors import NodePreparing, RunFailed, VolumeDetaching
from orch.runner.events import Notice, Preparing
from orch.runner.node import logs
from orch.runner.node.runtime import FilesMissing, ImageMissing, ObservedRank, StartedRank
from orch.runner.node.stage import RunHosts, stage
from orch.runner.node.volumes import mount_volumes, release_volumes
from orch.runner.node_api.claims import ABANDONED_AFTER_S
from orch.runner.node_api.connector import NodeResult, fan_out
from orch.runner.node_api.first_boot import LOOK_AGAIN_S, PREPARE_S
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs.context import RunContext
from orch.runner.runs.outputs import collect_outputs, tell_keeper
from orch.runner.runs.run_secrets import filled_environments, filled_login
from orch.runner.upload.send import Uploads
from orch.spec.errors import OrchError
from orch.spec.grammar.hosts import fold
from orch.spec.state import NodeState

# Often enough that a node which is away at one time or another still has a fresh claim.
HOLD_EVERY_S = ABANDONED_AFTER_S / 6
LOOK_DEADLINE_S = 3.0
# Files, the image, and once more where a node has removed one of them meanwhile.
PROVISIONS = 3


@dataclass(frozen=True)
class StartResults:
    """The results of starting ranks; with any error the run cannot continue."""

    started: tuple[StartedRank, ...] = ()
    errors: tuple[tuple[int, OrchError], ...] = ()


def start_ranks(
    context: RunContext,
    plan: RunPlan,
    ranks: Sequence[int],
    on_pull: Callable[[Sequence[int]], None],
    still_wanted: Callable[[], bool],
) -> StartResults:
    """Containers for `ranks`, each behind its barrier; the only rank of a run may begin at once.
    `on_pull` hears of ranks that lack the image.

    Nodes that are still being prepared are waited for, as long as `still_wanted` says so.
    """
    try:
        environments = filled_environments(context.folder, context.secrets)
        keys = context.folder.keys(len(plan.ranks)) if plan.has_keys else None
    except OrchError as error:
        return StartResults(errors=tuple((rank, error) for rank in ranks))
    if any(not file.tree for file in plan.files):
        error = RunFailed(
            "this run cannot be started by this version of orch",
            detail="an earlier one submitted it",
            hint="submit it again",
        )
        return StartResults(errors=tuple((rank, error) for rank in ranks))
    rank_of = {plan.ranks[rank].node.name: rank for rank in ranks}
    hosts = RunHosts.of(plan, keys)
    # Only at the first try: what a node lacks may take long to come, and whether the run is still wanted then
    # is asked before its barrier is lifted.
    tried = set[int]()

    def start(node: NodeState) -> StartedRank:
        rank = rank_of[node.name]
        begin, _ = rank not in tried, tried.add(rank)
        archive = stage(plan, rank, environments[rank], keys, hosts)
        for notice in mount_volumes(context.connector, context.volumes, plan, rank):
            context.processor.handle(Notice(notice, "warning"))
        return context.runtime(node).start(context.connector, plan, rank, (archive,), begin=begin)

    results = fan_out([plan.ranks[rank].node for rank in ranks], start)
    if any(isinstance(result.error, NodePreparing) for result in results):
        with holding(context, plan, ranks):
            results = _retry_when_prepared(context, results, start, still_wanted)
        context.processor.handle(Preparing(()))
    # A node says first that it lacks files, then that it lacks the image.
    with closing(Uploads(context.folder.path.parents[1], context.processor)) as uploads:
        for _ in range(PROVISIONS):
            lacking = [result for result in results if isinstance(result.error, (ImageMissing, FilesMissing))]
            if not lacking or len(lacking) != sum(not result.ok for result in results):
                break
            with holding(context, plan, ranks):
                provided = _provide(context, plan, uploads, lacking, on_pull)
            known = {r.node.name: r for r in fan_out([r.node for r in provided if r.ok], start)}
            known |= {
                r.node.name: NodeResult[StartedRank](r.node, error=r.error) for r in provided if not r.ok
            }
            results = tuple(known.get(result.node.name, result) for result in results)
    return StartResults(
        tuple(result.value for result in results if result.value is not None),
        tuple((rank_of[result.node.name], result.error) for result in results if result.error is not None),
    )


@contextmanager
def holding(
    context: RunContext, plan: RunPlan, ranks: Sequence[int], every_s: float = HOLD_EVERY_S
) -> Iterator[None]:
    """Refresh the claims of `ranks` during the block, while they have no container yet."""
    rank_of = {plan.ranks[rank].node.name: rank for rank in ranks}
    stop = threading.Event()

    def hold(node: NodeState) -> None:
        context.runtime(node).hold(context.connector, plan, rank_of[node.name])

    def keep() -> None:
        while not stop.wait(every_s):
            # A node that does not answer is asked again the next time.
            fan_out([plan.ranks[rank].node for rank in ranks], hold)

    thread = threading.Thread(target=keep, name="orch-hold", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()


def _retry_when_prepared(
    context: RunContext,
    results: tuple[NodeResult[StartedRank], ...],
    start: Callable[[NodeState], StartedRank],
    still_wanted: Callable[[], bool],
) -> tuple[NodeResult[StartedRank], ...]:
    """The results after retrying on nodes whose first boot had not finished, or from which a disk is being
    detached, until that is over or time is up."""
    announced, deadline = set[str](), time.monotonic() + PREPARE_S
    while time.monotonic() < deadline:
        waiting = [result.node for result in results if isinstance(result.error, NodePreparing)]
        if not waiting or any(
            result.error is not None
            and not isinstance(result.error, (NodePreparing, ImageMissing, FilesMissing))
            for result in results
        ):
            break
        _tell_what_is_waited_for(context, results, announced)
        time.sleep(LOOK_AGAIN_S)
        if not still_wanted():
            break
        retried = {result.node.name: result for result in fan_out(waiting, start)}
        results = tuple(retried.get(result.node.name, result) for result in results)
    return results


def _tell_what_is_waited_for(
    context: RunContext, results: tuple[NodeResult[StartedRank], ...], announced: set[str]
) -> None:
    """Tell which nodes and disks a start waits for; what is in `announced` was told before."""
    notices: dict[str, str] = {}
    booting: list[str] = []
    for result in results:
        if isinstance(result.error, VolumeDetaching):
            notices[result.error.summary] = result.error.summary
        elif isinstance(result.error, NodePreparing):
            booting.append(result.node.name)
    context.processor.handle(Preparing(tuple(booting)))
    if booting:
        # Said once, although the nodes become fewer.
        verb = "is" if len(booting) == 1 else "are"
        notices["boot"] = f"{fold(booting)} {verb} still being prepared"
    for key, text in notices.items():
        if key not in announced:
            context.processor.handle(Notice(f"{text}: waiting"))
    announced.update(notices)


def _provide(
    context: RunContext,
    plan: RunPlan,
    uploads: Uploads,
    lacking: Sequence[NodeResult[StartedRank]],
    on_pull: Callable[[Sequence[int]], None],
) -> Sequence[NodeResult[None]]:
    """Bring nodes what they said they lack."""
    files = {each.node.name: each.error for each in lacking if isinstance(each.error, FilesMissing)}

    def send(node: NodeState) -> None:
        uploads.send(context.connector, node, files[node.name])

    results = list(fan_out([each.node for each in lacking if each.node.name in files], send))
    nodes = [each.node for each in lacking if each.node.name not in files]
    if nodes:
        rank_of = _by_node(plan, range(len(plan.ranks)))
        on_pull([rank_of[node.name] for node in nodes])
    return [*results, *_provide_image(context, plan, nodes)]


def _provide_image(
    context: RunContext, plan: RunPlan, nodes: Sequence[NodeState]
) -> Sequence[NodeResult[None]]:
    by_runtime: dict[str, list[NodeState]] = {}
    for node in nodes:
        by_runtime.setdefault(node.runtime, []).append(node)
    results: list[NodeResult[None]] = []
    try:
        login = filled_login(context.folder, plan.image, context.secrets)
    except OrchError as error:
        return [NodeResult(node, error=error) for node in nodes]
    for nodes_of_runtime in by_runtime.values():
        try:
            runtime = context.runtime(nodes_of_runtime[0])
            results += runtime.provide_image(
                context.connector, nodes_of_runtime, plan.image, context.processor, login
            )
        except OrchError as error:
            results += [NodeResult(node, error=error) for node in nodes_of_runtime]
    return results


def first_ranks(plan: RunPlan) -> tuple[int, ...]:
    """The ranks whose barrier is lifted first, by the run's startup order."""
    everyone = tuple(rank.rank for rank in plan.ranks)
    if plan.startup_order == "any" or len(everyone) == 1:
        return everyone
    return everyone[:1] if plan.startup_order == "master-first" else everyone[1:]


def lift_barriers(
    context: RunContext, plan: RunPlan, ranks: Sequence[int], port: int | None
) -> tuple[tuple[int, OrchError], ...]:
    """Let the commands of `ranks` begin. Returns those that cannot, with why.

    A node that does not answer here is seen to be silent, or still waiting, at the next look.
    """
    rank_of = _by_node(plan, ranks)

    def lift(node: NodeState) -> None:
        context.runtime(node).lift_barrier(context.connector, plan, rank_of[node.name], port)

    results = fan_out([plan.ranks[rank].node for rank in ranks], lift)
    return tuple(
        (rank_of[each.node.name], each.error) for each in results if isinstance(each.error, RunFailed)
    )


def observe_ranks(context: RunContext, plan: RunPlan, ranks: Sequence[int]) -> dict[int, ObservedRank]:
    """Rank -> observation; `silent` where the node does not answer.

    Raises OrchError when this machine itself cannot ask.
    """
    rank_of = _by_node(plan, ranks)

    def look(node: NodeState) -> ObservedRank:
        return context.runtime(node).observe(
            context.connector, plan, rank_of[node.name], deadline_s=LOOK_DEADLINE_S
        )

    results = fan_out([plan.ranks[rank].node for rank in ranks], look)
    for result in results:
        if result.error is not None:
            raise result.error
    return {result.value.rank: result.value for result in results if result.value is not None}


def signal_ranks(context: RunContext, plan: RunPlan, ranks: Sequence[int]) -> None:
    """Send `ranks` the run's signal; those whose nodes do not answer get it after the next observation."""
    rank_of = _by_node(plan, ranks)

    def signal(node: NodeState) -> None:
        context.runtime(node).signal(context.connector, plan, rank_of[node.name], deadline_s=LOOK_DEADLINE_S)

    fan_out([plan.ranks[rank].node for rank in ranks], signal)


def stop_ranks(context: RunContext, plan: RunPlan, ranks: Sequence[int], *, kill: bool) -> tuple[int, ...]:
    """Stop `ranks`, and return those whose nodes were told; the others are stopped again after the next
    observation."""
    rank_of = _by_node(plan, ranks)

    def stop(node: NodeState) -> None:
        context.runtime(node).stop(
            context.connector, plan, rank_of[node.name], kill=kill, deadline_s=LOOK_DEADLINE_S
        )

    results = fan_out([plan.ranks[rank].node for rank in ranks], stop)
    return tuple(rank_of[result.node.name] for result in results if result.ok)


def collect_ranks(
    context: RunContext,
    plan: RunPlan,
    ranks: Sequence[int],
    *,
    tell: bool,
    followed: Collection[int] = (),
    deadline_s: float = 10.0,
) -> dict[int, OrchError | None]:
    """Complete the logs of `ranks`, then remove the ranks from their nodes. Rank -> error, or None.

    `followed`: ranks whose lines a follower of this process tells.
    """
    rank_of = _by_node(plan, ranks)

    def collect(node: NodeState) -> None:
        rank = rank_of[node.name]
        _collect_rank(
            context, plan, rank, tell=tell, tell_log=tell and rank not in followed, deadline_s=deadline_s
        )

    results = fan_out([plan.ranks[rank].node for rank in ranks], collect)
    if any(result.ok for result in results):
        tell_keeper(context)
    return {rank_of[result.node.name]: result.error for result in results}


def _by_node(plan: RunPlan, ranks: Sequence[int]) -> dict[str, int]:
    return {plan.ranks[rank].node.name: rank for rank in ranks}


def _collect_rank(
    context: RunContext, plan: RunPlan, rank: int, *, tell: bool, tell_log: bool, deadline_s: float
) -> None:
    """Complete a rank's log, bring its outputs, then remove the rank from its node. Raises RunnerError."""
    node = plan.ranks[rank].node
    logs.fetch_rest(
        context.connector,
        context.runtime(node),
        plan,
        rank,
        context.folder,
        processor=context.processor if tell_log else None,
        deadline_s=deadline_s,
    )
    collect_outputs(context, plan, rank, tell=tell)
    context.runtime(node).remove(context.connector, plan, rank, deadline_s=deadline_s)
    release_volumes(context.connector, context.volumes, plan, rank)
