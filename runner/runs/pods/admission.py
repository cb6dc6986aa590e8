"""Pods of a run on a fleet of a cluster: asked for as one gang, looked at until all run, and given back.

The queue is the cluster's. What is asked for is named after the run and its attempt, so whoever drives the
run goes on with it, and whoever ends it knows what to remove.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from orch.runner.errors import NoFit, NotAdmitted, PodsRefused, RunnerError, error_text
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.placement.slots import access_of, is_of_cluster
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs.run_secrets import filled_login
from orch.spec.access import OtherAccess
from orch.spec.codes import EXIT_CODES
from orch.spec.deletable import Evidence, why_kept
from orch.spec.state import FleetState, Gpus, NodeState, PodQueue

if TYPE_CHECKING:
    from orch.runner.kubernetes.client import KubernetesClient
    from orch.runner.kubernetes.gangs.documents import GangPod
    from orch.runner.kubernetes.gangs.gangs import Gangs
    from orch.runner.launch.launch_record import LaunchRecord
    from orch.runner.launch.volumes import Volumes
    from orch.runner.ledger.ledger import Ledger
    from orch.runner.runs.context import RunContext

ASKED = "its pods are asked for"
"""Why a new run waits whose pods nobody has asked for yet."""

RUNS = 1000
"""Of how many ended runs of a fleet pods are looked for."""

LOOK_S = 2.0
SLOW_LOOK_S = 15.0
"""How often the cluster is asked about a gang: at first, and once it has waited for long."""

WHY_S, WHY_EVERY_S = 10.0, 0.5
"""How long, and how often, a cluster is asked why it takes pods: a node says so once its pod has ended."""


def brings_pods(plan: RunPlan) -> bool:
    """Whether the nodes of a run are pods of its own."""
    return any(map(is_of_cluster, plan.nodes))


def look_again_s(row: RunRow) -> float:
    """In how many seconds a run that waits for its pods looks again."""
    since = row.queued_at or row.created_at
    return min(SLOW_LOOK_S, LOOK_S + max(0.0, row.now - since) / 60)


@contextmanager
def _asking() -> Iterator[None]:
    """What a cluster refuses becomes a reason to wait, or the end of the run."""
    from orch.runner.kubernetes.errors import KubernetesError

    try:
        yield
    except KubernetesError as error:
        why = error_text(error)
        if error.passing:
            raise NotAdmitted(f"its cluster cannot be asked: {why}", hint=error.hint) from error
        raise PodsRefused(
            "its pods cannot be asked for", detail=why, hint=error.hint, reason="creating_container_error"
        ) from error


@_asking()
def admitted(
    context: RunContext,
    row: RunRow,
    record: LaunchRecord,
    fleet: FleetState,
    *,
    volumes: Volumes,
    plan: RunPlan,
) -> FleetState:
    """The fleet with the pods of the run's next attempt as its nodes, when all of them run.

    Asks for them where they are not there. Raises NotAdmitted until then, also where the cluster does not
    answer now, NoFit where the fleet takes no pods any more, PodsRefused where the cluster will never start
    them, BadTask.
    """
    from orch.runner.kubernetes.gangs.look import due_back, pause_before_retry, refused
    from orch.runner.kubernetes.gangs.names import gang_name
    from orch.runner.runs.pods.requests import gang_request, gpus_of

    queue = fleet.queue
    if queue is None:
        raise NoFit(f"fleet {fleet.name} takes no pods any more")
    name = gang_name(plan.run, queue.mark, plan.run_id, row.next_attempt)
    gangs = _gangs(queue)
    look = gangs.look(name)
    if look.state == "gone" or not look.whole:
        login = filled_login(context.folder, record.image, context.secrets)
        request = gang_request(record, fleet, plan, volumes=volumes, login=login, attempt=row.next_attempt)
        if not gangs.apply(request):
            raise NotAdmitted("its former pods are being removed", detail="; ".join(look.reasons) or None)
        look = gangs.look(name)
    if look.state == "running":
        gpus = queue.gpus.model_copy(update={"count": gpus_of(record.task, queue)})
        return fleet.model_copy(update={"nodes": tuple(_node(name, queue, gpus, pod) for pod in look.pods)})
    why = "; ".join(look.reasons) or None
    now = gangs.now()
    if look.state in ("failed", "ended") or due_back(look, now, queue.start_limit_s):
        gangs.delete(name, uid=look.uid)
        if look.cause == "application":
            raise PodsRefused("its pods cannot start", detail=why, reason="creating_container_error")
        # Two that took each other's nodes would do so again.
        delay_s = pause_before_retry(row.retry_tries, random.random())
        raise NotAdmitted("its pods were taken back, and are asked for again", detail=why, delay_s=delay_s)
    if refused(look, now):
        raise PodsRefused("its pods cannot start", detail=why, reason="creating_container_error")
    raise NotAdmitted("its pods wait" if look.state == "waiting" else "its pods start", detail=why)


def why_taken(plan: RunPlan, *, wait_s: float = WHY_S) -> str | None:
    """What its cluster says of pods that it takes from an attempt; None where it says nothing.

    Waits for its word for a few seconds: a pod that its node evicts ends first.
    """
    first = plan.ranks[0].node
    gang = first.made_for or ""
    ends = time.monotonic() + wait_s
    uids = [str((rank.node.access.model_extra or {}).get("uid")) for rank in plan.ranks]
    while True:
        with suppress(RunnerError):
            found, over = _gangs(queue_of(first)).why_taken(gang, uids)
            if found is not None:
                of = next((r for r in plan.ranks if r.node.name == f"{gang}-{found.index}"), None)
                who = "its pods were" if of is None else f"rank {of.rank} on node {of.node.name} was"
                return f"{who} interrupted: {found.why}"
            if over:
                return None
        if time.monotonic() >= ends:
            return None
        time.sleep(WHY_EVERY_S)


def give_pods_back(context: RunContext, row: RunRow) -> None:
    """Remove what the cluster has for a run's latest attempt, and for one that it waited for."""
    plan = plan_of(row)
    pods = [node for node in plan.nodes if is_of_cluster(node)]
    if not pods:
        return
    from orch.runner.kubernetes.gangs.names import gang_name

    queue = queue_of(pods[0])
    gangs = _gangs(queue)
    for attempt in {row.attempt, row.next_attempt}:
        gangs.delete(gang_name(plan.run, queue.mark, plan.run_id, attempt))


