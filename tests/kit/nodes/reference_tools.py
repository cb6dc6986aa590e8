"""The image that the reference tasks run in where no registry is: one of ours, and the programs they call."""

from __future__ import annotations

import io
import tarfile

from kit import TESTS
from kit.nodes.labmachine import docker
from kit.support import Folder, containers

from orch import images

PROJECT = TESTS / "reference_project"


def put_tools(folder: Folder, fleet: str, image: str) -> str:
    """Build it on every node of a fleet, on `orch/IMAGE`, which the nodes hold. Returns its name there."""
    name = f"tools.test/{image}:1"
    recipe = (
        f"FROM {images.resolve(f'orch/{image}')}\n"
        "COPY all_reduce_perf /opt/nccl-tests/build/all_reduce_perf\n"
        "COPY all_reduce_perf /opt/rccl-tests/build/all_reduce_perf\n"
        "COPY huggingface-cli wandb /usr/local/bin/\n"
        "COPY train.py /train.py\n"
    )
    texts = {"Dockerfile": recipe.encode()}
    for path in (*sorted((PROJECT / "image").iterdir()), PROJECT / "train.py"):
        texts[path.name] = path.read_bytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, text in texts.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(text), 0o755
            archive.addfile(member, io.BytesIO(text))
    for container in containers(folder, fleet):
        docker("exec", "-i", container, "docker", "build", "-q", "-t", name, "-", data=buffer.getvalue())
    return name


def sizes_reduced(log: str, ranks: int) -> list[int]:
    """Sizes of the messages in the table of `all_reduce_perf`, in bytes; no value of theirs is wrong."""
    rows = [line.partition("] ")[2].split() for line in log.splitlines() if " float " in line]
    assert f"ranks {ranks}" in log
    assert rows
    assert {cells[-1] for cells in rows} == {"0"}
    return [int(cells[0]) for cells in rows]
