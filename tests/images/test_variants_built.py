"""Variants of the default image, built where only a Debian mirror can be reached, and a job's own Docker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.support import Folder, fleet_yaml

from orch import images
from orch.images.variants import recipe

# A build takes minutes, and its layers a gigabyte.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

DOCKER = """
type: task
name: nested
docker: true
commands:
  - test "$(docker info -f '{{.Driver}}')" = overlay2
  - tar -chP /bin/sh $(ldd /bin/sh | grep -o '/[^ ]*') | docker import - tiny
  - docker run --rm --network host tiny /bin/sh -c 'echo from a container of the job'
"""


# One write for each line: both ranks share a pipe.
ALL_REDUCE = """
import sys, torch, torch.distributed as group
group.init_process_group("gloo")
one = torch.ones(1)
group.all_reduce(one)
sys.stdout.write(f"sum {one.item()}\\n")
"""


@pytest.mark.parametrize("version", ["3.9", "3.11", "3.13"])
def test_a_python_of_debian_is_built_with_torch_and_pip(version: str) -> None:
    image = images.ensure(f"python{version}", progress=print)
    program = "import sys, torch, pip; print('%d.%d' % sys.version_info[:2], torch.ones(2).sum().item())"
    for python in ("python", "python3"):
        command = ["docker", "run", "--rm", "--network", "none", image, python, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.stdout.split() == [version, "2.0"], done.stderr


@pytest.mark.parametrize("version", ["3.11", "3.13"])
def test_torchrun_starts_two_ranks_there(version: str) -> None:
    image = images.ensure(f"python{version}", progress=print)
    flags = "--nnodes=1 --nproc_per_node=2 --node_rank=0 --master_addr=127.0.0.1 --master_port=29500"
    script = f"cat > /tmp/sum.py; exec torchrun {flags} /tmp/sum.py"
    command = ["docker", "run", "--rm", "-i", "--network", "none", image, "sh", "-c", script]
    done = subprocess.run(command, input=ALL_REDUCE, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.count("sum 2.0") == 2, done.stderr


def test_a_python_that_needs_a_registry_is_built_or_says_what_was_tried() -> None:
    official = recipe("python3.12")
    assert official is not None
    assert official.registry_image is not None
    try:
        image = images.ensure("python3.12", progress=print)
    except images.ImageError as error:
        text = f"{error.summary} {error.detail} {error.hint}"
        for word in (official.registry_image, "docker pull", "docker load", "`images` of `orch.yml`"):
            assert word in text
    else:
        assert image.startswith("orch/python3.12:")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Folder]:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    project = Folder(tmp_path)
    project.write("fleet.yml", fleet_yaml("nests", 1))
    said = project.orch("up", "fleet.yml", "--yes", timeout=600)
    assert said.code == 0, said.err
    yield project
    assert project.orch("down", "fleet.yml", "--yes").code == 0


def test_a_job_has_a_docker_of_its_own_on_a_local_node(local: Folder) -> None:
    said = local.orch("run", local.write("nested.yml", DOCKER), timeout=900)
    assert said.code == 0, said.err + said.out
    assert "from a container of the job" in said.out
    # Nothing of it stays on the node: no container, no volume with its images.
    left = local.orch("exec", "nests", "--", "docker ps -aq; docker volume ls -q")
    assert left.out.split() == ["nests-0:"]


def test_a_docker_that_cannot_start_ends_the_job_and_says_why(local: Folder) -> None:
    refused = DOCKER.replace("docker: true", "docker: true\nuser: nobody")
    said = local.orch("run", local.write("refused.yml", refused), timeout=900)
    assert said.code == 6
    assert "no Docker in this job: its daemon needs root" in said.out