def remove_leftover_pods(ledger: Ledger, fleet: FleetState) -> tuple[str, ...]:
    """Remove gangs of a fleet whose run has ended, or is past their attempt; their names. Those of runs that
    this ledger does not know stay. Raises what asking the cluster raises."""
    queue = fleet.queue
    if queue is None:
        return ()
    from orch.runner.kubernetes.gangs.names import gang_name

    gangs = _gangs(queue)
    found = gangs.listed(queue.mark)
    if not found:
        return ()
    known: dict[str, frozenset[str]] = {}
    for row in ledger.listed(ended=True, fleets=[fleet.name], limit=RUNS).rows:
        with suppress(RunnerError):
            plan = plan_of(row)
            attempts = {row.attempt, row.next_attempt} if row.active else ()
            known[plan.run_id] = frozenset(
                gang_name(plan.run, queue.mark, plan.run_id, attempt) for attempt in attempts
            )
    over = [each for each in found if why_kept(_evidence(each.name, known.get(each.token))) is None]
    for each in over:
        gangs.delete(each.name, uid=each.uid)
    return tuple(each.name for each in over)


def _evidence(gang: str, own: frozenset[str] | None) -> Evidence:
    """What is known of a gang. `own`: the gangs of its run; None of a run that the ledger does not know."""
    runs = ("its run",) if gang in (own or ()) else ()
    return Evidence(runs, over=own is not None, recorded=True)


_CLIENTS: dict[tuple[str | None, str | None], KubernetesClient] = {}
_OPENING = threading.Lock()
_COMPARED: set[tuple[str | None, str | None, str]] = set()


def _gangs(queue: PodQueue) -> Gangs:
    """The gangs of a queue, by a client that this process keeps. Raises PodsRefused on another cluster, where
    every pod counts as gone."""
    from orch.runner.kubernetes.client import KubernetesClient
    from orch.runner.kubernetes.gangs.gangs import Gangs

    where = (queue.kubeconfig, queue.context)
    with _OPENING:
        if where not in _CLIENTS:
            _CLIENTS[where] = KubernetesClient.open(*where)
    _require_own_cluster(queue)
    return Gangs(_CLIENTS[where], queue)


def _require_own_cluster(queue: PodQueue) -> None:
    """Asked once by a process. Raises PodsRefused where the kubeconfig leads to another cluster now."""
    where = (queue.kubeconfig, queue.context)
    if queue.cluster is None or (*where, queue.cluster) in _COMPARED:
        return
    from orch.runner.kubernetes.identity import difference

    found = _CLIENTS[where].identity()
    if (detail := difference(queue.cluster, found)) is not None:
        error = PodsRefused(
            "the fleet is on another cluster than its kubeconfig leads to now",
            detail=detail,
            hint="have the kubeconfig lead to the fleet's cluster again",
            reason="creating_container_error",
            code="ORCH459",
        )
        error.exit_code = EXIT_CODES["ORCH459"]
        raise error
    _COMPARED.add((*where, queue.cluster))


def queue_of(node: NodeState) -> PodQueue:
    """What leads to the cluster of a pod, or of a node that stands for one."""
    told = node.access.model_dump()
    return PodQueue(
        kubeconfig=told.get("kubeconfig"),
        context=told.get("context"),
        namespace=str(told["namespace"]),
        gang="job",
        pods=1,
        mark=str(told.get("mark") or ""),
        cluster=told.get("cluster"),
    )


def _node(gang: str, queue: PodQueue, gpus: Gpus, pod: GangPod) -> NodeState:
    """A pod that runs, as the node of a rank."""
    access = access_of(queue, pod=pod.name, uid=pod.uid, container="job")
    return NodeState(
        index=pod.index,
        name=f"{gang}-{pod.index}",
        access=OtherAccess.model_validate(access),
        runtime="process",
        internal_ip=pod.ip,
        cpus=queue.cpus,
        memory_mib=queue.memory_mib,
        gpus=gpus,
        region=queue.context,
        price_hourly=queue.price_hourly,
        machine=pod.node,
        made_for=gang,
    )
