"""From a task and chosen nodes to a run plan and its environments: pure, same input, same bytes."""

from __future__ import annotations

import shlex
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orch.catalog.fabrics import Fabric, fabric
from orch.runner.launch.files import staged_files
from orch.runner.launch.launcher import LaunchContext, Launcher, hostfile, internal_addresses, launcher_of
from orch.runner.launch.pods import check_pods
from orch.runner.launch.run_request import RunRequest
from orch.runner.launch.variables import check_sizes, set_variables
from orch.runner.launch.volumes import RankVolumes, checkpoint_warnings, volumes_of_ranks
from orch.runner.node_api.accelerators import watched
from orch.runner.placement.node_fit import Seat
from orch.runner.placement.rank_groups import (
    RankGroup,
    first_ranks,
    group_of_rank,
    node_addresses,
    rank_groups,
)
from orch.runner.plan.environment import (
    RankNode,
    RunFacts,
    RunNodes,
    check_names,
    rank_environment,
    run_identifier,
    wants_slurm,
)
from orch.runner.plan.run_plan import (
    FabricAccess,
    OutputPlan,
    RankPlan,
    RankPort,
    RetryPlan,
    RunPlan,
    SignalPlan,
    StagedFile,
    UtilizationPlan,
)
from orch.spec.grammar.hosts import fold
from orch.spec.grammar.interpolate import literal, render_command, render_for_launch, render_text
from orch.spec.state import FleetState

if TYPE_CHECKING:
    from orch.spec.models import Task

START_DOCKER = "sh /usr/local/lib/orch/start-docker.sh"
"""Of the image `orch/docker`: starts the job's own Docker daemon, or says why there can be none."""


@dataclass(frozen=True)
class CompiledRun:
    """The plan, the environment of each rank as text for `fill_secrets`, and warnings for the user."""

    plan: RunPlan
    environments: tuple[dict[str, str], ...]
    warnings: tuple[str, ...] = ()


def compile_run(request: RunRequest) -> CompiledRun:
    """Decide everything about a run, in time that grows linearly with its ranks.

    Raises BadTask for variables that are not set or not names, HostfileIncomplete (ORCH420) for a node of a
    distributed run without an internal address, BadTask (ORCH423) for what a pod cannot do.
    """
    task, seats = request.task, request.seats
    common, warnings = _common(request)
    ranks: list[RankPlan] = []
    environments: list[dict[str, str]] = []
    ignored: dict[str, None] = {}
    for rank in range(len(seats)):
        working_dir = (
            render_text(task.working_dir, common.values[rank], request.run_args)
            if task.working_dir is not None
            else None
        )
        ranks.append(_rank_plan(common, rank, working_dir))
        environment = rank_environment(_facts(common, rank, working_dir), rank)
        ignored.update(dict.fromkeys(environment.ignored))
        environments.append(environment.values)
    groups = common.groups
    for values in {group.place: each for group, each in zip(groups, environments, strict=True)}.values():
        check_names(values)
    for group, values in zip(groups, environments, strict=True):
        check_sizes(values, group, given=request.cli_env, task=task, fleet=request.fleet.name)
    plan = _run_plan(common, tuple(ranks))
    check_pods(task, plan)
    warnings += tuple(
        f"ORCH193: {name} is set by orch itself; the value given is not used" for name in ignored
    )
    return CompiledRun(plan, tuple(environments), (*warnings, *_warnings(request, plan)))


@dataclass(frozen=True)
class _Common:
    """What the ranks of a run share. `groups`, `values`, `launchers`, `volumes` are by rank; `leading`: the
    first rank of each group; `variables`: those of the task by the place of the group."""

    request: RunRequest
    groups: tuple[RankGroup, ...]
    leading: frozenset[int]
    values: tuple[Mapping[str, str], ...]
    launchers: tuple[Launcher, ...]
    launch: LaunchContext
    volumes: tuple[RankVolumes, ...]
    variables: Mapping[str, Mapping[str, str]]
    network: Fabric | None
    facts: RunFacts

    @property
    def first(self) -> Launcher:
        return self.launchers[0]


