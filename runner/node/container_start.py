"""Start of a rank's container: the command, and its result. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from orch.runner.errors import NodeCordoned, NodePreparing, RunFailed
from orch.runner.node.container import (
    BUSY,
    CORDONED,
    GO_TICKS,
    MESSAGE,
    NO_FILES,
    NO_IMAGE,
    PORT_TAKEN,
    PREPARING,
    TREE,
    UNFIT,
    UNHEALTHY,
    failure,
    number,
)
from orch.runner.node.runtime import FilesMissing, ImageMissing, StartedRank
from orch.runner.node_api.accelerators import DeviceAccess, device_access
from orch.runner.node_api.claims import ABANDONED_AFTER_S, Claim, busy_error
from orch.runner.node_api.commands import IDLE_AFTER, LOOKUP, NODE_HOME, Command, StdinSource, argv, as_root
from orch.runner.node_api.connector import Completed
from orch.runner.node_api.cordon import Cordon
from orch.runner.node_api.first_boot import FAILED_STEPS, unfit_error
from orch.runner.node_api.verdict import unhealthy_error
from orch.runner.placement.block_resources import limit_options, share_of
from orch.runner.plan.environment import FIRST_RENDEZVOUS_PORT, host_name
from orch.runner.plan.run_plan import FabricAccess, RunPlan
from orch.spec.state import NodeScratch
from orch.templates import render

# What is filled in between the submission of a run and its first line; some takes a while to compile.
START_TEMPLATES = (
    *("node-start.sh.j2", "node-go.sh.j2", "claim-over.sh.j2"),
    *("entry.sh.j2", "job-session.sh.j2", "torch-env.sh.j2", "ssh-client.sh.j2", "ssh-serve.sh.j2"),
)
# How Docker, and runc below it, say that a container's user or folder cannot be.
_NO_USER = re.compile(r"unable to find (user|group) ([^:\s]+): no matching entries")
_NO_FOLDER = re.compile(r"error during container init: (?:mkdir|chdir)|mkdir /|chdir to cwd|not a directory")

# Docker gives a privileged container every capability there is. A node that is a container has few of them,
# so `--privileged` fails there. These are what it has (providers/orch/local_node.py), without devices.
_CONTAINER_NODE_PRIVILEGES = (
    *(f"--cap-add={name}" for name in ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "IPC_LOCK")),
    "--security-opt=seccomp=unconfined",
    "--security-opt=apparmor=unconfined",
    "--cgroupns=private",
)


def start_command(
    plan: RunPlan, rank: int, archive: Iterable[bytes], *, begin: bool = False, in_pod: bool = False
) -> Command:
    """Claim, stage, create and start one rank, behind its barrier.

    `begin`: its commands begin at once, which saves a round trip, where there is nothing to set up for that:
    no other rank to wait for, no clock, no watch. `in_pod`: the node is a container itself, so the job gets
    what that has."""
    rank_plan = plan.ranks[rank]
    node = rank_plan.node
    stage_folder = f"{NODE_HOME}/runs/{plan.container(rank)}"
    claim = Claim.now(plan.container(rank), plan.run, node.blocks)
    access = None if plan.simulated or in_pod else device_access(node.gpus)
    scratch = None if in_pod else _scratch(plan, rank)
    text = render(
        "node-start.sh.j2",
        home=NODE_HOME,
        name=plan.container(rank),
        claim=claim.line,
        blocks=rank_plan.blocks,
        blocks_total=node.blocks,
        left_after_s=ABANDONED_AFTER_S,
        cordoned=CORDONED,
        preparing=PREPARING,
        unfit=UNFIT,
        unhealthy=None if plan.examines else UNHEALTHY,
        failed_steps=FAILED_STEPS,
        internal_ip=node.internal_ip,
        ifname_for=("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if len(plan.ranks) > 1 else (),
        image=plan.image,
        image_command=plan.starts_image(rank),
        trees=tuple(file.tree for file in plan.files),
        lookup=LOOKUP,
        no_files=NO_FILES,
        mounts=[
            {
                "source": mount.source,
                "bind": f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}",
                "optional": mount.optional,
                "check": "none" if plan.rehearsed and mount.check in ("folder", "mount") else mount.check,
            }
            for mount in rank_plan.mounts
        ],
        access=access,
        scratch=scratch,
        idle_after=IDLE_AFTER,
        idle_after_s=rank_plan.idle_after_s,
        scratch_export=f"export ORCH_SCRATCH={shlex.quote(scratch.path)}" if scratch else "",
        part=None
        if access is None or (rank_plan.whole and access.whole)
        else _partial_access(access, share_of(node, 1).gpus),
        hosts=plan.names_hosts,
        simulated=plan.simulated or in_pod,
        in_pod=in_pod,
        privileged=plan.privileged,
        fabric=FabricAccess() if in_pod else plan.fabric,
        left_out="" if in_pod else _simulated_omissions(plan),
        options=argv(*_settings(plan, rank, stage_folder))
        if in_pod
        else argv(
            *_options(plan, rank, stage_folder),
            *_accelerators(access, whole=rank_plan.whole),
            *_fabric_options(plan),
        ),
        ports=tuple(dict.fromkeys(port.job for port in rank_plan.ports)),
        port_taken=PORT_TAKEN,
        find_port=rank == 0,
        begins=begin and _begins_alone(plan),
        ticks=GO_TICKS,
        first_port=FIRST_RENDEZVOUS_PORT,
    )
    return Command(
        as_root(text), f"start {plan.container(rank)}", stdin=StdinSource(archive), timeout_s=300.0
    )


def _begins_alone(plan: RunPlan) -> bool:
    """Whether a run's commands may begin as soon as its container is there."""
    inactivity_s = plan.dev.inactivity_s if plan.dev is not None else None
    clocks = plan.max_duration_s, inactivity_s, plan.signal, plan.utilization
    return len(plan.ranks) == 1 and not any(clocks)


