"""From a task and chosen nodes to a run plan and its environments: pure, same input, same bytes."""

from __future__ import annotations

import shlex
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from orch.catalog.fabrics import Fabric, fabric
from orch.runner.errors import about_property
from orch.runner.launch.environment import (
    ArrayPlace,
    RankNode,
    RunFacts,
    fold,
    rank_environment,
    run_identifier,
    wants_slurm,
)
from orch.runner.launch.launcher import (
    Dialect,
    LaunchContext,
    Launcher,
    MpirunLauncher,
    TorchrunLauncher,
    hostfile,
    internal_addresses,
)
from orch.runner.launch.pods import check_pods
from orch.runner.launch.run_plan import (
    DevPlan,
    FabricAccess,
    OutputPlan,
    RankPlan,
    RankPort,
    RetryPlan,
    RunPlan,
    SignalPlan,
    StagedFile,
    UtilizationPlan,
    watched,
)
from orch.runner.launch.variables import check_names, check_sizes, set_variables
from orch.runner.launch.volumes import NO_VOLUMES, Volumes, checkpoint_warnings, volumes_of_ranks
from orch.runner.placement.node_fit import Seat
from orch.runner.placement.rank_groups import (
    RankGroup,
    first_ranks,
    group_of_rank,
    node_addresses,
    rank_groups,
)
from orch.runner.upload.selection import resolve_source, target_of
from orch.spec.grammar.interpolate import literal, render_args, render_command, render_for_launch, render_text
from orch.spec.state import FleetState

if TYPE_CHECKING:
    from orch.spec.models import Task
    from orch.spec.models.mounts import FileMount

START_DOCKER = "sh /usr/local/lib/orch/start-docker.sh"
"""Of the image `orch/docker`: starts the job's own Docker daemon, or says why there can be none."""


@dataclass(frozen=True)
class RunRequest:
    """The input of `compile_run`.

    `seats` are the nodes in rank order; `cli_env`, then `caller_env` fill bare names in `env`; `token` is
    unique to this run; `made`: names of nodes that were made for it. `examines`: it examines its nodes.
    `array`: its place in the array that it is a member of.
    """

    task: Task
    name: str
    number: int
    fleet: FleetState
    seats: tuple[Seat, ...]
    image: str
    base: Path
    token: str = ""
    attempt: int = 0
    run_args: tuple[str, ...] = ()
    cli_env: Mapping[str, str] = field(default_factory=dict[str, str])
    caller_env: Mapping[str, str] = field(default_factory=dict[str, str])
    repo: RepoName | None = None
    volumes: Volumes = NO_VOLUMES
    dev: DevPlan | None = None
    made: frozenset[str] = frozenset()
    examines: bool = False
    array: ArrayPlace | None = None


@dataclass(frozen=True)
class RepoName:
    """A repository's REPO_ID, and its folder or URL without credentials."""

    id: str
    label: str


@dataclass(frozen=True)
class CompiledRun:
    """The plan, the environment of each rank as text for `fill_secrets`, and warnings for the user."""

    plan: RunPlan
    environments: tuple[dict[str, str], ...]
    warnings: tuple[str, ...] = ()