def _common(request: RunRequest) -> tuple[_Common, tuple[str, ...]]:
    """What the ranks share, and the warnings on their volumes."""
    task, seats, fleet = request.task, request.seats, request.fleet
    addresses = internal_addresses([seat.node for seat in seats])
    all_groups = rank_groups(task)
    groups = group_of_rank(all_groups)
    values = _values_by_rank(request, node_addresses(all_groups, addresses))
    launchers = tuple(launcher_of(task, each, request.run_args) for each in values)
    slots = tuple(launchers[0].tasks_per_node(seat.gpus) for seat in seats)
    volumes, warnings = volumes_of_ranks(task, values, seats, fleet, request.volumes)
    given = {**request.caller_env, **request.cli_env}
    variables = {group.place: set_variables(group.env, given) for group in all_groups}
    texts = (text for group in all_groups for text in (*group.commands, *variables[group.place].values()))
    network = _fabric(fleet, seats)
    nodes = tuple(
        RankNode(s.node.name, address, s.gpus, count, s.share.cpus, s.node.region, group=group.name)
        for s, address, count, group in zip(seats, addresses, slots, groups, strict=True)
    )
    facts = RunFacts(
        number=request.number,
        run_id=run_identifier(fleet.stack, request.number, request.name, request.token),
        fleet=fleet.name,
        backend=fleet.backend,
        nodes=RunNodes(request.name, nodes),
        attempt=request.attempt,
        interconnect=fleet.interconnect,
        launcher=launchers[0].name,
        slurm=wants_slurm(task.slurm_env, (*texts, *_arguments(task))),
        ntasks_per_node=task.ntasks_per_node if "ntasks_per_node" in task.model_fields_set else None,
        repo_id=request.repo.id if request.repo else None,
        fabric_env=network.env if network else {},
        cli_env={k: literal(v) for k, v in request.cli_env.items()},
        checkpoint_dir=task.checkpoint.path if task.checkpoint else None,
        resumes=task.checkpoint is not None and task.checkpoint.resume and request.attempt > 0,
        array=request.array,
    )
    return _Common(
        request=request,
        groups=groups,
        leading=frozenset(first_ranks(all_groups)),
        values=values,
        launchers=launchers,
        launch=LaunchContext(0, addresses, slots, request.name, fleet.interconnect),
        volumes=volumes,
        variables=variables,
        network=network,
        facts=facts,
    ), warnings


def _values_by_rank(request: RunRequest, peers: dict[str, str]) -> tuple[Mapping[str, str], ...]:
    """What references of each rank are filled in with. `peers`: the addresses of the task's groups."""
    own = {"run_name": request.name}
    if request.array is not None:
        own["array_task_id"] = str(request.array.index)
    return tuple(
        ChainMap({"node_rank": str(rank), "job_num": str(rank), **own}, peers)
        for rank in range(len(request.seats))
    )


def _rank_plan(common: _Common, rank: int, working_dir: str | None) -> RankPlan:
    request, group = common.request, common.groups[rank]
    task, seat, volumes = request.task, request.seats[rank], common.volumes[rank]
    render = partial(render_command, values=common.values[rank], run_args=request.run_args)
    return RankPlan(
        rank=rank,
        # The ledger keeps plans, and no values of variables: those may be secret.
        node=seat.node.model_copy(update={"env": {}}),
        blocks=seat.blocks,
        script=_script(task, group, common.launchers[rank], replace(common.launch, rank=rank), render),
        working_dir=working_dir,
        mounts=volumes.mounts,
        volumes=volumes.volumes,
        max_cpus=group.resources.cpu.count.max,
        max_memory_mib=_whole_mib(group.resources.memory_mib.max),
        ports=_ports(group) if rank in common.leading else (),
        group=group.name,
        shm_size_mib=group.resources.shm_size_mib if task.groups else None,
        idle_after_s=task.idle_duration_s if seat.node.name in request.made else None,
    )


def _facts(common: _Common, rank: int, working_dir: str | None) -> RunFacts:
    """The facts of the run with what is rendered for one rank."""
    request, values = common.request, common.values[rank]
    return replace(
        common.facts,
        working_dir=None if working_dir is None else literal(working_dir),
        fleet_env=_for_launch(request.fleet.env, values),
        node_env=_for_launch(request.seats[rank].node.env, values),
        task_env={
            name: render_for_launch(text, values, request.run_args)
            for name, text in common.variables[common.groups[rank].place].items()
        },
    )


def _run_plan(common: _Common, ranks: tuple[RankPlan, ...]) -> RunPlan:
    request, first, launch = common.request, common.first, common.launch
    task, fleet, seats = request.task, request.fleet, request.seats
    counts_slots = first.counts_slots or any(seat.gpus for seat in seats)
    return RunPlan(
        run=request.name,
        number=request.number,
        attempt=request.attempt,
        run_id=common.facts.run_id,
        fleet=fleet.name,
        backend=fleet.backend,
        simulated=fleet.simulated,
        interconnect=fleet.interconnect,
        unreachable_grace_s=fleet.unreachable_grace_s,
        image=request.image,
        ranks=ranks,
        launcher="commands" if first.name == "image" and task.entrypoint else first.name,
        startup_order=first.startup_order or task.startup_order,
        stop_criteria=first.stop_criteria or task.stop_criteria,
        max_duration_s=task.max_duration_s,
        stop_duration_s=task.stop_duration_s,
        signal=_signal(task),
        utilization=_utilization(task),
        shell=_shell(task),
        entrypoint=tuple(shlex.split(task.entrypoint)) if task.entrypoint and first.name != "image" else (),
        user=task.user,
        privileged=task.privileged or task.docker,
        shm_size_mib=task.resources.shm_size_mib if not task.groups else None,
        hostfile=hostfile(launch.addresses, launch.slots if counts_slots else None, first.dialect),
        dialect=first.dialect,
        ssh_between=len(seats) > 1,
        elastic=first.elastic if len(seats) > 1 else None,
        retry=_retry(task),
        dev=request.dev,
        slurm=common.facts.slurm,
        tasks_per_node=task.ntasks_per_node if first.name == "commands" else 1,
        fabric=_access(common.network),
        tags=dict(task.tags),
        examines=request.examines,
        # The repository first: `files` may go into it.
        outputs=tuple(
            OutputPlan(path=item.path, to=_kept_at(request, item.to) if item.to else None)
            for item in task.outputs
        ),
        files=(*_repository(request), *staged_files(request.base, task.files)),
    )


