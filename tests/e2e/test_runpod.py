"""Fleets on RunPod in the real engine, on a simulated account that orch's own client calls over the wire.

Nodes are made as for a run. One account and one stack serve all tests; each leaves the account empty. The
account's own list is the judge.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import TESTS
from kit.clouds import runpod_engine
from kit.clouds.cloud_engine import quiet
from kit.clouds.rehearsals import KILL_ALL, RehearsedRunpod, few_ranks, soaked
from kit.clouds.runpod_engine import Stack, begin, stack
from kit.ledgers import activeruns
from kit.support import ROOT, Folder, at_work, kill, until

from orch import images
from orch.components.marks.marked import cloud_name
from orch.components.runpod.account.client import CLUSTER, Login, RunpodClient
from orch.rehearsal.http_service import url_of
from orch.rehearsal.runpod.account import RunpodCloud
from orch.rehearsal.scenario import Failure, Hook, Knobs, Rate
from orch.spec.errors import ExitCode
from orch.spec.findings import PlanErrors
from orch.stacks.errors import NoCapacity, StackError
from orch.stacks.project.project import scope_of
from orch.stacks.provisioning.nodes_with_runs import give_up, making
from orch.stacks.record.fleets import find_fleet
from orch.stacks.runs.nodes_for_runs import make_nodes, plan_growth

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("engine", "forked_providers")]

H100 = "NVIDIA H100 80GB HBM3"
FLEET = {"nodes": "0..8", "budget": {"hourly": 400}}
LONG = "type: task\nname: long\nfleets: [h100]\nimage: x/y\nshell: sh\ncommands: [sleep 40]\n"
JOB = "type: task\nname: job\nfleets: [lab]\nnodes: 2\nimage: pytorch/pytorch:2.8.0\ncommands: ['true']\n"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> RehearsedRunpod:
    """A project with two fleets that are up, which makes nothing."""
    folder = tmp_path_factory.mktemp("runpod")
    begin(folder, quotas={"spendLimit": 1000})
    project = RehearsedRunpod(folder)
    file, _ = (project.fleet(name=name, **FLEET) for name in ("lab", "other"))
    first, second = project.preview(file), project.preview(file)
    assert first.code == 0, first.err
    assert first.out == second.out
    said = project.up(file)
    assert said.code == 0, said.err
    assert project.preview(file, "--exit-code").code == 0
    other = stack(folder, "other")
    other.up(find_fleet(folder, "other")[1])
    assert project.cloud.everything() == {}
    return project


@pytest.fixture(scope="module")
def held(there: RehearsedRunpod, tmp_path_factory: pytest.TempPathFactory) -> RehearsedRunpod:
    """The same with a cluster of two pods whose run nobody is about to submit: to be copied."""
    path = tmp_path_factory.mktemp("held") / "project"
    shutil.copytree(there.path, path)
    mark, _ = stack(path).grow(2)
    give_up(mark)
    return RehearsedRunpod(path)


def copied(held: RehearsedRunpod, path: Path) -> RehearsedRunpod:
    shutil.copytree(held.path, path / "copy")
    return RehearsedRunpod(path / "copy")


@pytest.fixture
def lab(there: RehearsedRunpod) -> Iterator[Stack]:
    made = stack(there.path)
    yield made
    made.cloud.turn(**Knobs(quotas={"spendLimit": 1000}).model_dump())
    made.end_all()
    assert made.cloud.everything() == {}


def kinds(lab: Stack) -> Counter[str]:
    return Counter(lab.cloud.everything().values())


def asked(lab: Stack, action: str) -> int:
    return [call.action for call in lab.cloud.calls].count(action)


def test_each_run_has_pods_of_its_own_in_one_call_and_they_go_with_it(lab: Stack) -> None:
    before = asked(lab, "createCluster")
    # A lost answer makes no second cluster, and a rate limit is waited for.
    lost = Failure(code="ANSWER_LOST", action="createCluster", nth=before + 1)
    lab.cloud.turn(failures=(lost,), rate={"listClusterPods": Rate(burst=1, per_second=0.5)})
    first, two = lab.grow(2)
    lab.cloud.turn(failures=(), rate={})
    assert "429" in {call.error for call in lab.cloud.calls}
    assert kinds(lab) == {"pod": 2, "cluster": 1}
    assert asked(lab, "createCluster") == before + 1
    nodes = lab.state().nodes
    assert [(node.name, node.runtime, node.ssh.user) for node in nodes] == [
        ("lab-0", "process", "root"),
        ("lab-1", "process", "root"),
    ]
    assert {node.internal_ip for node in nodes} == {"10.65.0.2", "10.65.0.3"}
    (cluster,) = lab.cloud.things("cluster").values()
    (pod, _) = lab.cloud.instances().values()
    assert (cluster["type"], cluster["compute"]["podCount"]) == ("TRAINING", 2)
    assert (pod["image"], pod["ports"], pod["env"]) == ("pytorch/pytorch:2.8.0", ["22/tcp"], {})
    second, one = lab.grow(1)
    assert kinds(lab) == {"pod": 3, "cluster": 1}
    assert lab.machines(first) == two
    same = lab.plan_of_file()
    assert {change.op for change in same.changes} == {"same"}
    assert same.hourly == pytest.approx(3 * 31.584, abs=10)
    assert lab.drift() == ()

    assert lab.end() == ()
    assert lab.end(first) == ("lab-0", "lab-1")
    assert kinds(lab) == {"pod": 1}
    assert lab.machines(second) == one
    assert lab.end(second) == ("lab-2",)


def test_what_has_no_room_goes_to_the_next_data_center_and_leaves_nothing_where_none_has(
    lab: Stack,
) -> None:
    mark, one = lab.grow(1)
    short = Failure(code="NO_CAPACITY", action="createCluster", nth=asked(lab, "createCluster") + 1)
    lab.cloud.turn(failures=(short,))
    told: list[str] = []
    other, two = lab.grow(2, told)
    tried = [text for text in told if text.startswith("trying ")]
    assert len(tried) == 2
    assert any(text.startswith("no room there: runpod:capacity") for text in told)
    (center,) = {lab.cloud.instances()[each]["dataCenterId"] for each in two}
    assert center in tried[1]
    assert lab.machines(mark) == one

    lab.cloud.turn(capacity={H100: 1}, failures=())
    with pytest.raises(NoCapacity) as caught:
        lab.grow(3)
    assert caught.value.code == "ORCH325"
    assert str(caught.value.detail).count("runpod:capacity") >= 2
    assert (lab.machines(mark), lab.machines(other)) == (one, two)
    assert kinds(lab) == {"pod": 3, "cluster": 1}


def test_the_spend_limit_is_told_before_it_is_hit_and_where_runpod_alone_knows_it(lab: Stack) -> None:
    lab.cloud.turn(quotas={"spendLimit": 40})
    warned = lab.plan_of_file()
    assert [(each.code, each.path) for each in warned.findings] == [("ORCH313", "nodes")]
    growth = lab.growth(2)
    assert growth is not None
    with pytest.raises(PlanErrors) as caught:
        plan_growth(lab.project, growth, quiet)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert [(each.code, each.path) for each in caught.value.findings] == [("ORCH313", "nodes")]
    lab.cloud.turn(quotas={"spendLimit": 1000})
    plan = plan_growth(lab.project, growth, quiet)
    lab.cloud.turn(quotas={"spendLimit": 40})
    with pytest.raises(StackError) as refused, making(lab.project, growth.request.made_for):
        make_nodes(lab.project, growth, plan, quiet)
    assert refused.value.code == "ORCH313"
    assert "Billing" in str(refused.value.hint)


def test_what_became_of_pods_is_drift_and_nothing_is_made_again_for_their_run(
    tmp_path: Path, held: RehearsedRunpod
) -> None:
    there = copied(held, tmp_path)
    made = stack(there.path)
    first, _ = made.cloud.instances()
    assert there.orch("drift", "lab", "--rehearse").code == 0
    there.cloud.end_container(first)
    said = there.orch("drift", "lab", "--rehearse", "--json")
    (told,) = said.json["drift"]
    assert (said.code, told["path"], told["observed"]) == (10, "status", "1 of 2 pods running")
    assert there.preview(None, "--exit-code").code == 0

    (cluster,) = there.cloud.things("cluster")
    client = RunpodClient(Login(made.cloud.api_key, url_of(made.cloud)))
    client.delete(CLUSTER, cluster)
    client.close()
    said = there.orch("drift", "lab", "--rehearse")
    assert (said.code, "gone" in said.out) == (10, True), said.out
    plan = made.plan_of_file()
    assert any(reason.startswith("gone: ") for reason in plan.reasons)
    assert "create" not in {change.op for change in plan.changes}
    assert there.orch("reconcile", "--rehearse").code == 0
    assert made.state().nodes == ()
    assert there.preview(None, "--exit-code").code == 0


def broken_host(lab: Stack, nth: int) -> Hook:
    """The host of the pods breaks before they are ready."""
    path = str(lab.cloud.path)
    code = f"from orch.rehearsal.runpod.account import RunpodCloud as C; c = C({path!r})"
    code += "; [c.end_container(each, 'ERROR') for each in c.instances()]"
    return Hook(action="createCluster", nth=nth, command=f'{sys.executable} -c "{code}"')


def test_pods_that_end_before_they_were_ready_are_made_anew(lab: Stack) -> None:
    before = asked(lab, "createCluster")
    lab.cloud.turn(hooks=[broken_host(lab, before + 1)])
    told: list[str] = []
    mark, two = lab.grow(2, told)
    assert any(text.startswith("once more in 2s: runpod:transient") for text in told), told
    assert asked(lab, "createCluster") == before + 2
    assert kinds(lab) == {"pod": 2, "cluster": 1}
    assert set(two) == set(lab.cloud.instances())
    assert lab.end(mark) == ("lab-0", "lab-1")


def test_pods_stay_while_their_run_is_on_them_whatever_is_asked_for(
    tmp_path: Path, held: RehearsedRunpod
) -> None:
    there = copied(held, tmp_path)
    made = stack(there.path)
    activeruns.start(made.project, "train", *made.state().nodes)
    for words in (("down", "lab"), ("down", "lab", "-i", "0")):
        said = there.orch(*words, "--yes", "--rehearse")
        assert said.code == ExitCode.CONFLICT, said.err
        assert "ORCH386: runs are on nodes of the fleet lab that would go: train" in said.err
    # Fewer nodes are what later runs may have.
    file = there.fleet(name="lab", **{**FLEET, "nodes": "0..1"})
    said = there.up(file)
    assert said.code == 0, said.err
    assert there.preview(file, "--exit-code").code == 0
    assert kinds(made) == {"pod": 2, "cluster": 1}

    said = there.orch("down", "lab", "-i", "0", "--force", "--yes", "--rehearse")
    assert "made for one run together with node 1" in said.err
    assert "`orch down lab -i 0 -i 1 --rehearse`" in said.err
    assert kinds(made) == {"pod": 2, "cluster": 1}
    again = copied(there, tmp_path / "again")
    said = there.orch("down", "lab", "-i", "0", "-i", "1", "--force", "--yes", "--rehearse")
    assert said.code == 0, said.err
    assert there.cloud.everything() == {}
    assert made.state().nodes == ()
    said = again.orch("down", "lab", "--force", "--yes", "--rehearse")
    assert said.code == 0, said.err
    assert again.cloud.everything() == {}


def test_more_and_fewer_nodes_are_what_runs_may_have(there: RehearsedRunpod, lab: Stack) -> None:
    other = stack(there.path, "other")
    for nodes, told in ((6, "runs make up to 6"), ("0..3", "runs make up to 3")):
        file = there.fleet(name="other", **{**FLEET, "nodes": nodes})
        assert any(told in reason for reason in other.plan_of_file().reasons)
        other.up(find_fleet(there.path, "other")[1])
        assert there.preview(file, "--exit-code").code == 0
    assert other.growth(4) is None
    assert lab.cloud.everything() == {}


def test_credentials_that_are_missing_or_wrong_are_told_with_what_to_set(
    there: RehearsedRunpod, lab: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = there.orch("preview", "lab.yml", env={"RUNPOD_API_KEY": ""})
    assert said.code == 3, said.err
    assert "ORCH303" in said.err
    assert "hint: set `creds` of `runpod` in orch.yml, or RUNPOD_API_KEY" in said.err
    wrong = Login("rpa_wrong", url_of(lab.cloud))
    monkeypatch.setattr(type(lab.project), "session", lambda project, name: wrong)
    with pytest.raises(Exception, match="does not accept the credentials") as caught:
        lab.plan_of_file()
    assert getattr(caught.value, "exit_code", None) == ExitCode.CONFIG


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("image: x/y\nprivileged: true\ncommands: [a]", "5:13: error ORCH423: a pod is not privileged"),
        ("image: orch/job\ncommands: [a]", "4:8: error ORCH236: RunPod pulls the image of a pod"),
    ],
)
def test_a_task_that_no_pod_can_run_is_refused_before_one_is_made(
    there: RehearsedRunpod, lab: Stack, lines: str, told: str
) -> None:
    there.write("job.yml", f"type: task\nname: job\nfleets: [lab]\n{lines}\n")
    said = there.orch("run", "job.yml", "--rehearse", "--yes")
    assert (said.code, told in said.err, "job.yml:" in said.err) == (3, True, True), said.err
    assert kinds(lab) == {}


def test_two_fleets_at_once_have_a_cluster_each(there: RehearsedRunpod, lab: Stack) -> None:
    started = [grower(there.path, name, 2) for name in ("lab", "other")]
    for each in started:
        out, err = each.communicate(300)
        assert each.returncode == 0, err
        assert len(out.split()) == 2
    assert kinds(lab) == {"pod": 4, "cluster": 2}
    # Whoever made them is gone, and no run came.
    said = there.orch("reconcile", "--rehearse")
    assert said.code == 0, said.err
    assert "lab-0" in said.err
    assert "made for a run that has ended" in said.err


def test_what_nobody_recorded_is_found_by_its_name_and_removed(there: RehearsedRunpod, lab: Stack) -> None:
    scope = scope_of(lab.project)
    client = RunpodClient(Login(lab.cloud.api_key, url_of(lab.cloud)))
    compute = {"gpuTypeId": H100, "gpuCountPerPod": 8, "podCount": 2}
    spec: dict[str, Any] = {"type": "TRAINING", "compute": compute, "image": "i", "ports": ["22/tcp"]}
    name = cloud_name("lab-0-abcdef", f"tests/lab/{scope}", spec)
    stray = client.create(CLUSTER, {"name": name, **spec})
    foreign = client.create(CLUSTER, {"name": "somebody-s", **spec})
    lost = client.create(CLUSTER, {"name": cloud_name("gone-0-abcdef", "tests/gone/0a1b2c", spec), **spec})
    others = client.create(CLUSTER, {"name": cloud_name("lab-0-abcdef", f"else/lab/{scope}", spec), **spec})
    there.write_state_later()
    found = there.orch("gc", "--rehearse", "--json").json
    assert [each["id"] for each in found["orphans"]] == [stray]
    (unknown,) = found["unknown"]
    assert (unknown["id"], unknown["mark"], found["other_projects"]) == (lost, "tests/gone/0a1b2c", 1)
    assert unknown["price_hourly"] > 0
    said = there.orch("gc", "--rehearse", "--yes")
    assert said.code == 0, said.err
    assert lost in said.out
    assert set(lab.cloud.things("cluster")) == {lost, others, foreign}
    said = there.orch("gc", "--stack", "tests/gone/0a1b2c", "--rehearse", "--yes")
    assert said.code == 0, said.err
    assert set(lab.cloud.things("cluster")) == {others, foreign}
    for each in (others, foreign):
        client.delete(CLUSTER, each)
    client.close()


# A call, which one of its kind, whether its effect is there; and what a user does then. The first three calls
# of a run that makes a cluster of two are its plan's.
MAKING = (
    ("listGpuTypes 1 after", "reconcile"),
    ("graphql 2 before", "again"),
    ("listClusters 1 before", "reconcile"),
    ("listClusters 1 after", "again"),
    ("createCluster 1 before", "again"),
    ("createCluster 1 after", "reconcile"),
    ("listClusterPods 1 before", "again"),
    ("listClusterPods 1 after", "reconcile"),
    ("listClusterPods 2 after", "reconcile"),
    ("listClusterPods 3 after", "again"),
)
# Of a removal: the engine's look, the deletion, and whether more is there by the name.
REMOVING = tuple(
    (words, call)
    for words in ("reconcile", "down lab --yes")
    for call in (
        "getCluster 1 after",
        "deleteCluster 1 before",
        "deleteCluster 1 after",
        "getCluster 2 after",
        "listClusters 1 after",
    )
)


def place(stack: Stack, call: str) -> dict[str, Any]:
    """Where a hook kills."""
    action, nth, when = call.split()
    return {"action": action, "nth": asked(stack, action) + int(nth), "when": when}


@pytest.mark.parametrize(("call", "then"), soaked(MAKING, often=(5, 9)))
def test_a_run_that_was_killed_while_it_made_its_pods_leaves_none_and_the_next_has_its_own(
    there: RehearsedRunpod, lab: Stack, call: str, then: str
) -> None:
    there.write("job.yml", JOB)
    made = asked(lab, "createCluster")
    there.killed_at(place(lab, call), "run", "job.yml")
    if then == "reconcile":
        said = there.orch("reconcile", "--rehearse")
        assert said.code == 0, said.err
        assert lab.cloud.everything() == {}
        assert lab.state().nodes == ()
    else:
        lab.make_way()
        assert len(lab.grow(2)[1]) == 2
        assert kinds(lab) == {"pod": 2, "cluster": 1}
        assert asked(lab, "createCluster") <= made + 2
    assert there.preview(None, "--exit-code").code == 0


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_a_run_that_was_killed_while_it_deleted_what_a_broken_host_left_leaves_none(
    there: RehearsedRunpod, lab: Stack, when: str
) -> None:
    there.write("job.yml", JOB)
    hooks = [broken_host(lab, asked(lab, "createCluster") + 1).model_dump()]
    there.killed_at(place(lab, f"deleteCluster 1 {when}"), "run", "job.yml", beside=hooks)
    said = there.orch("reconcile", "--rehearse")
    assert said.code == 0, said.err
    assert lab.cloud.everything() == {}
    assert lab.state().nodes == ()


@pytest.mark.parametrize(("words", "call"), soaked(REMOVING, often=(2, 6)))
def test_a_removal_that_was_killed_is_gone_on_with(
    tmp_path: Path, held: RehearsedRunpod, words: str, call: str
) -> None:
    there = copied(held, tmp_path)
    made = stack(there.path)
    there.killed_at(place(made, call), *words.split(), asks=False)
    said = there.orch(*words.split(), "--rehearse")
    assert said.code == 0, said.err
    assert made.cloud.everything() == {}
    if words == "reconcile":
        assert made.state().nodes == ()
        assert there.preview(None, "--exit-code").code == 0
    else:
        assert not there.checkpoint().exists()


def grower(folder: Path, fleet: str, nodes: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", runpod_engine.__name__, str(folder), fleet, str(nodes)]
    env, pipe = {**os.environ, "PYTHONPATH": str(TESTS)}, subprocess.PIPE
    return subprocess.Popen(
        words, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def with_containers(path: Path) -> tuple[Folder, RunpodCloud]:
    """A project whose fleet h100 is up, with containers that stand for its pods."""
    shutil.copytree(ROOT / "examples" / "runpod", path / "runpod")
    (path / "orch.yml").write_text("project: tests\n")
    images.ensure("job", progress=print)
    (path / ".orch" / "rehearsal").mkdir(parents=True)
    knobs = f"nodes: {{image: '{images.resolve('orch/job')}'}}\n"
    (path / ".orch" / "rehearsal" / "knobs.yml").write_text(knobs)
    folder = Folder(path)
    folder.write("long.yml", LONG)
    said = folder.orch("up", "runpod/cluster.yml", "--rehearse", "--yes", timeout=300)
    assert said.code == 0, said.err
    return folder, RunpodCloud(path / ".orch" / "rehearsal" / "runpod.db")


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Folder, RunpodCloud]]:
    """Such a project, for several tests: each leaves its account empty."""
    folder, cloud = with_containers(tmp_path_factory.mktemp("containers"))
    yield folder, cloud
    said = folder.orch("down", "h100", "--rehearse", "--yes", timeout=300)
    assert (said.code, cloud.everything(), cloud.endpoints()) == (0, {}, {}), said.err


def reconciled(folder: Folder, cloud: RunpodCloud) -> None:
    """Whoever drove the run is gone: `orch reconcile` alone ends it, and its pods."""
    until(lambda: folder.orch("reconcile", "--rehearse").code == 0 and not cloud.instances(), 400, "its end")
    assert (cloud.everything(), cloud.endpoints()) == ({}, {})


def test_a_ledger_that_knows_no_run_leaves_a_pod_that_reports_one(
    containers: tuple[Folder, RunpodCloud],
) -> None:
    folder, cloud = containers
    rehearsal = folder.path / ".orch" / "rehearsal"
    said = folder.orch("run", "long.yml", "--rehearse", "--yes", "--detach", timeout=400)
    assert said.code == 0, said.err
    until(lambda: '"running"' in folder.orch("ps", "--rehearse", "--json").out, 400, "the run runs")
    pods = set(cloud.instances())
    # Another machine has another ledger, and an hour is over.
    (checkpoint,) = rehearsal.glob("state/.pulumi/stacks/*/h100.json")
    whole = json.loads(checkpoint.read_text())
    for each in whole["checkpoint"]["latest"]["resources"]:
        each["created"] = "2026-01-01T00:00:00Z"
    checkpoint.write_text(json.dumps(whole))
    own = list(rehearsal.glob("ledger.db*"))
    aside = folder.path / "aside"
    aside.mkdir()
    for each in own:
        each.rename(aside / each.name)
    said = folder.orch("reconcile", "--rehearse", "--json")
    assert said.code == 0, said.err
    assert ["in use by run long" in row["done"] for row in said.json["fleets"]] == [True]
    assert set(cloud.instances()) == pods
    for each in rehearsal.glob("ledger.db*"):
        each.unlink()
    for each in own:
        (aside / each.name).rename(each)
    said = folder.orch("stop", "long", "--rehearse")
    assert said.code == 0, said.err
    reconciled(folder, cloud)


def test_torchrun_trains_on_a_cluster_of_its_own_and_reconcile_ends_what_a_killed_command_began(
    containers: tuple[Folder, RunpodCloud],
) -> None:
    """Containers stand for the pods, gloo for their network."""
    folder, cloud = containers
    shutil.copytree(ROOT / "examples" / "aws", folder.path / "task")
    task = folder.path / "task" / "train.yml"
    before = [call.action for call in cloud.calls].count("createCluster")
    task.write_text(task.read_text().replace("fleets: [p5]", "fleets: [h100]\nimage: pytorch/pytorch:2.8.0"))
    few_ranks(task)
    said = folder.orch("run", "task/train.yml", "--rehearse", "--yes", "--json", timeout=600)
    assert said.code == 0, said.err
    assert [node["exit_code"] for node in said.json["nodes"]] == [0, 0]
    assert "weights identical on all" in folder.orch("logs", said.json["run"], "--rehearse").out
    assert [call.action for call in cloud.calls].count("createCluster") == before + 1
    assert (cloud.everything(), cloud.endpoints()) == ({}, {})

    began = folder.start("run", "long.yml", "--rehearse", "--yes")
    until(lambda: '"running"' in folder.orch("ps", "--rehearse", "--json").out, 400, "the run runs")
    began.kill()
    began.communicate(60)
    assert len(cloud.instances()) == 1
    reconciled(folder, cloud)
    assert folder.orch("show", "long", "--rehearse", "--json").json["run"]["status"] == "done"


def test_a_network_volume_has_from_run_to_run_what_was_written_to_it(
    containers: tuple[Folder, RunpodCloud],
) -> None:
    folder, cloud = containers
    before = len(cloud.calls)
    volume = "type: volume\nname: data\nbackend: runpod\nregion: US-TX-3\nsize: 100GB\n"
    folder.write("volume.yml", volume)
    for words in (("up", "volume.yml", "--yes"), ("preview", "volume.yml", "--exit-code")):
        said = folder.orch(*words, "--rehearse")
        assert said.code == 0, said.err
    job = "type: task\nfleets: [h100]\nimage: x/y\nshell: sh\nvolumes: [data:/mnt/data]\n"
    folder.write("write.yml", f"{job}nodes: 2\ncommands: ['echo from $NODE_RANK > /mnt/data/$NODE_RANK']\n")
    # What is written into the container alone goes with it.
    folder.write(
        "read.yml", f"{job}commands: ['cat /mnt/data/*', 'grep -c /mnt/data /proc/self/mountinfo']\n"
    )
    folder.write("other.yml", job.replace("data:/mnt", "none:/mnt") + "commands: ['true']\n")
    refused = folder.orch("run", "other.yml", "--rehearse", "--yes")
    assert "other.yml:5:11: error ORCH268: the volume none is not up in this project" in refused.err
    assert cloud.instances() == {}
    for file in ("write.yml", "read.yml"):
        said = folder.orch("run", file, "--rehearse", "--yes", "--json", timeout=600)
        assert said.code == 0, said.err
    assert folder.orch("logs", said.json["run"], "--rehearse").out.splitlines() == ["from 0", "from 1", "1"]
    # The pods of both went where the volume is, and none is left.
    calls = cloud.calls[before:]
    made = [call.params for call in calls if call.action in ("createCluster", "createPod")]
    assert [each["dataCenterIds"] for each in made] == [["US-TX-3"]] * 2
    (kept,) = cloud.everything()
    assert [each["mounts"]["network"] for each in made] == [[{"volumeId": kept, "path": "/mnt/data"}]] * 2

    given = volume.replace("data", "given").replace("size: 100GB", f"volume_id: {kept}")
    folder.write("given.yml", given)
    ends = [
        folder.orch(*words, "--rehearse", "--yes").code
        for words in (("up", "given.yml"), ("down", "given.yml"), ("down", "volume.yml"))
    ]
    assert ends == [0, 0, ExitCode.PROVISION]  # the last one is protected
    assert set(cloud.everything()) == {kept}
    said = folder.orch("volume", "delete", "data", "--confirm", "data", "--rehearse")
    assert said.code == 0, said.err
    assert cloud.everything() == {}


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["it is submitted", "it runs", "its pods go"])
def test_a_run_that_was_killed_when_its_pods_were_up_ends_without_it(tmp_path: Path, moment: str) -> None:
    folder, cloud = with_containers(tmp_path)
    if moment == "its pods go":
        cloud.turn(hooks=[Hook(action="deletePod", nth=1, when="before", command=KILL_ALL)])
    began = folder.start("run", "long.yml", "--rehearse", "--yes")
    if moment == "it is submitted":
        until(lambda: '"long"' in folder.orch("ps", "--rehearse", "--json").out, 400, "the run is there")
        began.kill()
    elif moment == "it runs":
        until(lambda: '"running"' in folder.orch("ps", "--rehearse", "--json").out, 400, "the run runs")
        began.kill()
    began.communicate(400)
    assert began.returncode == -signal.SIGKILL
    assert len(cloud.instances()) == 1
    kill(*at_work(tmp_path, "pulumi-language"))
    cloud.turn(hooks=[])
    reconciled(folder, cloud)
    said = folder.orch("show", "long", "--rehearse", "--json")
    assert said.json["run"]["status"] == "done", said.out
    again = folder.orch("run", "long.yml", "--rehearse", "--yes", timeout=600)
    assert again.code == 0, again.err
    assert [call.action for call in cloud.calls].count("createPod") == 2
    assert (cloud.everything(), cloud.endpoints()) == ({}, {})