def compile_run(request: RunRequest) -> CompiledRun:
    """Decide everything about a run.

    Raises BadTask for variables that are not set or not names, HostfileIncomplete (ORCH420) for a node of a
    distributed run without an internal address, BadTask (ORCH423) for what a pod cannot do.
    """
    task, seats = request.task, request.seats
    addresses = internal_addresses([seat.node for seat in seats])
    all_groups = rank_groups(task)
    groups, peers = group_of_rank(all_groups), node_addresses(all_groups, addresses)
    values = tuple(
        ChainMap(
            {
                "node_rank": str(rank),
                "job_num": str(rank),
                "run_name": request.name,
                **({"array_task_id": str(request.array.index)} if request.array is not None else {}),
            },
            peers,
        )
        for rank in range(len(seats))
    )
    leading = first_ranks(all_groups)
    launchers = tuple(launcher_of(task, value, request.run_args) for value in values)
    first = launchers[0]
    slots = tuple(first.tasks_per_node(seat.gpus) for seat in seats)
    needs_slots = first.counts_slots or any(seat.gpus for seat in seats)
    run_id = run_identifier(request.fleet.stack, request.number, request.name, request.token)
    network_fabric = _fabric(request.fleet, seats)
    volumes, warnings = volumes_of_ranks(task, values, seats, request.fleet, request.volumes)
    given = {**request.caller_env, **request.cli_env}
    variables = {group.place: set_variables(group.env, given) for group in all_groups}
    texts = (text for group in all_groups for text in (*group.commands, *variables[group.place].values()))
    slurm = wants_slurm(task.slurm_env, (*texts, *_arguments(task)))
    ranks: list[RankPlan] = []
    environments: list[dict[str, str]] = []
    ignored: dict[str, None] = {}
    for rank, seat in enumerate(seats):
        context = LaunchContext(
            rank=rank,
            addresses=addresses,
            slots=slots,
            run=request.name,
            interconnect=request.fleet.interconnect,
        )
        render = partial(render_command, values=values[rank], run_args=request.run_args)
        working_dir = (
            render_text(task.working_dir, values[rank], request.run_args)
            if task.working_dir is not None
            else None
        )
        ranks.append(
            RankPlan(
                rank=rank,
                # The ledger keeps plans, and no values of variables: those may be secret.
                node=seat.node.model_copy(update={"env": {}}),
                blocks=seat.blocks,
                script=_script(task, groups[rank], launchers[rank], context, render),
                working_dir=working_dir,
                mounts=volumes[rank].mounts,
                volumes=volumes[rank].volumes,
                max_cpus=groups[rank].resources.cpu.count.max,
                max_memory_mib=_whole_mib(groups[rank].resources.memory_mib.max),
                ports=_ports(groups[rank]) if rank in leading else (),
                group=groups[rank].name,
                shm_size_mib=groups[rank].resources.shm_size_mib if task.groups else None,
                idle_after_s=task.idle_duration_s if seat.node.name in request.made else None,
            )
        )
        job = values[rank]
        facts = RunFacts(
            number=request.number,
            run_id=run_id,
            name=request.name,
            fleet=request.fleet.name,
            backend=request.fleet.backend,
            nodes=tuple(
                RankNode(
                    s.node.name,
                    address,
                    s.gpus,
                    count,
                    s.share.cpus,
                    s.node.region,
                    env=_for_launch(s.node.env, job),
                    group=group.name,
                )
                for s, address, count, group in zip(seats, addresses, slots, groups, strict=True)
            ),
            attempt=request.attempt,
            interconnect=request.fleet.interconnect,
            launcher=first.name,
            slurm=slurm,
            ntasks_per_node=task.ntasks_per_node if "ntasks_per_node" in task.model_fields_set else None,
            working_dir=None if working_dir is None else literal(working_dir),
            repo_id=request.repo.id if request.repo else None,
            fabric_env=network_fabric.env if network_fabric else {},
            fleet_env=_for_launch(request.fleet.env, job),
            task_env={
                k: render_for_launch(v, job, request.run_args)
                for k, v in variables[groups[rank].place].items()
            },
            cli_env={k: literal(v) for k, v in request.cli_env.items()},
            checkpoint_dir=task.checkpoint.path if task.checkpoint else None,
            resumes=task.checkpoint is not None and task.checkpoint.resume and request.attempt > 0,
            array=request.array,
        )
        environment = rank_environment(facts, rank)
        ignored.update(dict.fromkeys(environment.ignored))
        environments.append(environment.values)
    for environment in {group.place: each for group, each in zip(groups, environments, strict=True)}.values():
        check_names(environment)
    for group, environment in zip(groups, environments, strict=True):
        check_sizes(environment, group, given=request.cli_env, task=task, fleet=request.fleet.name)
    plan = RunPlan(
        run=request.name,
        number=request.number,
        attempt=request.attempt,
        run_id=run_id,
        fleet=request.fleet.name,
        backend=request.fleet.backend,
        simulated=request.fleet.simulated,
        interconnect=request.fleet.interconnect,
        unreachable_grace_s=request.fleet.unreachable_grace_s,
        image=request.image,
        ranks=tuple(ranks),
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
        hostfile=hostfile(addresses, slots if needs_slots else None, first.dialect),
        dialect=first.dialect,
        ssh_between=len(seats) > 1,
        elastic=first.elastic if len(seats) > 1 else None,
        retry=_retry(task),
        dev=request.dev,
        slurm=slurm,
        tasks_per_node=task.ntasks_per_node if first.name == "commands" else 1,
        fabric=_access(network_fabric),
        tags=dict(task.tags),
        examines=request.examines,
        # The repository first: `files` may go into it.
        outputs=tuple(
            OutputPlan(path=item.path, to=_kept_at(request, item.to) if item.to else None)
            for item in task.outputs
        ),
        files=(*_repository(request), *_staged_files(request.base, task.files)),
    )
    check_pods(task, plan)
    warnings += tuple(
        f"ORCH193: {name} is set by orch itself; the value given is not used" for name in ignored
    )
    if task.checkpoint is not None:
        warnings += tuple(checkpoint_warnings(task.checkpoint.path, plan, request.fleet))
    if plan.utilization is not None and (
        unwatched := [rank.node.name for rank in ranks if not watched(plan, rank)]
    ):
        warnings += (
            f"`utilization_policy` is not watched on {fold(unwatched)}: how its accelerators are used cannot "
            "be read there",
        )
    if plan.privileged and any(0 < seat.gpus < seat.node.gpus.count for seat in seats):
        warnings += ("a privileged job sees all accelerators of its node, not only those of its blocks",)
    if plan.privileged and plan.on_containers:
        warnings += ("nodes are containers here: a privileged job has what they have, and no devices",)
    return CompiledRun(plan, tuple(environments), warnings)


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


def _repository(request: RunRequest) -> tuple[StagedFile, ...]:
    if request.repo is None:
        return ()
    (repo,) = request.task.repos
    return (StagedFile(source=request.repo.label, target=repo.path, if_exists=repo.if_exists),)


def _staged_files(base: Path, items: Sequence[FileMount]) -> Iterator[StagedFile]:
    for index, item in enumerate(items):
        with about_property(f"files.{index}"):
            source = resolve_source(base, item.local_path)
        target = target_of(item.local_path, item.path, source.pattern)
        yield StagedFile(source=str(source.path), target=target, pattern=source.pattern)


def _ports(group: RankGroup) -> tuple[RankPort, ...]:
    return tuple(RankPort(job=port.container_port, local=port.local_port) for port in group.ports)


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
