"""Jobs on nodes that have Docker: each rank is a container there, and what it needs first is its image."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from orch import images
from orch.runner.errors import CommandTimeout, HostUnreachable, RunFailed, RunnerError
from orch.runner.events import Processor
from orch.runner.node import container, container_start
from orch.runner.node.registry import RegistryLogin
from orch.runner.node.runtime import WHOLE_LOG, LogPart, ObservedRank, StartedRank
from orch.runner.node.runtimes.image_transfer import (
    STAMP,
    STAMPED,
    STREAMS,
    build_here,
    pull_image,
    reading,
    send_image,
)
from orch.runner.node_api.commands import Command, argv, as_root
from orch.runner.node_api.connector import Completed, Connector, NodeResult, fan_out
from orch.runner.plan.run_plan import RunPlan
from orch.spec.state import NodeState

# The end of a line before one without a time. Begins with what the engine of expressions finds quickly.
_BEFORE_OTHER = re.compile(rb"\n(?!\Z|" + STAMP + rb")")


class DockerRuntime:
    """Jobs are containers of the node's own Docker; what is run there are the scripts of `container.py`."""

    _in_pod = False

    def _run(self, connector: Connector, node: NodeState, command: Command, **how: Any) -> Completed:
        """Every script goes to its node here."""
        return connector.run(node, command, **how)

    def provide_image(
        self,
        connector: Connector,
        nodes: Sequence[NodeState],
        image: str,
        processor: Processor,
        login: RegistryLogin | None = None,
    ) -> tuple[NodeResult[None], ...]:
        """See `JobRuntime`: images of ours are streamed from this machine, nodes pull all others."""
        if images.is_ours(image):
            build_here(image, processor)
            with reading(image, len(nodes)) as source:
                return fan_out(
                    nodes, lambda node: send_image(connector, node, source, processor), at_once=STREAMS
                )
        return fan_out(
            nodes, lambda node: pull_image(connector, node, image, processor, login), at_once=STREAMS
        )

    def start(
        self, connector: Connector, plan: RunPlan, rank: int, archive: Iterable[bytes], *, begin: bool
    ) -> StartedRank:
        command = container_start.start_command(plan, rank, archive, begin=begin, in_pod=self._in_pod)
        result = self._run(connector, plan.ranks[rank].node, command)
        return container_start.read_start(plan, rank, result)

    def lift_barrier(self, connector: Connector, plan: RunPlan, rank: int, port: int | None) -> None:
        node = plan.ranks[rank].node
        result = self._run(connector, node, container.go_command(plan, rank, port), deadline_s=10.0)
        if result.exit_code not in (0, container.NO_STAGE):  # a job that is gone is seen at the next look
            raise container.failure(
                result, f"the commands of rank {rank} could not begin on node {node.name}"
            )

    def observe(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> ObservedRank:
        command = container.observe_command(plan, rank)
        try:
            result = self._run(connector, plan.ranks[rank].node, command, deadline_s=deadline_s)
        except (HostUnreachable, CommandTimeout) as error:
            return container.read_observation(rank, error, now=time.time())
        return container.read_observation(rank, result, now=time.time())

    def signal(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> None:
        node = plan.ranks[rank].node
        self._run(connector, node, container.signal_command(plan, rank), deadline_s=deadline_s)

    def stop(
        self,
        connector: Connector,
        plan: RunPlan,
        rank: int,
        *,
        kill: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        command = container.stop_command(plan, rank, kill=kill)
        self._run(connector, plan.ranks[rank].node, command, deadline_s=deadline_s)

    def remove(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> None:
        node = plan.ranks[rank].node
        result = self._run(connector, node, container.release_command(plan, rank), deadline_s=deadline_s)
        if not result.ok:
            raise RunnerError(
                f"the container of rank {rank} could not be removed", where=node.name, detail=result.stderr
            )

    def hold(self, connector: Connector, plan: RunPlan, rank: int) -> None:
        self._run(connector, plan.ranks[rank].node, container.hold_command(plan, rank), deadline_s=5.0)

    def read_log(
        self,
        connector: Connector,
        plan: RunPlan,
        rank: int,
        on_lines: Callable[[bytes], object],
        part: LogPart = WHOLE_LOG,
        *,
        deadline_s: float | None = None,
        until: threading.Event | None = None,
    ) -> bool:
        node = plan.ranks[rank].node
        command = container.log_command(plan, rank, part)
        complaints: list[str] = []

        def sort(lines: bytes) -> None:
            # Docker complains among the job's own lines, each of which begins with its time.
            if STAMPED.match(lines) and not _BEFORE_OTHER.search(lines):
                on_lines(lines)
                return
            for line in lines.removesuffix(b"\n").split(b"\n"):
                if STAMPED.match(line):
                    on_lines(line + b"\n")
                else:
                    complaints.append(line.decode(errors="replace"))

        result = self._run(connector, node, command, deadline_s=deadline_s, on_lines=sort, until=until)
        if result.exit_code == container.NO_STAGE:
            return False
        if not result.ok and (until is None or not until.is_set()):
            raise RunFailed(
                f"the log of rank {rank} could not be fetched",
                where=node.name,
                detail="; ".join(filter(None, (result.stderr.strip(), *complaints))),
            )
        return True

    def read_path(
        self, connector: Connector, plan: RunPlan, rank: int, path: str, on_data: Callable[[bytes], None]
    ) -> bool:
        result = self._run(
            connector, plan.ranks[rank].node, container.read_path_command(plan, rank, path), on_data=on_data
        )
        if result.exit_code == container.NO_PATH:
            return False
        if not result.ok:
            raise container.failure(result, f"{path} of rank {rank} cannot be read")
        return True

    def write_path(
        self, connector: Connector, plan: RunPlan, rank: int, path: str, archive: Iterable[bytes]
    ) -> None:
        result = self._run(
            connector, plan.ranks[rank].node, container.write_path_command(plan, rank, path, archive)
        )
        if not result.ok:
            raise container.failure(
                result,
                f"{path} of rank {rank} cannot be written",
                "name a folder that takes files",
            )

    def is_folder(self, connector: Connector, plan: RunPlan, rank: int, path: str) -> bool:
        words = argv("docker", "exec", "--user", "0", "--", plan.container(rank), "test", "-d", path)
        return self._run(connector, plan.ranks[rank].node, Command(as_root(words), f"look at {path}")).ok

    def job_command(
        self, plan: RunPlan, rank: int, text: str, *, root: bool = False, terminal: bool = False
    ) -> str:
        options = ["--interactive", *(["--tty"] if terminal else []), *(["--user", "0"] if root else [])]
        words = ("docker", "exec", *options, "--", plan.container(rank), "/bin/sh", "/run/orch/session.sh")
        return as_root(f"exec {argv(*words, text)}")

    def job_process(self, plan: RunPlan, rank: int) -> str:
        words = ("docker", "inspect", "--type", "container", "-f", "{{.State.Pid}}", "--")
        return argv(*words, plan.container(rank))

    def health_check(self) -> str:
        return "docker version --format '{{.Server.Version}}' 2>&1 >/dev/null | sed 's/^/Docker: /'"
