"""A state whose passphrase is rotated, or that moves: no stack is left behind, and what others do meanwhile
is refused or goes along."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.clouds.rehearsals import RehearsedGcp
from kit.engine.remote_state import bucket
from kit.support import Folder, Said, fleet_yaml, until

from orch.rehearsal.project import rehearse
from orch.stacks.project.passphrase import former_file, new_file, opens
from orch.stacks.project.project import Project, find
from orch.stacks.secrets.values import ProjectSecrets
from orch.stacks.stack.command import init
from orch.stacks.stack.state import HOLD, StackState, stacks
from orch.stacks.states.passphrase_rotation import rotate_passphrase

pytestmark = [pytest.mark.usefixtures("passphrase", "engine"), pytest.mark.timeout(900)]

VOLUME = "type: volume\nname: {name}\nbackend: local\nsize: 1GB\n"
ROTATE = ("rotate", "passphrase", "--yes")
AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


def sealed_by(project: Project, passphrase: str) -> None:
    """Each stack of the project proves this passphrase, and no other one is left."""
    names = stacks(project)
    assert names
    for name in names:
        salt = StackState(project, name).salt
        assert salt is not None, name
        assert opens(passphrase, salt), name
    assert not new_file(project).exists()
    assert not former_file(project).exists()
    assert not StackState(project, HOLD).exists


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, passphrase: None) -> Iterator[Folder]:
    """A fleet, a volume, a secret, and a stack that has nothing yet, as that of a new network."""
    del passphrase
    folder = Folder(tmp_path_factory.mktemp("sealed"))
    folder.write("orch.yml", "project: sealed\n")
    folder.write("fleet.yml", fleet_yaml("sealed", 1))
    folder.write("volume.yml", VOLUME.format(name="sealed-data"))
    for file in ("fleet.yml", "volume.yml"):
        said = folder.orch("up", file, "--yes")
        assert said.code == 0, said.err
    assert folder.orch("secret", "set", "token", "geheim").code == 0
    init(StackState(find(folder.path), "network.floor"))
    yield folder
    assert folder.orch("down", "sealed", "--yes").code == 0
    said = folder.orch("volume", "delete", "sealed-data", "--confirm", "sealed-data", "--yes")
    assert said.code == 0, said.err


def unchanged(folder: Folder) -> None:
    for file in ("fleet.yml", "volume.yml"):
        said = folder.orch("preview", file, "--exit-code")
        assert said.code == 0, said.out + said.err
    assert ProjectSecrets(find(folder.path)).values(["token"]) == {"token": "geheim"}
    said = folder.orch("exec", "sealed", "--", "echo", "in")
    assert (said.code, "in" in said.out) == (0, True), said.err


def test_a_stack_without_secrets_gets_the_new_passphrase_too(lab: Folder) -> None:
    project = find(lab.path)
    before = project.passphrase_file.read_text()
    said = lab.orch(*ROTATE)
    assert said.code == 0, said.err
    after = project.passphrase_file.read_text()
    assert before != after
    sealed_by(project, after)
    unchanged(lab)
    assert lab.orch("up", "volume.yml", "--yes").code == 0
    results = [each["result"] for each in lab.orch("log", "--json").json["changes"]]
    assert "4 stacks encrypted anew" in results


def test_a_stack_without_secrets_whose_passphrase_is_lost_gets_a_new_one(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("orch.yml", "project: lost\n")
    project = find(tmp_path)
    project.prepare()
    init(StackState(project, "network.floor"))
    project.passphrase_file.write_text("of another project")
    said = folder.orch(*ROTATE)
    assert said.code == 0, said.err
    sealed_by(project, project.passphrase_file.read_text())


def test_the_networks_that_fleets_of_a_cloud_share_get_it_too(tmp_path: Path) -> None:
    there: RehearsedGcp = RehearsedGcp.make(tmp_path)
    there.fleet(1, network={"name": "floor", "bastion": False, "interconnect": "ethernet"})
    assert there.up().code == 0
    project = rehearse(find(there.path)).project
    assert [name.partition(".")[0] for name in stacks(project)] == ["lab", "network"]
    rotate_passphrase(project, None, lambda _: None)
    sealed_by(project, project.passphrase_file.read_text())
    assert there.preview("lab.yml", "--exit-code").code == 0
    assert there.down().code == 0
    assert there.cloud.everything() == {}


def sealed(project: Project, passphrase: Path) -> int:
    """How many stacks have the passphrase of a file."""
    if not passphrase.exists():
        return 0
    found = (StackState(project, name).salt for name in stacks(project))
    return sum(salt is not None and opens(passphrase.read_text(), salt) for salt in found)


MOMENTS: dict[str, Callable[[Project], bool]] = {
    "it is made": lambda project: new_file(project).exists(),
    "a stack has it": lambda project: sealed(project, new_file(project)) >= 1,
    "half of them have it": lambda project: sealed(project, new_file(project)) >= 2,
    "it is in its place": lambda project: former_file(project).exists(),
}


@pytest.mark.parametrize(
    "when",
    [
        pytest.param(each, marks=() if number in {1, 3} else pytest.mark.soak)
        for number, each in enumerate(MOMENTS)
    ],
)
def test_after_a_kill_each_stack_is_read_with_its_own_passphrase_and_the_same_call_goes_on(
    lab: Folder, when: str
) -> None:
    project = find(lab.path)
    before = project.passphrase_file.read_text()
    with lab.start(*ROTATE) as process:
        until(lambda: MOMENTS[when](project) or process.poll() is not None, 120, when)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    unchanged(lab)
    if StackState(project, HOLD).exists:
        for words in (("secret", "set", "other", "x"), ("up", "volume.yml", "--yes")):
            said = lab.orch(*words)
            assert (said.code, "ORCH389" in said.err) == (9, True), said.err
            assert "`orch rotate passphrase` continues it" in said.err
    if new_file(project).exists() or former_file(project).exists():
        said = lab.orch("preview", "volume.yml")
        assert "`orch rotate passphrase` finishes it" in said.err
        said = lab.orch("state", "move", "--to", f"file://{lab.path}/elsewhere", "--yes")
        assert (said.code, "ORCH389" in said.err) == (9, True), said.err
    said = lab.orch(*ROTATE)
    assert said.code == 0, said.err
    after = project.passphrase_file.read_text()
    assert after != before
    sealed_by(project, after)
    unchanged(lab)


# A second process beside a rotation or a move


@dataclass(frozen=True)
class Place:
    """A project whose state lies in files or in a bucket, and the environment of its callers."""

    folder: Folder
    env: dict[str, str]
    elsewhere: str

    def orch(self, *words: str) -> Said:
        return self.folder.orch(*words, env=self.env)

    def start(self, *words: str) -> subprocess.Popen[str]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.env.items():
                patch.setenv(name, value)
            return self.folder.start(*words)

    @property
    def project(self) -> Project:
        return find(self.folder.path)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    folder = Folder(tmp_path / "clone")
    folder.path.mkdir()
    with contextlib.ExitStack() as stack:
        if request.param == "files":
            made = Place(folder, {}, f"file://{tmp_path}/target")
            state = f"file://{tmp_path}/state"
        else:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            state, elsewhere = stack.enter_context(bucket()), stack.enter_context(bucket())
            env = {**AWS, "PULUMI_CONFIG_PASSPHRASE": "the first one", "PULUMI_HOME": str(tmp_path / "home")}
            for name, value in env.items():
                patch.setenv(name, value)
            made = Place(folder, env, elsewhere)
        folder.write("orch.yml", f"project: beside\nstate: {state}\n")
        folder.write("late.yml", VOLUME.format(name="late"))
        said = made.orch("secret", "set", "token", "geheim")
        assert said.code == 0, said.err
        yield made
        if "volume.late" in stacks(made.project):
            said = made.orch("volume", "delete", "late", "--confirm", "late", "--yes")
            assert said.code == 0, said.err


def beside(place: Place, words: tuple[str, ...], after_s: float, other: tuple[str, ...]) -> Said:
    """What a second call says that begins so many seconds after one that holds the state; the latter ends
    well."""
    with place.start(*words) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        said = place.orch(*other)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, out + err
    return said


def kept(place: Place, said: Said, stack: str, passphrase: str | None) -> None:
    """What the second call did is there, and is opened by what opens all else; or it was refused."""
    project = place.project
    there = StackState(project, stack)
    if said.code == 0:
        assert there.exists, said.err
    else:
        assert (said.code, "ORCH389" in said.err or "ORCH395" in said.err) == (9, True), said.err
    for name in stacks(project):
        salt = StackState(project, name).salt
        text = project.passphrase_file.read_text() if passphrase is None else passphrase
        assert salt is not None, name
        assert opens(text, salt), name


SECRET = (("secret", "set", "other", "x"), "orch.secrets")
STACK = (("up", "late.yml", "--yes"), "volume.late")


def moments() -> list[object]:
    """Places and moments of a call, in seconds: one for each place in each run of the suite, and twenty by
    chance in `make soak`."""
    soak = [(place, round(random.uniform(0.0, 8.0), 2)) for place in ("files", "bucket") for _ in range(20)]
    soak += [("files", 5.0), ("bucket", 0.8)]
    return [
        pytest.param("files", 0.8, id="files"),
        pytest.param("bucket", 5.0, id="bucket"),
        *(
            pytest.param(*each, marks=pytest.mark.soak, id=f"{each[0]}-soak{n}")
            for n, each in enumerate(soak)
        ),
    ]


@pytest.mark.parametrize(("place", "after_s"), moments(), indirect=["place"])
def test_what_a_second_process_makes_while_the_passphrase_is_rotated_is_not_lost(
    place: Place, after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = place.project.local_state is None
    other, stack = random.choice([SECRET, STACK])
    words = ROTATE
    if remote:
        place.folder.write("next", "the next one\n")
        words = (*ROTATE, "--new-from", "next")
        after_s *= 2.5
    said = beside(place, words, after_s, other)
    if remote:
        place.env["PULUMI_CONFIG_PASSPHRASE"] = "the next one"
        monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "the next one")
    kept(place, said, stack, "the next one" if remote else None)
    expected = {"token": "geheim"} | ({"other": "x"} if said.code == 0 and stack == SECRET[1] else {})
    assert ProjectSecrets(place.project).values(list(expected)) == expected


@pytest.mark.parametrize(("place", "after_s"), moments(), indirect=["place"])
def test_what_a_second_process_makes_while_the_state_moves_goes_along(place: Place, after_s: float) -> None:
    remote = place.project.local_state is None
    other, stack = random.choice([SECRET, STACK])
    former = place.project
    said = beside(
        place,
        ("state", "move", "--to", place.elsewhere, "--yes"),
        after_s * (2.5 if remote else 1.0),
        other,
    )
    assert place.project.state_url == place.elsewhere
    kept(place, said, stack, "the first one" if remote else None)
    expected = {"token": "geheim"} | ({"other": "x"} if said.code == 0 and stack == SECRET[1] else {})
    assert ProjectSecrets(place.project).values(list(expected)) == expected
    # Who has the old orch.yml creates nothing there either.
    place.folder.write("orch.yml", f"project: beside\nstate: {former.state_url}\n")
    said = place.orch("secret", "set", "lost", "x")
    assert (said.code, f"has moved to {place.elsewhere}" in said.err) == (9, True), said.err
    place.folder.write("orch.yml", f"project: beside\nstate: {place.elsewhere}\n")