def _scratch(plan: RunPlan, rank: int) -> NodeScratch | None:
    """Where the job gets a folder of its own. A mount of its task at the same path wins.

    A rehearsed node is a container without the disks of the machine that it stands for.
    """
    scratch = plan.ranks[rank].node.scratch
    if scratch is None or any(mount.target == scratch.path for mount in plan.ranks[rank].mounts):
        return None
    return scratch.model_copy(update={"check": "none"}) if plan.rehearsed else scratch


def _accelerators(access: DeviceAccess | None, *, whole: bool) -> tuple[str, ...]:
    """Docker's options for accelerators that do not depend on the claimed blocks."""
    return () if access is None else (*access.always, *(access.whole if whole else ()))


def _fabric_options(plan: RunPlan) -> list[str]:
    fabric = plan.fabric
    options = [f"--cap-add={name}" for name in fabric.capabilities]
    options += [f"--volume={mount}" for mount in fabric.mounts if not plan.simulated]
    return options + ([] if plan.simulated else [f"--ulimit={k}={v}" for k, v in fabric.ulimits.items()])


def _simulated_omissions(plan: RunPlan) -> str:
    """Mounts and limits of the fabric that a rehearsed node leaves out: this machine may refuse them."""
    if not plan.simulated:
        return ""
    limits = (f"{name} {'unlimited' if value < 0 else value}" for name, value in plan.fabric.ulimits.items())
    return ", ".join((*plan.fabric.mounts, *limits))


def _partial_access(access: DeviceAccess, per_block: int) -> dict[str, object]:
    """Template values for the accelerators of some blocks: the text before and after a device or a list."""
    before, _, after = (access.joined or access.each or "").partition("{}")
    return {
        "per_block": per_block,
        "devices": access.devices,
        "joined": access.joined is not None,
        "before": before,
        "after": after,
    }


def _settings(plan: RunPlan, rank: int, stage_folder: str) -> list[str]:
    """Docker's options for what a task says of a job itself, and where it finds its stage."""
    rank_plan = plan.ranks[rank]
    options = [
        f"--volume={stage_folder}:/run/orch:ro",
        f"--volume={stage_folder}/state:/run/orch/state",
    ]
    if rank_plan.working_dir is not None:
        options.append(f"--workdir={rank_plan.working_dir}")
    if plan.user is not None:
        options.append(f"--user={plan.user}")
    shm_size_mib = plan.shm_size_mib if rank_plan.shm_size_mib is None else rank_plan.shm_size_mib
    # A rehearsed pod is on a machine that may have less.
    if shm_size_mib is not None and not (plan.simulated and rank_plan.node.is_pod):
        options.append(f"--shm-size={shm_size_mib}m")
    return options


