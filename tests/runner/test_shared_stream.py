"""What is sent to several nodes at once is read once, and each of them gets all of it."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from orch.runner.errors import ImageUnavailable, RunnerError
from orch.runner.node.docker import SharedStream

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
