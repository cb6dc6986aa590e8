"""Getting a job's image onto nodes: ours are streamed from this machine, nodes pull all others."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orch import images
from orch.images import docker as local_docker
from orch.images.build import PREFIX
from orch.runner.errors import ImageUnavailable
from orch.runner.events import ImageProgress, Notice, Processor
from orch.runner.node import container
from orch.runner.ssh.commands import Command, StdinSource, argv, as_root
from orch.runner.ssh.transport import NodeResult, Transport, fan_out
from orch.spec.state import NodeState

# Images sent at once: each takes most of a core here and all of the node's disk.
STREAMS = 4
TRANSFER_S = 2 * 3600.0
_CHUNK = 1 << 18
# How often a stream is told: at each percent.
_TELLS = 100


def provide(
    transport: Transport, nodes: Sequence[NodeState], image: str, processor: Processor
) -> tuple[NodeResult[None], ...]:
    """Make `image` present on `nodes`. A node's result may carry ImageUnavailable or NodeDiskFull."""
    if images.is_ours(image):
        _build_here(image, processor)
        work: Callable[[NodeState], None] = lambda node: _stream(transport, node, image, processor)  # noqa: E731
    else:
        work = lambda node: _pull(transport, node, image, processor)  # noqa: E731

    return fan_out(nodes, work, at_once=STREAMS)


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
class _Saved:
    """`docker save` of an image, told as it is read."""

    image: str
    every: int
    told: Callable[[int], None]

    def __iter__(self) -> Iterator[bytes]:
        with subprocess.Popen(
            ["docker", "save", "--", self.image],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            sent = told = 0
            try:
                while process.stdout is not None and (chunk := process.stdout.read(_CHUNK)):
                    yield chunk
                    sent += len(chunk)
                    if sent - told >= self.every and sent < self.every * _TELLS:
                        told = sent
                        self.told(sent)
            except BaseException:  # the reader went away: nobody wants the rest
                process.kill()
                raise
            errors = process.stderr.read() if process.stderr is not None else b""
        if process.returncode:
            raise ImageUnavailable(
                f"this machine cannot read out the image {self.image}",
                detail=errors.decode(errors="replace").strip()
                or f"`docker save` ended with {process.returncode}",
                hint="`docker image inspect` it, and build it anew where it is damaged",
                reason="creating_container_error",
            )
        self.told(sent)


def _stream(transport: Transport, node: NodeState, image: str, processor: Processor) -> None:
    size = local_docker.ask("image", "inspect", "--format", "{{.Size}}", image)
    total = int(size) if size and size.isdigit() else None
    source = _Saved(
        image,
        (total or 1 << 30) // _TELLS,
        lambda sent: processor.handle(ImageProgress(node.name, image, sent, total)),
    )
    processor.handle(ImageProgress(node.name, image, 0, total))
    command = Command(
        # An empty stream loads well: only the image itself tells that it has come.
        as_root(f"docker load -q && {argv('docker', 'image', 'inspect', '-f', 'ok', '--', image)}"),
        f"load {image}",
        stdin=StdinSource(source),
        timeout_s=TRANSFER_S,
    )
    done = transport.run(node, command)
    if not done.ok:
        raise container.failure(done, f"node {node.name} could not load the image {image}")
    processor.handle(ImageProgress(node.name, image, total or 0, total, finished=True))


def _pull(transport: Transport, node: NodeState, image: str, processor: Processor) -> None:
    processor.handle(ImageProgress(node.name, image, 0, None))
    # Somebody may have brought it by other means since it was missed.
    here = argv("docker", "image", "inspect", "-f", "ok", "--", image)
    script = f"{here} >/dev/null 2>&1 || {argv('docker', 'pull', '-q', '--', image)}"
    done = transport.run(node, Command(as_root(script), f"pull {image}", timeout_s=TRANSFER_S))
    if not done.ok:
        told = container.failure(done, f"node {node.name} cannot get the image {image}")
        if type(told) is not container.RunFailed:
            raise told
        raise ImageUnavailable(
            told.summary,
            where=node.name,
            detail=told.detail,
            hint="is the name right, and can the node reach that registry?",
            reason="creating_container_error",
        )
    processor.handle(ImageProgress(node.name, image, 0, None, finished=True))