def _warnings(request: RunRequest, plan: RunPlan) -> Iterator[str]:
    """Warnings on a finished plan."""
    task, seats = request.task, request.seats
    if task.checkpoint is not None:
        yield from checkpoint_warnings(task.checkpoint.path, plan, request.fleet)
    if plan.utilization is not None and (
        unwatched := [rank.node.name for rank in plan.ranks if not watched(plan, rank)]
    ):
        yield (
            f"`utilization_policy` is not watched on {fold(unwatched)}: how its accelerators are used cannot "
            "be read there"
        )
    if plan.privileged and any(0 < seat.gpus < seat.node.gpus.count for seat in seats):
        yield "a privileged job sees all accelerators of its node, not only those of its blocks"
    if plan.privileged and plan.on_containers:
        yield "nodes are containers here: a privileged job has what they have, and no devices"


def _kept_at(request: RunRequest, to: str) -> str:
    """Where an output is kept; each member of an array has a folder of its own there, called by its index."""
    folder = Path(request.base, Path(to).expanduser()).absolute()
    return str(folder if request.array is None else folder / str(request.array.index))


def _retry(task: Task) -> RetryPlan | None:
    retry = task.retry
    if retry is None:
        return None
    return RetryPlan(on_events=retry.on_events, duration_s=retry.duration_s, max_attempts=retry.max_attempts)


def _signal(task: Task) -> SignalPlan | None:
    signal = task.signal
    if signal is None:
        return None
    return SignalPlan(name=signal.name, before_s=signal.before_s, shell_only=signal.shell_only)


def _utilization(task: Task) -> UtilizationPlan | None:
    policy = task.utilization_policy
    if policy is None:
        return None
    return UtilizationPlan(min_gpu_utilization=policy.min_gpu_utilization, window_s=policy.time_window_s)


def _whole_mib(size: float | None) -> int | None:
    return None if size is None else int(size)


def _for_launch(env: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """The variables of a fleet or node for one job. Without `${{` they are final."""
    return {k: render_for_launch(v, values) if "${{" in v else v for k, v in env.items()}


def _fabric(fleet: FleetState, seats: Sequence[Seat]) -> Fabric | None:
    """The interconnect as the jobs of a distributed run see it."""
    if len(seats) < 2:
        return None
    known, queue = fabric(fleet.interconnect, seats[0].node.instance_type), fleet.queue
    if queue is None or queue.fabric is None:
        return known
    # Pods were made with its devices, and their interfaces are called otherwise than those of machines.
    from orch.runner.kubernetes.gangs.fabric import fabric_variables

    title = known.title if known is not None else queue.fabric
    return Fabric(name=queue.fabric, title=title, env=fabric_variables(queue))


def _access(network_fabric: Fabric | None) -> FabricAccess:
    if network_fabric is None:
        return FabricAccess()
    return FabricAccess(
        devices=network_fabric.devices,
        optional_devices=network_fabric.optional_devices,
        mounts=network_fabric.mounts,
        capabilities=network_fabric.capabilities,
        ulimits=dict(network_fabric.ulimits),
    )


def _script(
    task: Task,
    group: RankGroup,
    launcher: Launcher,
    context: LaunchContext,
    render: Callable[[str], str],
) -> str:
    """The commands and the launcher as one text, each part running only if those before it succeeded.

    Braces, not `a && b`: a part may end in a comment or hold a here-document.
    """
    parts = [START_DOCKER] if task.docker else []
    parts += [render(command) for command in group.commands]
    launch = launcher.script(context)
    if launch is not None:
        parts.append(launch)
    if launcher.name == "image" and task.entrypoint:
        parts.append("exec " + shlex.join(shlex.split(task.entrypoint)))
    return " && ".join(f"{{ {part.rstrip()}\n}}" for part in parts) + "\n" if parts else ""


def _shell(task: Task) -> str:
    if task.shell is not None:
        return task.shell
    return "bash" if task.image is None else "sh"


def _arguments(task: Task) -> tuple[str, ...]:
    block = task.torchrun or task.mpirun
    return block.args if block is not None else ()


def _ports(group: RankGroup) -> tuple[RankPort, ...]:
    return tuple(RankPort(job=port.container_port, local=port.local_port) for port in group.ports)


def _repository(request: RunRequest) -> tuple[StagedFile, ...]:
    if request.repo is None:
        return ()
    (repo,) = request.task.repos
    return (StagedFile(source=request.repo.label, target=repo.path, if_exists=repo.if_exists),)
