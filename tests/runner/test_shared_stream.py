"""What is sent to several nodes at once is read once, and each of them gets all of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import IO, cast

import pytest
from kit.nodes.foldernodes import FolderConnector
from kit.support import until

from orch.runner.errors import ImageUnavailable, RunnerError
from orch.runner.events import Processor
from orch.runner.node.runtimes.docker import DockerRuntime
from orch.runner.node.runtimes.image_transfer import SharedStream
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Completed, Connector
from orch.spec.errors import OrchError
from orch.spec.state import NodeState

CHUNKS = [bytes([number]) * 300_000 for number in range(20)]


@pytest.fixture
def file() -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile(buffering=0) as file:
        yield file


def test_all_who_read_get_the_whole_stream_and_one_who_stops_holds_up_nobody(file: IO[bytes]) -> None:
    read: list[int] = []

    def stream() -> Generator[bytes]:
        for number, chunk in enumerate(CHUNKS):
            read.append(number)
            yield chunk

    with closing(SharedStream(stream(), file, Path("there"))) as shared:
        stopped = shared.read()
        next(stopped)
        with ThreadPoolExecutor() as pool:
            got = list(pool.map(lambda _: b"".join(shared.read()), range(3)))
        assert got == [b"".join(CHUNKS)] * 3
        assert b"".join(shared.read()) == b"".join(CHUNKS), "also who begins when all of it is there"
        assert read == list(range(len(CHUNKS)))


def test_an_error_of_the_stream_reaches_all_who_read_it(file: IO[bytes]) -> None:
    def stream() -> Generator[bytes]:
        yield b"begun"
        raise ImageUnavailable("this image is damaged")

    def reads(shared: SharedStream) -> str:
        with pytest.raises(ImageUnavailable) as caught:
            list(shared.read())
        return caught.value.summary

    with closing(SharedStream(stream(), file, Path("there"))) as shared, ThreadPoolExecutor() as pool:
        assert list(pool.map(reads, [shared] * 3)) == ["this image is damaged"] * 3


def test_a_disk_that_is_full_is_told_with_its_place() -> None:
    with Path("/dev/full").open("r+b", buffering=0) as full:  # noqa: SIM117
        with closing(SharedStream((chunk for chunk in CHUNKS), full, Path("/caches"))) as shared:
            with pytest.raises(RunnerError) as caught:
                list(shared.read())
    assert caught.value.where == "/caches"
    assert "No space left" in (caught.value.detail or "")


def test_what_nobody_wants_any_more_is_read_no_further(file: IO[bytes]) -> None:
    def stream() -> Generator[bytes]:
        while True:
            yield b"more"

    shared = SharedStream(stream(), file, Path("there"))
    reader = shared.read()
    next(reader)
    shared.close()
    file.close()
    with pytest.raises(OSError, match="closed"):
        for _ in reader:
            pass


class Node:
    """A connector to nodes whose Docker takes what it is sent."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []

    def run(self, node: NodeState, command: Command, **limits: object) -> Completed:
        del limits
        self.loaded.append(b"".join(cast("Iterable[bytes]", command.stdin)))
        return Completed(node.name, command, 0, "ok", "", 0.0)


def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What two nodes get of an image that this machine's Docker reads out."""
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin/docker"
    docker.write_text("#!/bin/sh\ncase $1 in image) echo 10;; save) echo the image;; esac\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    given = {"address": "127.0.0.1", "user": "root", "host_key": "k"}
    nodes = [NodeState.model_validate({"index": i, "name": f"n{i}", **given}) for i in range(2)]
    connector = Node()
    results = DockerRuntime().provide_image(
        cast("Connector", connector), nodes, "orch/job:1", cast("Processor", Told())
    )
    assert [each.error for each in results] == [None, None]
    return connector.loaded


class Told:
    def handle(self, event: object) -> None:
        pass


@pytest.mark.parametrize("where", ["/proc/none/caches", "/dev/null/caches"])
def test_nodes_get_an_image_from_a_machine_whose_caches_cannot_be_written(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", where)
    assert sent(tmp_path, monkeypatch) == [b"the image\n"] * 2


def test_nodes_get_an_image_from_a_machine_whose_quota_ends_in_the_middle_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    # What a file of a full quota says when it is written to.
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
        assert sent(tmp_path, monkeypatch) == [b"the image\n"] * 2


DOCKER = """\
#!/bin/sh
cd {folder}
case "$*" in
  'image inspect -f ok'*) [ -e loaded ] && echo ok;;
  image*) echo 10;;
  save*) echo the image;;
  load*) cat > /dev/null; echo >> loads; until [ -e gate ]; do sleep 0.05; done; touch loaded;;
esac
"""


def test_of_two_runs_that_bring_an_image_to_a_node_at_once_one_waits_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stub of Docker is that of this machine and that of the node."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "node").mkdir()
    waits = f'#!/bin/sh\necho >> {tmp_path}/waits\nexec {shutil.which("flock")} "$@"\n'
    for name, text in (("docker", DOCKER.format(folder=tmp_path)), ("flock", waits)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    access = {"kind": "folder", "folder": str(tmp_path / "node")}
    node = NodeState.model_validate({"index": 0, "name": "n0", "access": access, "runtime": "docker"})

    def lines(name: str) -> int:
        path = tmp_path / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    def provide() -> list[OrchError | None]:
        connector, told = cast("Connector", FolderConnector()), cast("Processor", Told())
        return [each.error for each in DockerRuntime().provide_image(connector, [node], "orch/job:1", told)]

    with ThreadPoolExecutor() as pool:
        first = pool.submit(provide)
        until(lambda: lines("loads") == 1, 60, "the first loads")
        second = pool.submit(provide)
        until(lambda: lines("waits") == 2 or lines("loads") == 2, 60, "the second is there")
        (tmp_path / "gate").touch()
        assert (first.result(), second.result()) == ([None], [None])
    assert lines("loads") == 1
    assert list((tmp_path / "node/images").iterdir()) == []
