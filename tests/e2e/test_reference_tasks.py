"""Every task of the reference documents, run to its end on local nodes with simulated accelerators.

The texts are unchanged; one mapping, `images` of orch.yml, names images in place of those that are in a
registry. What each run has done is told by its program (`reference_project/train.py`) or found where the task
says that it lies. The trial prints a table: `make soak ARGS="-n 0 -s -k reference_tasks"`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kit.nodes.reference_tools import PROJECT, put_tools, sizes_reduced
from kit.nodes.stocked import stocked
from kit.reference_runs import REFERENCE
from kit.support import Folder, Said, until
from platformdirs import user_cache_path

NODES, GPUS = 4, 8
IMAGE = "python3.13"
REPLACED = (
    "orch/job",
    "orch/python3.9",
    "orch/python3.12",
    "pytorch/pytorch:2.0.0-cuda11.8-cudnn8-runtime",
    "nvcr.io/nvidia/pytorch:24.01-py3",
)
"""Images in whose place the tasks get ours, with the programs that they call."""
FLEET = f"""
type: fleet
name: reference
backend: local
placement: cluster
nodes: {NODES}
blocks: {GPUS}
resources: {{gpu: "A100:80GB:{GPUS}"}}
"""
VOLUMES = "---\n".join(
    f"type: volume\nname: {name}\nbackend: local\nsize: 500GB\nprotect: false\n"
    for name in ("imagenet-dataset", "checkpoint-volume")
)
SECRETS = {
    "nvidia_ngc_api_key": "nvapi-0123456789",
    "huggingface_token": "hf_" + "a" * 34,
    "wandb_api_key": "b" * 40,
    "aws_access_key_id": "AKIA" + "C" * 16,
    "aws_secret_access_key": "d" * 39,
}
FILL = """
type: task
name: fill
image: {image}
volumes: ["imagenet-dataset:/data/imagenet"]
commands:
  - for part in 0 1 2; do seq $((part * 1000)) $((part * 1000 + 999)) > /data/imagenet/part-$part; done
