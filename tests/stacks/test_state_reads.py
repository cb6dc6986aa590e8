"""A state in a bucket is read once by an operation: each reading is a process and a network call."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kit.clouds.aws_cases import Case
from kit.clouds.aws_engine import Stack, stack
from kit.clouds.cloud_engine import quiet
from kit.engine.counted_engine import CountedEngine
from kit.engine.remote_state import bucket
from kit.ledgers.oldrows import FLEET
from kit.support import Folder

from orch.spec.models import Fleet
from orch.stacks.project.project import find
from orch.stacks.provisioning import operations
from orch.stacks.stack.command import plain
from orch.stacks.stack.state import StackState

ENVIRONMENT = {
    "PULUMI_CONFIG_PASSPHRASE": "for tests",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}
EXPORT, TAGS = "stack export", "stack tag"
pytestmark = pytest.mark.usefixtures("engine")


@dataclass(frozen=True)
class Remote:
    """An engine that counts, a state in a bucket."""

    engine: CountedEngine
    url: str
    path: Path


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    path = tmp_path_factory.mktemp("remote")
    engine = CountedEngine.make(path / "bin")
    with bucket() as url, pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("PULUMI_HOME", str(path / "home"))
        patch.setenv("PATH", f"{engine.folder}:{os.environ['PATH']}")
        yield Remote(engine, url, path)


def test_each_operation_reads_the_state_once_and_again_after_the_engine_changed_it(remote: Remote) -> None:
    case = Case.of("cpu")

    def fleet(nodes: int) -> Fleet:
        return replace(case, data={**case.data, "fleet": {**case.data["fleet"], "nodes": nodes}}).fleet

    there = stack(remote.path / "aws")
    there = Stack(there.folder, replace(there.project, state_url=remote.url), fleet(2).name, there.cloud)
    assert there.project.local_state is None
    remote.engine.calls()

    def calls() -> dict[str, int]:
        return dict(remote.engine.calls())

    there.plan(fleet(2))
    assert calls() == {EXPORT: 1, "stack init": 1, "preview": 1}
    # Whether somebody has leased it is asked before it is planned, and once more under the lock: of a stack
    # that was just made, after it was read anew. By then its account is recorded, once. A new stack looks
    # whether the whole state is held. Afterwards `up` reads whether it has a lineage, and gives it one.
    there.up(fleet(2))
    assert calls() == {EXPORT: 4, "stack init": 1, TAGS: 4, "up": 1}
    there.plan(fleet(2))
    assert calls() == {EXPORT: 1, TAGS: 1, "preview": 1}
    there.up(fleet(2))
    assert calls() == {EXPORT: 2, TAGS: 3, "up": 1}
    there.drift()
    assert calls() == {EXPORT: 1, TAGS: 1, "refresh": 1}
    operations.refresh(there.project, there.name, quiet)
    assert calls() == {EXPORT: 1, TAGS: 1, "refresh": 1}
    # What is left is told, and who is on the node is asked of it: with the fleet's key.
    operations.remove_nodes(there.project, there.name, [1], quiet)
    assert calls() == {EXPORT: 2, TAGS: 1, "destroy": 1, "stack output": 1}
    (left,) = StackState(there.project, there.name).nodes
    assert (left["index"], calls()) == (0, {EXPORT: 1})
    there.down()
    assert calls() == {EXPORT: 1, TAGS: 1, "destroy": 1, "stack rm": 1}
    assert there.cloud.everything() == {}


def put_up(folder: Folder, name: str) -> None:
    """A fleet in the state, as an `up` leaves it, of a node that nobody reaches: its key is not here."""
    node = FLEET.nodes[0].reached(identity="/no/where")
    fleet = FLEET.model_copy(update={"name": name, "stack": name, "nodes": (node,)})
    urn = f"urn:pulumi:{name}::tests::"
    outputs = {"orch": {"version": "0", "schema": 2}, "fleet": fleet.model_dump(mode="json")}
    resources = [
        {"urn": f"{urn}pulumi:pulumi:Stack::tests-{name}", "type": "pulumi:pulumi:Stack", "outputs": outputs},
        {"urn": f"{urn}orch:fleet:Local::{node.name}", "type": "orch:fleet:Local"},
    ]
    made = StackState(find(folder.path), name)
    plain(made, ["stack", "init"])
    whole = json.loads(plain(made, ["stack", "export"]).stdout)
    whole["deployment"]["resources"] = resources
    plain(made, ["stack", "import"], stdin=json.dumps(whole))


def test_a_list_of_fleets_reads_each_state_once(remote: Remote) -> None:
    path = remote.path / "list"
    path.mkdir()
    folder = Folder(path)
    folder.write("orch.yml", f"project: list\nstate: {remote.url}\n")
    find(path).prepare()
    for name in ("lab", "desk"):
        put_up(folder, name)
    remote.engine.calls()

    def calls(*words: str) -> Counter[str]:
        said = folder.orch(*words)
        assert said.code == 0, said.err
        return remote.engine.calls()

    assert calls("fleet", "--json") == {"stack ls": 1, EXPORT: 2}
    assert calls("fleet", "show", "lab", "--json") == {EXPORT: 1}
    assert calls("show", "lab", "--json") == {EXPORT: 1}
