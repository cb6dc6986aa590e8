"""Local nodes with accelerators in number only; what `resources` and settings of a container mean there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
from kit.nodes.reference_tools import put_tools, sizes_reduced
from kit.nodes.stocked import stocked
from kit.reference_runs import REFERENCE
from kit.support import ROOT, Folder

pytestmark = pytest.mark.usefixtures("engine")

FLEET = """
type: fleet
name: pretend
placement: cluster
nodes: 2
blocks: 8
resources: {gpu: "H100:8"}
"""
BOTH = """
type: task
name: both
nodes: 2
image: orch/mpi
commands:
  - echo "gpus $DSTACK_GPUS_PER_NODE of $DSTACK_GPUS_NUM"
  - if [ $NODE_RANK = 0 ]; then sed 's/^/host /' $DSTACK_MPI_HOSTFILE; fi
  - ls /dev/nvidia0 2>/dev/null || echo no device
resources: {gpu: "nvidia:1..8", memory: 200GB.., shm_size: 64MB}
"""
LIMITED = """
type: task
name: limited
image: orch/mpi
user: nobody
working_dir: /tmp
shell: sh
entrypoint: env ENTERED=yes
commands:
  - echo "gpus $DSTACK_GPUS_PER_NODE, user $(id -un), in $PWD, entered $ENTERED"
  - echo "shell $(readlink /proc/$$/exe)"
  - echo "memory $(cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null)"
  - echo "cpu $(cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null)"
  - echo "shm $(df -k --output=size /dev/shm | tail -n 1)"
resources: {gpu: 1, memory: 64MB..256MB, cpu: 0..1, shm_size: 32MB}
---
type: task
name: privileged
image: orch/mpi
privileged: true
commands:
  - mount -t tmpfs none /mnt && touch /mnt/here && echo mounted $(ls /mnt)
"""


@pytest.fixture(scope="module")
def pretend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    path = tmp_path_factory.mktemp("pretend")
    kinds = "simulate_gpu: ['H100:8', 'MI300X:8']"
    backend = f"{{type: local, node_image: '{stocked('mpi')}', {kinds}}}"
    names = ("orch/job", "orch-examples/nccl-tests", "orch-examples/rccl-tests")
    images = f"{{{', '.join(f'{name}: tools.test/mpi:1' for name in names)}}}"
    (path / "orch.yml").write_text(f"project: tests\nbackends: [{backend}]\nimages: {images}\n")
    folder = Folder(path)
    folder.write("fleet.yml", FLEET)
    said = folder.orch("up", "fleet.yml", "--yes", timeout=600)
    assert said.code == 0, said.err
    yield folder
    assert folder.orch("down", "fleet.yml", "--yes").code == 0


@pytest.mark.timeout(900)
def test_the_plan_and_the_fleet_say_that_accelerators_are_simulated(pretend: Folder) -> None:
    plan = pretend.orch("preview", "fleet.yml", "-v")
    assert plan.code == 0, plan.err
    assert "8 H100 80GB, simulated: jobs get their number and no device" in plan.out + plan.err
    assert pretend.orch("fleet").out.count("8xH100 80GB (simulated)") == 2
    listed = pretend.orch("fleet", "list", "--json").json["fleets"][0]
    assert (listed["simulated"], {node["gpus"] for node in listed["nodes"]}) == (True, {8})
    assert "local (accelerators simulated)" in pretend.orch("show", "pretend").out
    assert pretend.orch("exec", "pretend", "--", "ls", "/dev/nvidia7").code == 0
    assert pretend.orch("exec", "pretend", "--", "ls", "/dev/nvidia8").code != 0


@pytest.mark.timeout(900)
def test_a_distributed_job_counts_them_and_is_given_no_device(pretend: Folder) -> None:
    said = pretend.orch("run", pretend.write("both.yml", BOTH), timeout=280)
    assert said.code == 0, said.err
    lines = [line.rpartition("] ")[2] for line in said.out.splitlines()]
    assert lines.count("gpus 8 of 16") == 2
    assert lines.count("no device") == 2
    assert len([line for line in lines if re.fullmatch(r"host [0-9.]+ slots=8", line)]) == 2


@pytest.mark.timeout(900)
def test_upper_ends_limit_a_job_and_its_container_is_what_the_task_says(pretend: Folder) -> None:
    file = pretend.write("limited.yml", LIMITED)
    refused = pretend.orch("run", file, "--name", "one")
    assert refused.code == 2
    assert "2 tasks" in refused.err
    said = pretend.orch("run", file, "--", "unheard", timeout=280)
    assert said.code == 0, said.err
    assert said.err.count("uses the words after `--`") == 2
    lines = [line.rpartition("] ")[2] for line in said.out.splitlines()]
    assert lines[0] == "gpus 1, user nobody, in /tmp, entered yes"
    assert lines[1].endswith("/dash")
    assert lines[2] == f"memory {256 << 20}"
    assert lines[3] in ("cpu 100000", "cpu 100000 100000")  # cgroup v1, v2
    assert lines[4].split() == ["shm", "32768"]
    assert lines[5] == "mounted here"
    assert "nodes are containers here" in said.err


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "fleet"), [("nccl", "pretend"), ("rccl", "instinct")])
def test_the_bandwidth_tests_of_the_examples_run_as_they_are_written(
    pretend: Folder, name: str, fleet: str
) -> None:
    """Their images are built elsewhere: here one of ours has a program of the same name."""
    if fleet == "instinct":
        amd = FLEET.replace("name: pretend", "name: instinct").replace("H100:8", "MI300X:8")
        said = pretend.orch("up", pretend.write("instinct.yml", amd), "--yes", timeout=600)
        assert said.code == 0, said.err
    try:
        put_tools(pretend, fleet, "mpi")
        for example in (ROOT / "examples" / f"{name}-tests").iterdir():
            shutil.copy(example, pretend.path)
        said = pretend.orch("run", f"{name}-tests.yml", timeout=280)
        assert said.code == 0, said.err
        assert f"run {name}-tests on fleet {fleet}: {fleet}-[0-1]" in said.err
        assert sizes_reduced(said.out, ranks=16) == [8 << power for power in range(8)]
        program = re.search(r"\S+/build/\S+", (pretend.path / f"{name}-tests.yml").read_text())
        recipe = (pretend.path / "Dockerfile").read_text()
        assert program is not None
        assert f"make -C {program[0].partition('/build/')[0]} " in recipe
    finally:
        if fleet == "instinct":
            assert pretend.orch("down", "instinct.yml", "--yes").code == 0


@pytest.mark.timeout(900)
def test_the_bandwidth_test_of_the_guide_runs_as_it_is_written(pretend: Folder) -> None:
    """One of the reference tasks; tests/e2e/test_reference_tasks.py runs all of them."""
    put_tools(pretend, "pretend", "mpi")
    text = (REFERENCE / "slurm-06-nccl-tests.yml").read_text()
    said = pretend.orch("run", pretend.write("nccl-tests.yml", text), timeout=280)
    assert said.code == 0, said.err
    assert "image orch/job: tools.test/mpi:1 is used in its place" in said.err
    assert sizes_reduced(said.out, ranks=16) == [8 << power for power in range(8)]
