"""Jobs on nodes that have Docker: each rank is a container there, and what it needs first is its image."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orch import images
from orch.images import docker as local_docker
from orch.images.build import PREFIX
from orch.runner.errors import CommandTimeout, HostUnreachable, ImageUnavailable, RunFailed, RunnerError
from orch.runner.events import ImageProgress, Notice, Processor
from orch.runner.launch.run_plan import RunPlan
from orch.runner.node import container
from orch.runner.node.commands import Command, StdinSource, argv, as_root
from orch.runner.node.connector import Completed, Connector, NodeResult, fan_out
from orch.runner.node.image_stream import NotKept, Source, reading, saved
from orch.runner.node.runtime import JobRuntime, ObservedRank, StartedRank
from orch.spec.state import NodeState

# Images sent at once: each takes most of a core here and all of the node's disk.
STREAMS = 4
TRANSFER_S = 2 * 3600.0
# How often a stream is told: at each percent.
_TELLS = 100
_STAMPED = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ?")


class DockerRuntime:
    """Jobs are containers of the node's own Docker; what is run there are the scripts of `container.py`."""

    def provide_image(
        self, connector: Connector, nodes: Sequence[NodeState], image: str, processor: Processor
    ) -> tuple[NodeResult[None], ...]:
        """See `JobRuntime`: images of ours are streamed from this machine, nodes pull all others."""
        if images.is_ours(image):
            _build_here(image, processor)
            with reading(image, len(nodes)) as source:
                return fan_out(
                    nodes, lambda node: _stream(connector, node, source, processor), at_once=STREAMS
                )
        return fan_out(nodes, lambda node: _pull(connector, node, image, processor), at_once=STREAMS)

    def start(self, connector: Connector, plan: RunPlan, rank: int, archive: Iterable[bytes]) -> StartedRank:
        result = connector.run(plan.ranks[rank].node, container.start_command(plan, rank, archive))
        return container.read_start(plan, rank, result)

    def lift_barrier(self, connector: Connector, plan: RunPlan, rank: int, port: int | None) -> None:
        connector.run(plan.ranks[rank].node, container.go_command(plan, rank, port), deadline_s=10.0)

    def observe(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> ObservedRank:
        command = container.observe_command(plan, rank)
        try:
            result = connector.run(plan.ranks[rank].node, command, deadline_s=deadline_s)
        except (HostUnreachable, CommandTimeout) as error:
            return container.read_observation(rank, error)
        return container.read_observation(rank, result)

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
        connector.run(plan.ranks[rank].node, command, deadline_s=deadline_s)

    def remove(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> None:
        node = plan.ranks[rank].node
        result = connector.run(node, container.release_command(plan, rank), deadline_s=deadline_s)
        if not result.ok:
            raise RunnerError(
                f"the container of rank {rank} could not be removed", where=node.name, detail=result.stderr
            )

    def hold(self, connector: Connector, plan: RunPlan, rank: int) -> None:
        connector.run(plan.ranks[rank].node, container.hold_command(plan, rank), deadline_s=5.0)

    def read_log(
        self,
        connector: Connector,
        plan: RunPlan,
        rank: int,
        on_line: Callable[[str], None],
        *,
        skip: int = 0,
        follow: bool = False,
        tail: int | None = None,
        since: str | None = None,
        deadline_s: float | None = None,
        until: threading.Event | None = None,
    ) -> bool:
        node = plan.ranks[rank].node
        command = container.log_command(plan, rank, skip=skip, follow=follow, tail=tail, since=since)
        complaints: list[str] = []

        def sort(line: str) -> None:
            # Docker complains among the job's own lines, each of which begins with its time.
            (on_line if _STAMPED.match(line) else complaints.append)(line)

        result = connector.run(node, command, deadline_s=deadline_s, on_line=sort, until=until)
        if result.exit_code == container.NO_STAGE:
            return False
        if not result.ok and (until is None or not until.is_set()):
            raise RunFailed(
                f"the log of rank {rank} could not be fetched",
                where=node.name,
                detail="; ".join(filter(None, (result.stderr.strip(), *complaints))),
            )
        return True

    def health_check(self) -> str:
        return "docker version --format '{{.Server.Version}}' 2>&1 >/dev/null | sed 's/^/Docker: /'"


def _build_here(image: str, processor: Processor) -> None:
    """Make sure that this machine holds one of our images; an older version's cannot be made again."""
    if local_docker.has_image(image):
        return
    name = image.removeprefix(PREFIX).partition(":")[0]
    if name in images.names() and images.resolve(f"orch/{name}") == image:
        images.ensure(name, progress=lambda text: processor.handle(Notice(text)))
        return
    raise ImageUnavailable(
        f"the image {image} is not on this machine",
        detail="images under orch/ are in no registry; they are built here and sent to the nodes",
        hint=f"images this version builds: {', '.join(f'orch/{known}' for known in images.names())}",
        reason="creating_container_error",
    )


@dataclass(frozen=True)
class _Told:
    """A stream, told as it is read: every so many bytes."""

    read: Callable[[], Iterator[bytes]]
    every: int
    told: Callable[[int], None]

    def __iter__(self) -> Iterator[bytes]:
        sent = told = 0
        for chunk in self.read():
            yield chunk
            sent += len(chunk)
            if sent - told >= self.every and sent < self.every * _TELLS:
                told = sent
                self.told(sent)
        self.told(sent)


def _stream(connector: Connector, node: NodeState, source: Source, processor: Processor) -> None:
    image, total = source.image, source.size

    def send(read: Callable[[], Iterator[bytes]]) -> Completed:
        told = _Told(
            read,
            (total or 1 << 30) // _TELLS,
            lambda sent: processor.handle(ImageProgress(node.name, image, sent, total)),
        )
        processor.handle(ImageProgress(node.name, image, 0, total))
        command = Command(
            # An empty stream loads well: only the image itself tells that it has come.
            as_root(f"docker load -q && {argv('docker', 'image', 'inspect', '-f', 'ok', '--', image)}"),
            f"load {image}",
            stdin=StdinSource(told),
            timeout_s=TRANSFER_S,
        )
        return connector.run(node, command)

    try:
        done = send(source.read)
    except NotKept:
        # A disk with room may have a quota. Read out for this node alone, nothing is kept.
        done = send(lambda: saved(image))
    if not done.ok:
        raise container.failure(done, f"node {node.name} could not load the image {image}")
    processor.handle(ImageProgress(node.name, image, total or 0, total, finished=True))


def _pull(connector: Connector, node: NodeState, image: str, processor: Processor) -> None:
    processor.handle(ImageProgress(node.name, image, 0, None))
    # Somebody may have brought it by other means since it was missed.
    here = argv("docker", "image", "inspect", "-f", "ok", "--", image)
    script = f"{here} >/dev/null 2>&1 || {argv('docker', 'pull', '-q', '--', image)}"
    done = connector.run(node, Command(as_root(script), f"pull {image}", timeout_s=TRANSFER_S))
    if not done.ok:
        told = container.failure(done, f"node {node.name} cannot get the image {image}")
        if type(told) is not RunFailed:
            raise told
        raise ImageUnavailable(
            told.summary,
            where=node.name,
            detail=told.detail,
            hint="is the name right, and can the node reach that registry?",
            reason="creating_container_error",
        )
    processor.handle(ImageProgress(node.name, image, 0, None, finished=True))


RUNTIMES: Mapping[str, JobRuntime] = {"docker": DockerRuntime()}


def runtime_of(node: NodeState, runtimes: Mapping[str, JobRuntime]) -> JobRuntime:
    """What starts jobs on a node. Raises RunnerError."""
    runtime = runtimes.get(node.runtime)
    if runtime is None:
        raise RunnerError(
            f"nobody here starts jobs on node {node.name}",
            where=node.name,
            detail=f"its runtime is {node.runtime!r}, this orch has {', '.join(runtimes)}",
            hint="upgrade orch on this machine",
        )
    return runtime
