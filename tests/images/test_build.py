"""Building with the real Docker: progress, one build for two callers or none, a failure with its reason."""

from __future__ import annotations

import fcntl
import threading
import time
import uuid
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from kit.support import until

from orch.images import docker, ensure, names
from orch.images.build import build_once, tag
from orch.images.errors import BuildFailed


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of an image like no other, so that it has to be built; what was built is removed."""
    root = tmp_path / "trial"
    root.mkdir()
    (root / "Dockerfile").write_text(
        f"ARG BASE=debian:bookworm-slim\nFROM ${{BASE}}\nRUN sleep 1 && echo {uuid.uuid4()} > /trial\n"
    )
    yield root
    docker.ask("image", "rm", "--force", tag("trial", root))


def test_a_missing_image_is_built_and_progress_names_log_and_steps(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    reference = build_once("trial", folder, cache=tmp_path / "cache", progress=said.append)
    assert docker.has_image(reference)
    text = "\n".join(said)
    assert f"building {reference}" in text
    assert "RUN sleep 1" in text
    assert f"built {reference} in " in text
    assert list((tmp_path / "cache").glob("*.log"))


def test_two_callers_at_once_build_it_once(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    cache = tmp_path / "cache"
    cache.mkdir()
    callers = [
        threading.Thread(
            target=build_once, args=("trial", folder), kwargs={"cache": cache, "progress": said.append}
        )
        for _ in range(2)
    ]

    def waiting() -> int:
        return sum("another process" in line for line in said)

    # A third one holds the lock until both have come, however much later one of them is.
    with (cache / "trial.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for caller in callers:
            caller.start()
        until(lambda: waiting() == 2, 120, "both wait")
    for caller in callers:
        caller.join()
    assert sum(line.startswith("built ") for line in said) == 1
    assert waiting() == 2


def test_a_failing_step_is_told_with_its_last_lines_and_the_log(folder: Path, tmp_path: Path) -> None:
    # The only step: a step that succeeds before it would leave a nameless layer behind.
    (folder / "Dockerfile").write_text(
        "ARG BASE\nFROM ${BASE}\nRUN echo the disk is made of cheese >&2; exit 3\n"
    )
    with pytest.raises(BuildFailed) as caught:
        build_once("trial", folder, cache=tmp_path / "cache", progress=lambda _line: None)
    assert "the disk is made of cheese" in (caught.value.detail or "")
    log = next((tmp_path / "cache").glob("*.log"))
    assert str(log) in (caught.value.hint or "")
    assert "the disk is made of cheese" in log.read_text()


def test_every_image_has_its_files_in_the_package() -> None:
    root = Path(str(files("orch.images")))
    for name in ("node", "job", "mpi"):
        assert (root / name / "Dockerfile").is_file()
    assert (root / "base" / "debootstrap.sh").is_file()


@pytest.mark.parametrize("name", names())
def test_an_image_that_exists_is_returned_at_once_and_silently(name: str) -> None:
    said: list[str] = []
    ensure(name, progress=said.append)  # builds on a machine where it is missing
    said.clear()
    started = time.perf_counter()
    assert ensure(name, progress=said.append) == tag(name)
    assert time.perf_counter() - started < 10.0
    assert said == []