def _options(plan: RunPlan, rank: int, stage_folder: str) -> list[str]:
    rank_plan = plan.ranks[rank]
    options = [
        "--init",
        "--network=host",
        "--entrypoint=/bin/sh",
        *_settings(plan, rank, stage_folder),
        "--env=TINI_KILL_PROCESS_GROUP=1",  # signals go to the job's process group, not to its shell alone
        # The runner reads whole logs back; a node's own default may rotate lines away.
        *("--log-driver=json-file", "--log-opt=max-size=1t"),
    ]
    labels = {
        "run": plan.run,
        "number": plan.number,
        "attempt": plan.attempt,
        "rank": rank,
        "fleet": plan.fleet,
        **({"group": rank_plan.group} if rank_plan.group is not None else {}),
        **{f"tag.{key}": value for key, value in plan.tags.items()},
    }
    options += [f"--label=orch.{key}={value}" for key, value in labels.items()]
    if plan.privileged:
        options += _CONTAINER_NODE_PRIVILEGES if plan.on_containers else ["--privileged"]
    if plan.names_hosts:
        options.append(f"--hostname={host_name(plan.run, rank, plan.ranks[rank].node.name)}")
    return options + limit_options(
        rank_plan.node, rank_plan.blocks, rank_plan.max_cpus, rank_plan.max_memory_mib
    )


def read_start(plan: RunPlan, rank: int, result: Completed) -> StartedRank:
    """The result of `start_command`.

    Raises NodesBusy, NodeCordoned, NodePreparing, NodeUnfit, FilesMissing, ImageMissing, NodeDiskFull or
    RunFailed.
    """
    messages = [(key, value) for key, value in MESSAGE.findall(result.stdout)]
    values = dict(reversed(messages))
    if result.ok:
        return StartedRank(
            rank,
            number(result, "port", values["port"], 1, 65535) if "port" in values else None,
            tuple(
                number(result, "blocks", block, 0, plan.ranks[rank].node.blocks - 1)
                for block in values.get("blocks", "").split()
            ),
            tuple(f"{result.node}: {value}" for key, value in messages if key == "notice"),
            "begun" in values,
        )
    if result.exit_code == BUSY:
        rank_plan = plan.ranks[rank]
        holders = [Claim.parse(value) for key, value in messages if key == "busy"]
        raise busy_error(result.node, rank_plan.blocks, rank_plan.node.blocks, holders)
    if result.exit_code == CORDONED:
        raise NodeCordoned(
            f"node {result.node} is cordoned ({Cordon.parse(values.get('cordon', ''))})",
            where=result.node,
            hint=f"run elsewhere, or let it take jobs again with `orch cordon --undo {result.node}`",
        )
    if result.exit_code == PREPARING:
        raise NodePreparing(
            f"node {result.node} is still being prepared",
            where=result.node,
            hint=f"`orch exec {plan.fleet} -- journalctl -u orch-prepare` shows how far it is",
        )
    if result.exit_code == PORT_TAKEN:
        port = number(result, "port", values.get("port", ""), 1, 65535)
        raise RunFailed(
            f"port {port} of node {result.node} is taken",
            where=result.node,
            detail="another program of the node listens there, and jobs share its network",
            hint="have the job listen on another port, or run it on another node",
            reason="ports_binding_failed",
        )
    if result.exit_code == UNFIT:
        raise unfit_error(result.node, values.get("unfit", ""))
    if result.exit_code == UNHEALTHY:
        raise unhealthy_error(result.node, values.get("unhealthy", ""), plan.fleet)
    if result.exit_code == NO_FILES:
        raise FilesMissing(
            f"node {result.node} does not hold the files of the run",
            where=result.node,
            trees=tuple(
                dict.fromkeys(value for key, value in messages if key == "lacks" and TREE.fullmatch(value))
            ),
            present=tuple(each for each in values.get("trees", "").split() if TREE.fullmatch(each)),
        )
    if result.exit_code == NO_IMAGE:
        raise ImageMissing(
            f"node {result.node} does not hold the image {plan.image}",
            where=result.node,
            reason="creating_container_error",
        )
    raise _start_failure(plan, rank, result)


def _start_failure(plan: RunPlan, rank: int, result: Completed) -> RunFailed:
    """Why Docker did not start a container, where the task can mend it in terms of the task."""
    node = result.node
    error = failure(result, f"the container of rank {rank} could not be started on node {node}")
    told = error.detail or ""
    if (found := _NO_USER.search(told)) is not None:
        summary = f"the image {plan.image} has no {found[1]} {found[2]}"
        hint = "`user` takes a name that the image knows, or numbers, which need none: `user: 1000:1000`"
        return RunFailed(summary, where=node, hint=hint, reason="creating_container_error")
    folder = plan.ranks[rank].working_dir
    if folder is not None and _NO_FOLDER.search(told) and folder in told:
        summary = f"`working_dir` {folder} cannot be made in the container of rank {rank}"
        return RunFailed(
            summary,
            where=node,
            detail=told.rpartition("error during container init: ")[2].removesuffix(": unknown."),
            hint="name a folder that is there, or can be made",
            reason="creating_container_error",
        )
    return error