"""
HOLD = """
type: task
name: hold-{number}
image: {image}
resources: {{gpu: {gpus}}}
commands: [sleep 3000]
"""

PARTS = [
    "".join(f"{number}\n" for number in range(part * 1000, part * 1000 + 1000)).encode() for part in range(3)
]
DATA = hashlib.sha256(b"".join(PARTS)).hexdigest()[:12]


Row = tuple[str, str, str, str]


@dataclass
class Trial:
    """The project that the tasks lie in, its fleet, and what each task came to."""

    folder: Folder
    home: Path
    image: str
    rows: list[Row] = field(default_factory=list[Row])

    def orch(self, *words: str, timeout: float = 900) -> Said:
        env = {"HOME": str(self.home), "XDG_CACHE_HOME": str(user_cache_path()), "HF_TOKEN": "token"}
        return self.folder.orch(*words, env=env, timeout=timeout)

    def run(self, name: str) -> tuple[dict[str, Any], str, list[dict[str, Any]]]:
        """Run a task as it stands: the run as JSON, its log, and what each rank of its program told."""
        said = self.orch("run", f"{name}.yml", "--json")
        assert said.code == 0, said.err[-4000:]
        log = self.orch("logs", said.json["run"]).out
        told = [
            json.JSONDecoder().raw_decode(text)[0] for text in log.split("trained ") if text.startswith("{")
        ]
        assert not [value for value in SECRETS.values() if value in said.err + said.out + log]
        return said.json, log, told


Proof = Callable[[Trial, str], str]


def trained(ranks: int, nodes: int, told: list[dict[str, Any]]) -> dict[str, Any]:
    """What rank 0 told of a training in which all ranks came to the same weights."""
    assert sorted(each["rank"] for each in told) == list(range(ranks))
    assert {each["node"] for each in told} == set(range(nodes))
    assert len({each["weights"] for each in told}) == 1
    # Of two steps after a checkpoint the second may have the harder batch.
    assert all(each["loss"][1] < each["loss"][0] for each in told if "resumed" not in each)
    return next(each for each in told if each["rank"] == 0)


def plain(trial: Trial, name: str) -> str:
    _, _, told = trial.run(name)
    facts = trained(1, 1, told)
    assert (facts["batch"], facts["gpus"], facts["folder"]) == (64, 1, "/workflow")
    return f"train.py of the repository at --batch-size {facts['batch']}, loss {falls(facts)}"


def with_variables(trial: Trial, name: str) -> str:
    _, _, told = trial.run(name)
    facts = trained(1, 1, told)
    assert (facts["lengths"], facts["learning_rate"]) == ({"HF_TOKEN": 5}, "0.001")
    return (
        f"HF_TOKEN of the caller (5 characters), LEARNING_RATE {facts['learning_rate']}, loss {falls(facts)}"
    )


def with_limits(trial: Trial, name: str) -> str:
    _, _, told = trial.run(name)
    facts = trained(1, 1, told)
    assert facts["shm_mib"] == 8 << 10
    return f"/dev/shm of {facts['shm_mib'] >> 10} GB, loss {falls(facts)}"


def distributed(trial: Trial, name: str) -> str:
    _, log, told = trial.run(name)
    facts = trained(NODES * GPUS, NODES, told)
    assert (facts["model"], facts["batch"], facts["shm_mib"]) == ("llama-7b", 32, 24 << 10)
    # At the very end the agent with the store leaves, and others that still wait for it log that.
    own = [line for line in log.splitlines() if "/elastic/agent/server/" not in line]
    assert not any("Traceback" in line for line in own)
    return f"weights {facts['weights']} equal on {len(told)} ranks of torchrun, loss {falls(facts)}"


def all_reduce(trial: Trial, name: str) -> str:
    row, log, _ = trial.run(name)
    sizes = sizes_reduced(log, 2 * GPUS)
    assert sizes == [8 << power for power in range(8)]
    assert [node["status"] for node in row["nodes"]] == ["done", "done"]
    return f"mpirun of {2 * GPUS} ranks, {len(sizes)} sizes, none wrong; rank 1, which sleeps, ended with it"


def entered(trial: Trial, name: str) -> str:
    said = trial.orch("run", f"{name}.yml", "--detach")
    assert said.code == 0, said.err
    try:
        host = trial.home / ".ssh" / "orch" / "ml-dev"
        until(host.exists, 600, "`ssh ml-dev` is known")
        until(
            lambda: bool(trial.orch("show", "ml-dev", "--json").json["run"]["entry"]), 60, "it can be entered"
        )
        entry = trial.orch("show", "ml-dev", "--json").json["run"]["entry"]
        words = ["ssh", "-F", str(trial.home / ".ssh" / "config"), "ml-dev", "echo $DSTACK_RUN_NAME; pwd"]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        assert told[0] == "ml-dev"
        assert entry["link"] == f"vscode://vscode-remote/ssh-remote+ml-dev{told[1]}"
    finally:
        assert trial.orch("stop", "ml-dev").code == 0
    assert not host.exists()
    return f"`ssh ml-dev` in {told[1]}, {entry['link']}"


def network_volume(trial: Trial, name: str) -> str:
    _, _, told = trial.run(name)
    facts = trained(1, 1, told)
    assert facts["data"] == DATA
    return f"files of the volume read at /data/imagenet: digest {facts['data']}"


def instance_volume(trial: Trial, name: str) -> str:
    row, _, told = trial.run(name)
    assert trained(1, 1, told)["before"] is None
    node = row["nodes"][0]["node"]
    # The next run there finds what this one has left.
    found = trial.orch("exec", "reference", "--", "find /var/lib/orch -name latest.pt").out
    assert re.search(rf"{node}.*:\s*\S*checkpoint-cache\S*/latest.pt", found), found
    return f"latest.pt of epoch 100 stays in the folder of {node}"


def both_volumes(trial: Trial, name: str) -> str:
    _, _, told = trial.run(name)
    facts = trained(NODES * GPUS, NODES, told)
    assert {each["data"] for each in told} == {DATA}
    assert all(each["shm_mib"] == 24 << 10 for each in told)
    # A folder of each node: the one where the task before ran has its checkpoint, the others had none.
    after = any(row[0] == "slurm-16-train-with-instance-volumes" for row in trial.rows)
    assert {each["before"] for each in told} == ({None, 100} if after else {None})
    found = trial.orch("exec", "reference", "--", "find /var/lib/orch -name latest.pt | wc -l").out
    assert found.split() == ["reference-[0-3]", "(4):", "1"], found
    return f"{len(told)} ranks read {facts['data']}; a latest.pt on each of {NODES} nodes"


def with_code(trial: Trial, name: str) -> str:
    _, _, told = trial.run(name)
    facts = trained(1, 1, told)
    key = hashlib.sha256((trial.home / ".ssh" / "id_rsa").read_bytes()).hexdigest()[:12]
    assert facts["config"] == (PROJECT / "model.yaml").read_text().strip()
    assert facts["key"] == [key, "0o600"]
    return "../configs read at ~/configs, the key at ~/ssh/id_rsa with mode 600"


def with_secrets(trial: Trial, name: str) -> str:
    _, _, told = trial.run(name)
    facts = trained(1, 1, told)
    names = ("huggingface_token", "wandb_api_key", "aws_access_key_id", "aws_secret_access_key")
    assert sorted(facts["lengths"].values()) == sorted(len(SECRETS[each]) for each in names)
    assert facts["model_path"]
    return (
        "4 secrets of " + ", ".join(map(str, facts["lengths"].values())) + " characters, none in any output"
    )


def of_image(trial: Trial, name: str) -> str:
    _, _, told = trial.run(name)
    facts = trained(1, 1, told)
    assert facts["folder"] == "/"
    return f"train.py of the image, loss {falls(facts)}"


def waits_for_capacity(trial: Trial, name: str) -> str:
    """All nodes are taken when it is submitted; it runs when one is free."""
    held = [f"hold-{number}" for number in range(NODES)]
    for number, run in enumerate(held):
        hold = HOLD.format(number=number, image=trial.image, gpus=GPUS)
        trial.folder.write(f"{run}.yml", hold)
        assert trial.orch("run", f"{run}.yml", "--detach").code == 0
    until(lambda: running(trial) >= set(held), 300, "all nodes are taken")
    said = trial.orch("run", f"{name}.yml", "--detach")
    assert said.code == 0, said.err
    status = trial.orch("ps", "--json").json["runs"]
    (waiting,) = [row for row in status if row["run"] == said.out.strip()]
    assert not [rank for rank in waiting["nodes"] if rank["status"] == "running"]
    for run in held:
        assert trial.orch("stop", run, "--abort").code in (0, 6, 130)
    ended = trial.orch("attach", said.out.strip(), "--json")
    assert ended.code == 0, ended.err
    return f"{waiting['status']} while all nodes were taken, then {ended.json['status']}"


def running(trial: Trial) -> set[str]:
    return {row["run"] for row in trial.orch("ps", "--json").json["runs"] if row["status"] == "running"}


def resumes(trial: Trial, name: str) -> str:
    """The first attempt is lost after its first checkpoint, the second goes on from there."""
    _, _, told = trial.run(name)
    facts = trained(NODES, NODES, told)
    # Who resumes there has a first attempt behind it: nobody else writes this volume.
    assert {each["resumed"] for each in told} == {2}
    return f"lost in epoch 2, resumed from /checkpoints/latest.pt at epoch {facts['resumed']}"


def falls(facts: dict[str, Any]) -> str:
    return "{:.2f} -> {:.2f}".format(*facts["loss"])


# The order matters for one: 17 finds what 16 has left on a node.
PROOFS: dict[str, tuple[int, int, Proof]] = {
    "slurm-01-train-model": (1, 1, with_variables),
    "slurm-02-train-with-image": (1, 1, plain),
    "slurm-03-train-ngc": (1, 1, plain),
    "slurm-04-training-job": (1, 1, with_limits),
    "slurm-05-distributed-train-pytorch": (4, 8, distributed),
    "slurm-06-nccl-tests": (2, 8, all_reduce),
    "slurm-07-train-with-retry": (1, 1, waits_for_capacity),
    "slurm-15-train-with-network-volumes": (1, 1, network_volume),
    "slurm-16-train-with-instance-volumes": (1, 1, instance_volume),
    "slurm-17-distributed-train-with-volumes": (4, 8, both_volumes),
    "slurm-18-train-with-code": (1, 1, with_code),
    "slurm-19-ml-dev": (1, 1, entered),
    "slurm-20-train-with-secrets": (1, 8, with_secrets),
    "slurm-21-train-with-private-image": (1, 8, of_image),
    "slurm-22-train-with-checkpoint-retry": (4, 8, resumes),
}


@pytest.fixture(scope="module")
def trial(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """A repository with the program, beside it the folder that a task names, and the fleet."""
    tmp_path = tmp_path_factory.mktemp("reference")
    home, project = tmp_path / "home", tmp_path / "project"
    (home / ".ssh").mkdir(parents=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(home / ".ssh/id_rsa")], check=True)
    (tmp_path / "configs").mkdir()
    shutil.copy(PROJECT / "model.yaml", tmp_path / "configs")
    project.mkdir()
    shutil.copy(PROJECT / "train.py", project)
    for path in REFERENCE.glob("slurm-*.yml"):
        shutil.copy(path, project)
    (project / "fleet.yml").write_text(FLEET)
    (project / "volumes.yml").write_text(VOLUMES)
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-q", "-m", "A training"]):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=project, check=True)
    tools = f"tools.test/{IMAGE}:1"
    replaced = "".join(f"  {image}: {tools}\n" for image in REPLACED)
    kind = f"{{type: local, node_image: '{stocked(IMAGE)}', simulate_gpu: 'A100:80GB:{GPUS}'}}"
    (project / "orch.yml").write_text(f"project: tests\nbackends: [{kind}]\nimages:\n{replaced}")
    found = Trial(Folder(project), home, tools)
    try:
        for file in ("fleet.yml", "volumes.yml"):
            said = found.orch("up", file, "--yes")
            assert said.code == 0, said.err
        put_tools(found.folder, "reference", IMAGE)
        for name, value in SECRETS.items():
            assert found.orch("secret", "set", name, value).code == 0
        found.folder.write("fill.yml", FILL.format(image=tools))
        assert found.orch("run", "fill.yml").code == 0
        yield found
    finally:
        print_table(found.rows)
        for file in ("fleet.yml", "volumes.yml"):
            said = found.orch("down", file, "--yes")
    assert said.code == 0, said.err


def print_table(rows: list[Row]) -> None:
    table = [("task", "nodes x GPUs", "end", "what proves it"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True)))


def test_each_task_of_the_reference_has_its_trial() -> None:
    assert [path.stem for path in sorted(REFERENCE.glob("slurm-*.yml")) if is_run(path)] == list(PROOFS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PROOFS)
def test_a_task_of_the_reference_runs_to_its_end(trial: Trial, name: str) -> None:
    nodes, gpus, proof = PROOFS[name]
    end, proves = "FAILED", ""
    try:
        proves = proof(trial, name)
        end = "done"
    finally:
        trial.rows.append((name, f"{nodes} x {gpus}", end, proves))


def is_run(path: Path) -> bool:
    return re.search(r"^type: (task|dev-environment)$", path.read_text(), re.MULTILINE) is not None
