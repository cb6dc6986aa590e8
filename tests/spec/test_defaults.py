"""`defaults` and `profiles` of orch.yml: what documents take over, what stays theirs, where it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.leaves import HEADS, Leaf, leaves, valid

from orch.spec.document.defaults import OF_CLOUDS, Common, UnknownProfile, nearest_project_file
from orch.spec.loader.load import Loaded, load_paths
from orch.spec.loader.untrusted import Fence
from orch.spec.models import Fleet, Task

SETTINGS = """\
defaults:
  fleet:
    placement: cluster
    nodes: 4
    region: us-east-1
    resources: {gpu: "H100:8"}
  task:
    max_duration: 2h
    env: [A=1]
    commands: [echo default]
profiles:
  - name: short
    max_duration: 5m
    resources: {gpu: 1}
  - name: usual
    default: true
    max_duration: 1h
"""


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Loaded]:
    """Documents read as those of a project with these settings."""

    def read(text: str, settings: str = SETTINGS, profile: str | None = None, **more: Any) -> Loaded:
        (tmp_path / "orch.yml").write_text(settings)
        (tmp_path / "file.yml").write_text(text)
        common = Common.in_file(str(tmp_path / "orch.yml"))
        assert common is not None
        return load_paths(
            [tmp_path / "file.yml"], environ={}, common=lambda _: common.with_profile(profile), **more
        )

    return read


Read = Callable[..., Loaded]
FLEET = "type: fleet\nname: lab\nbackends: [aws]\n"
TASK = "type: task\nname: train\n"


def fleet(loaded: Loaded) -> Fleet:
    (found,) = loaded.require().fleets
    return found


def task(loaded: Loaded) -> Task:
    (found,) = loaded.require().tasks
    return found


def test_a_document_has_what_it_does_not_write_itself_from_the_project(read: Read) -> None:
    found = fleet(read(FLEET))
    assert (found.placement, found.nodes.target if found.nodes else 0) == ("cluster", 4)
    assert found.regions == ("us-east-1",)
    assert found.resources.gpu.names == ("H100",)
    assert task(read(TASK)).commands == ("echo default",)


def test_what_a_document_writes_is_its_own_as_a_whole(read: Read) -> None:
    found = fleet(read(f"{FLEET}placement: any\nresources: {{cpu: 4}}\n"))
    assert found.placement == "any"
    assert found.resources.gpu.names == ()
    assert dict(task(read(f"{TASK}env: [B=2]\n")).env) == {"B": "2"}


def test_another_spelling_is_the_same_property(read: Read) -> None:
    assert fleet(read(f"{FLEET}regions: [us-west-2]\n")).regions == ("us-west-2",)


def test_an_empty_property_is_none_that_a_document_writes(read: Read) -> None:
    assert fleet(read(f"{FLEET}placement:\n")).placement == "cluster"


def test_a_task_takes_its_own_word_before_its_profile_s_and_that_before_the_default(read: Read) -> None:
    plain = SETTINGS.replace("    default: true\n", "")
    assert task(read(TASK, plain)).max_duration_s == 7200
    assert task(read(TASK)).max_duration_s == 3600
    short = task(read(TASK, profile="short"))
    assert (short.max_duration_s, short.resources.gpu.count) == (
        300,
        task(read(f"{TASK}resources: {{gpu: 1}}\n")).resources.gpu.count,
    )
    assert task(read(f"{TASK}max_duration: 7m\n", profile="short")).max_duration_s == 420
    assert dict(short.env) == {"A": "1"}, "what the profile leaves open is the default"


def test_a_profile_that_is_not_there_is_told_with_those_that_are(read: Read) -> None:
    with pytest.raises(UnknownProfile) as caught:
        read(TASK, profile="shrot")
    assert "short, usual" in (caught.value.detail or "")
    assert "did you mean 'short'?" in (caught.value.hint or "")


@pytest.mark.parametrize("own", ["commands: [echo own]", "torchrun: train.py", "mpirun: ./a.out"])
def test_a_task_with_a_launcher_takes_no_other(read: Read, own: str) -> None:
    found = task(
        read(f"{TASK}nodes: 2\n{own}\n", SETTINGS.replace("commands: [echo default]", "torchrun: x.py"))
    )
    assert (found.torchrun is not None) == own.startswith("torchrun")
    assert "echo default" not in found.commands


def test_existing_hosts_take_nothing_of_nodes_that_are_made(read: Read) -> None:
    found = fleet(read("type: fleet\nname: rack\nssh_config: {hosts: [10.0.0.4]}\n"))
    assert found.placement == "cluster"
    assert found.nodes is None
    assert "resources" not in found.model_fields_set


def test_nodes_on_this_machine_take_nothing_of_clouds(read: Read) -> None:
    loaded = read("type: fleet\nname: lab\nbackend: local\nresources: {cpu: 1}\n", launch=("fleet",))
    assert fleet(loaded).regions == ()


CLOUD = """backends: [{type: aws}]
defaults: {fleet: {max_price: 5, regions: [eu-west-1], budget: {hourly: 40}}}
"""


def test_a_fleet_without_backends_takes_what_narrows_the_clouds_of_the_project(read: Read) -> None:
    made = fleet(read("type: fleet\nname: lab\nnodes: 2\n", CLOUD, launch=True))
    assert (made.max_price, made.regions) == (5, ("eu-west-1",))
    assert made.budget is not None
    local = fleet(read("type: fleet\nname: lab\nnodes: 2\n", CLOUD.partition("\n")[2], launch=True))
    assert (local.max_price, local.regions, local.budget) == (None, (), None)


def test_empty_properties_do_not_switch_defaults_off(read: Read) -> None:
    made = fleet(read("type: fleet\nname: lab\nnodes: 2\nbackends: [aws]\ntags:\nenv:\nttl:\n", CLOUD))
    assert (made.max_price, made.regions) == (5, ("eu-west-1",))


@pytest.mark.parametrize(
    ("default", "own"),
    [
        ("task: {image: a/b}", TASK + "python: '3.12'\ncommands: [ls]\n"),
        ("task: {python: '3.12'}", TASK + "image: a/b\ncommands: [ls]\n"),
        ("fleet: {spot_policy: spot, nodes: 2}", FLEET + "reservation: cr-1\n"),
    ],
)
def test_what_a_document_writes_leaves_out_a_default_that_does_not_go_with_it(
    read: Read, default: str, own: str
) -> None:
    assert not read(own, f"defaults: {{{default}}}\n").failed


def test_a_variable_that_only_a_default_needs_stops_no_verb_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("defaults: {task: {env: ['K=${{ env.NOT_SET_HERE }}']}}\n")
    loaded = load_paths([tmp_path / "orch.yml"], launch=("project",), environ={})
    assert [each.code for each in loaded.diagnostics] == ["ORCH173"]
    assert not loaded.failed


def test_other_kinds_of_documents_take_nothing(read: Read) -> None:
    assert not read("type: volume\nname: data\nbackend: aws\nregion: us-east-1\nsize: 100GB\n").failed


def test_a_mistake_that_a_document_takes_over_is_told_in_orch_yml_and_the_document_is_none(
    read: Read,
) -> None:
    loaded = read(
        f"{TASK}---\n{TASK.replace('train', 'other')}singleton: false\n",
        f"{SETTINGS}".replace("    env: [A=1]\n", "    singleton: true\n"),
        launch=("task",),
    )
    (wrong,) = [e for e in loaded.diagnostics if e.path == "singleton" and "orch.yml" in e.span.file]
    assert (wrong.code, wrong.span.line) == ("ORCH118", 9)
    assert (wrong.excerpt or "").strip() == "singleton: true"
    assert (wrong.detail or "").startswith("the task at ")
    assert (wrong.detail or "").endswith("file.yml:1 takes it over from here")
    assert "train" not in [each.name for each in loaded.tasks]


def test_a_reference_in_a_default_is_read_as_in_the_document(read: Read) -> None:
    settings = "defaults:\n  task:\n    commands: ['echo ${{ run.args }}']\n    env: ['ID=${{ env.MINE }}']\n"
    loaded = read(TASK, settings, launch=("task",))
    (unset,) = loaded.diagnostics
    assert (unset.code, unset.span.line) == ("ORCH173", 4)


TOP = {
    kind: {leaf.path[0]: leaf for leaf in reversed(leaves(kind)) if leaf.path[0] not in ("name", "type")}
    for kind in ("fleet", "task")
}


@pytest.mark.parametrize("leaf", [leaf for of_kind in TOP.values() for leaf in of_kind.values()], ids=str)
def test_every_property_can_be_a_default(read: Read, tmp_path: Path, leaf: Leaf) -> None:
    key = str(leaf.path[0])
    _, document, _ = next(valid(tmp_path, leaf))
    if key in OF_CLOUDS or key == "region":
        document = {**document, "backends": ["aws"]}
    own = {name: value for name, value in document.items() if name != key}
    whole = read(yaml.safe_dump(document), "{}")
    given = read(yaml.safe_dump(own), yaml.safe_dump({"defaults": {leaf.kind: {key: document[key]}}}))
    assert not given.failed, given.diagnostics
    assert given.documents[0].model == whole.documents[0].model
    assert HEADS[leaf.kind].items() <= own.items()


# Which file it is


def test_the_nearest_settings_upwards_count_and_those_of_a_stranger_end_at_the_repository(
    tmp_path: Path,
) -> None:
    inner = tmp_path / "repository" / "fleets"
    inner.mkdir(parents=True)
    (inner / "file.yml").touch()
    (tmp_path / "orch.yml").touch()
    assert nearest_project_file(str(inner / "file.yml")) == str(tmp_path / "orch.yml")
    fence = Fence(tmp_path / "repository")
    assert nearest_project_file(str(inner), fence) is None
    (inner / "orch.yml").symlink_to(tmp_path / "orch.yml")
    assert nearest_project_file(str(inner), fence) is None
    (tmp_path / "repository" / "orch.yml").touch()
    assert nearest_project_file(str(inner), fence) == str(tmp_path / "repository" / "orch.yml")


@pytest.mark.parametrize(
    "text", ["", "[", "- a\n- b\n", "defaults: 7\nprofiles: x\n", "profiles: [7, {name: [a]}]\n"]
)
def test_settings_that_are_wrong_are_told_where_they_are_read_themselves(
    read: Read, text: str, tmp_path: Path
) -> None:
    (tmp_path / "orch.yml").write_text(text)
    common = Common.in_file(str(tmp_path / "orch.yml"))
    assert common is None or (common.fleet, common.task, common.profiles) == (None, None, {})
