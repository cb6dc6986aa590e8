"""`preview --base`: no plan runs the programs of a kubeconfig that nobody has reviewed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit.support import Folder

PROJECT = "project: demo\nbackends: [{type: kubernetes, kubeconfig: {filename: kube.yml}}]\n"
VOLUME = "type: volume\nname: data\nbackend: kubernetes\nsize: 10GB\n"
FLEET = "type: fleet\nname: lab\nbackends: [kubernetes]\nnodes: 0..1\nresources: {cpu: 2, memory: 4GB}\n"
LOCAL = "type: volume\nname: data\nbackend: local\nsize: 10GB\n"


def kubeconfig(proof: Path | None) -> str:
    """A kubeconfig; one whose program leaves a proof that it was run."""
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(proof)]}
    user: dict[str, Any] = {"token": "t"} if proof is None else {"exec": program}
    document = {
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "lab"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }
    return json.dumps(document)


def commit(path: Path) -> None:
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.com"]
    for words in (["init", "-q", "-b", "main"], ["add", "--all"], ["commit", "-qm", "change"]):
        subprocess.run(["git", "-C", str(path), *who, *words], check=True, capture_output=True)


def record_claim(path: Path) -> None:
    """What the engine would have recorded of the volume on Kubernetes."""
    place = path / ".orch" / "state" / ".pulumi" / "stacks" / "demo"
    place.mkdir(parents=True)
    for each in (place, *list(place.parents)[:4]):
        each.chmod(0o700)
    kind = "kubernetes:core/v1:PersistentVolumeClaim"
    urn = f"urn:pulumi:volume.data::demo::{kind}::data"
    claim = {"urn": urn, "type": kind, "custom": True, "id": "lab/orch-data"}
    (place / "volume.data.json").write_text(json.dumps({"checkpoint": {"latest": {"resources": [claim]}}}))


@pytest.mark.parametrize(
    ("text", "stack", "recorded"),
    [
        (FLEET, "fleet lab", False),
        (VOLUME, "volume data", False),
        # A change that takes the volume away from Kubernetes still asks the cluster for what is there.
        (LOCAL, "volume data", True),
    ],
)
def test_a_changed_kubeconfig_gives_a_stack_of_kubernetes_no_plan(
    text: str, stack: str, recorded: bool, folder: Folder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    proof = tmp_path_factory.mktemp("proof") / "run"
    for name, content in (("orch.yml", PROJECT), ("kube.yml", kubeconfig(None)), (".gitignore", ".orch\n")):
        folder.write(name, content)
    commit(folder.path)
    folder.write("kube.yml", kubeconfig(proof))
    folder.write("stack.yml", text)
    commit(folder.path)
    if recorded:
        record_claim(folder.path)
    said = folder.orch("preview", "stack.yml", "--base", "HEAD^1", "--keyless")
    assert "ORCH471" in said.err, said.out + said.err
    assert f"the {stack} has no plan: the kubeconfig is changed here, and may name programs" in said.err
    assert (said.code, proof.exists()) == (0, False)
