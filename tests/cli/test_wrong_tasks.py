"""Wrong tasks that `orch run` refuses before it asks a node: what, where, what to do, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.ledgers import activeruns
from kit.support import Folder

from orch.cli.runs.submission import at_its_property, task_of_document
from orch.spec.loader.load import InvalidConfiguration, load_paths
from orch.spec.state import FleetState, NodeState
from orch.stacks.project.project import find
from orch.stacks.runs.nodes_for_runs import require_in_registry

HEAD = "type: task\nname: wrong\nimage: orch/mpi\ncommands: ['true']\n"
GROUPS = "type: task\nname: wrong\nimage: orch/mpi\ngroups:\n  - commands: ['echo {}']\n"
NODE = NodeState.model_validate(
    {"index": 0, "name": "n0", "address": "127.0.0.1", "user": "root", "host_key": "k"}
)
OWN = "type: task\nname: wrong\ncommands: ['true']\n"


@pytest.mark.parametrize(
    ("text", "first", "hint"),
    [
        (
            HEAD + "env: {TOKEN: '${{ secrets.token }}'}\n",
            "task.yml:5:14: error ORCH172: secret 'token' is not set",
            "`orch secret set token`",
        ),
        (
            HEAD + "env: {TOKEN: '${{ secrets.my token }}'}\n",
            "task.yml:5:14: error ORCH172: 'my token' is not the name of a secret",
            "letters, digits, `_` and `-`",
        ),
        (
            HEAD + "env: [A=1, NOT_SET_ANYWHERE]\n",
            "task.yml:5:12: error ORCH173: environment variable NOT_SET_ANYWHERE is not set",
            "`--env NOT_SET_ANYWHERE=…`",
        ),
        (
            HEAD + "ports: ['8080:80', '8080:81']\n",
            "task.yml:5:20: error ORCH153: port 8080 of this machine is forwarded twice",
            '`"*:81"` for any free port',
        ),
        (
            HEAD + "volumes: ['/a:/data', '/b:/data/']\n",
            "task.yml:5:23: error ORCH153: /data is mounted twice",
            "its own path",
        ),
        (
            GROUPS.format("${{ groups[3].nodes[0].IP_ADDRESS }}"),
            "task.yml:5:16: error ORCH136: there is no group 3, the last one is 0",
            "count from 0",
        ),
        (
            GROUPS.format("${{ groups[0].nodes[1].IP_ADDRESS }}"),
            "task.yml:5:16: error ORCH136: group 0 has no node 1, its last one is 0",
            "count from 0",
        ),
        (
            GROUPS.format("${{ groups[0].nodes[0].HOSTNAME }}"),
            "task.yml:5:16: error ORCH172: `${{ groups[0].nodes[0].HOSTNAME }}` is unknown",
            "`${{ groups[0].nodes[0].IP_ADDRESS }}`",
        ),
        (
            HEAD + "outputs: [/out/../etc]\n",
            "task.yml:5:11: error ORCH129: an output must not hold `..`",
            "write where it leads",
        ),
        (
            HEAD + "outputs: [{path: /out, to: task.yml/deep}]\n",
            "task.yml:5:28: error ORCH168: outputs cannot be kept in task.yml/deep",
            "task.yml is no folder",
        ),
        (
            HEAD + "working_dir: src\n",
            "task.yml:5:14: error ORCH129: `working_dir` must be absolute, 'src' is not",
            "write `/src`",
        ),
        (
            OWN + "python: 3.8\n",
            "task.yml:4:9: error ORCH111: '3.8' is not a Python of the default image",
            "`3.9`",
        ),
        (HEAD + "python: 3.12\n", "task.yml:5:1: error ORCH148: choose `image` or `python`", "remove"),
        (HEAD + "docker: true\n", "task.yml:5:1: error ORCH148: choose `image` or `docker`", "remove"),
        (
            "type: dev-environment\nname: wrong\nide: vscode\nversion: '1.90'\n",
            "task.yml:4:1: error ORCH118: `version` is not supported by this version",
            "the IDE brings the server that it needs",
        ),
    ],
    ids=lambda value: value.rpartition(": error ")[2].split(":")[0] if ": error " in value else "",
)
def test_it_is_told_at_its_place_with_what_to_do(folder: Folder, text: str, first: str, hint: str) -> None:
    folder.write("task.yml", text)
    said = folder.orch("run", "task.yml")
    assert (said.code, said.out) == (3, "")
    assert said.err.splitlines()[0] == first
    assert hint in said.err
    assert said.err.count("error") == 1
    assert "Traceback" not in said.err
    assert {path.name for path in folder.path.iterdir()} == {"orch.yml", "task.yml"}


def test_the_name_of_an_active_run_is_refused_where_it_stands(folder: Folder) -> None:
    activeruns.start(find(folder.path), "wrong", NODE)
    folder.write("task.yml", HEAD)
    told = "error ORCH422: a run named wrong is active\n  hint: `orch attach wrong` follows it"
    said = folder.orch("run", "task.yml")
    assert (said.code, said.err.partition(",")[0]) == (9, f"task.yml:2:7: {told}")
    folder.write("task.yml", HEAD.replace("name: wrong\n", ""))
    said = folder.orch("run", "task.yml", "--name", "wrong")
    assert (said.code, said.err.partition(",")[0]) == (9, told)


@pytest.mark.parametrize(("line", "place"), [("image: orch/mpi\n", "4:8"), ("", "1:1")])
def test_an_image_of_this_machine_is_refused_at_its_place_where_a_cluster_pulls_it(
    tmp_path: Path, line: str, place: str
) -> None:
    file = tmp_path / "task.yml"
    file.write_text(f"type: task\nname: wrong\ncommands: ['true']\n{line}")
    document = load_paths([file]).require().documents[0]
    fleet = FleetState.model_validate(
        {
            "name": "lab",
            "stack": "lab",
            "backend": "kubernetes",
            "nodes": [],
            "queue": {"namespace": "n", "mark": "lab-abc123", "gang": "job", "pods": 2},
        }
    )
    task, _ = task_of_document(document)
    with pytest.raises(InvalidConfiguration) as caught, at_its_property(document):
        require_in_registry(task, fleet, "orch/mpi")
    told = caught.value.text()
    assert f"task.yml:{place}: error ORCH236: Kubernetes pulls the image of a pod from a registry" in told
