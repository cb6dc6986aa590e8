"""The secrets of a project, by the command line and the real engine."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from kit.nodes.foldernodes import FolderLab, FolderRuntime
from kit.support import ORCH, Folder, Said

from orch.runner.launch.submission import Submission
from orch.runner.ledger.ledger import open_ledger
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.backends.credentials import AccessKeyCreds
from orch.stacks.errors import StackLocked
from orch.stacks.keys.secret_store import LARGEST, SecretStore
from orch.stacks.project.project import find
from orch.stacks.pulumi import recovery
from orch.stacks.secrets.values import STACK, NoSuchSecret, backends_with_secrets, tunnels

pytestmark = pytest.mark.usefixtures("passphrase")

ORCH_YML = """\
project: vault
backends:
  - type: local
  - type: aws
    creds: {type: access_key, access_key: "$${{ x }}", secret_key: "<${{ secrets.hf_token }}>"}
"""
PEM = "-----BEGIN KEY-----\nline one of the key\nline two of the key\n-----END KEY-----\n"


def set_secret(folder: Folder, name: str, value: str | bytes, *words: str) -> Said:
    done = subprocess.run(
        [*ORCH, "secret", "set", *words, "--", name],
        cwd=folder.path,
        input=value if isinstance(value, bytes) else value.encode(),
        capture_output=True,
        check=False,
    )
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


def values(folder: Folder, *names: str) -> dict[str, str]:
    return SecretStore(find(folder.path)).values(names)


def holding(folder: Folder, text: str) -> list[str]:
    """Files of the project that hold a text."""
    return [
        str(path) for path in folder.path.rglob("*") if path.is_file() and text.encode() in path.read_bytes()
    ]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: None) -> Folder:
    """A project with three secrets: of one line, of several, and the largest there may be."""
    path = tmp_path_factory.mktemp("secrets")
    (path / "orch.yml").write_text(ORCH_YML)
    folder = Folder(path)
    (path / "key.pem").write_text(PEM)
    with ThreadPoolExecutor(2) as both:
        said = list(
            both.map(
                lambda given: set_secret(folder, *given),
                (("hf_token", "hf-t0ken-value\n"), ("large", "é" * (LARGEST // 2))),
            )
        )
    said.append(set_secret(folder, "deploy-key", "", "--from-file", "key.pem"))
    assert [each.code for each in said] == [0, 0, 0], said
    assert {each.out for each in said} == {
        f"secret {name}: set\n" for name in ("hf_token", "large", "deploy-key")
    }
    (path / "key.pem").unlink()
    return folder


def test_what_was_set_by_two_at_once_is_there_as_it_was_given(project: Folder) -> None:
    assert values(project, "hf_token", "large", "deploy-key") == {
        "hf_token": "hf-t0ken-value",
        "large": "é" * (LARGEST // 2),
        "deploy-key": PEM,
    }


def test_names_are_listed_and_values_are_not(project: Folder) -> None:
    listed = project.orch("secret", "list")
    assert re.fullmatch(r"NAME +SET\n(\S+ +\d{4}-\d\d-\d\dT[\d:]+Z\n){3}", listed.out), listed
    names = [each["name"] for each in project.orch("secret", "list", "--json").json["secrets"]]
    assert names == ["deploy-key", "hf_token", "large"]
    assert "t0ken" not in listed.out + listed.err


def test_no_file_of_the_project_holds_a_value(project: Folder) -> None:
    assert holding(project, "hf-t0ken") == []
    assert holding(project, "line one of the key") == []
    assert holding(project, "ciphertext") != []


def test_a_secret_is_replaced_and_deleted(project: Folder) -> None:
    assert set_secret(project, "passing", "first-value").out == "secret passing: set\n"
    said = project.orch("secret", "set", "passing", "second-value")
    assert (said.code, said.out) == (0, "secret passing: replaced\n")
    assert "the value was on the command line" in said.err
    assert "second-value" not in said.err
    assert values(project, "passing") == {"passing": "second-value"}
    task = {"name": "late", "commands": ["true"], "env": {"A": "${{ secrets.passing }}"}}
    lab, found = FolderLab(project.path), find(project.path)
    with closing(open_ledger(found.ledger_url)) as ledger:
        runner = RunnerContext(
            found.dot,
            ledger,
            lab.connector,
            runtimes={"folder": FolderRuntime()},
            secrets=lambda names: dict.fromkeys(names, "x"),
        )
        needs_it = Task.model_validate(task)
        lifecycle.submit(runner, Submission(needs_it, lab.fleet(), image="none", base=project.path))
        said = project.orch("secret", "delete", "passing")
        lifecycle.stop(runner, ledger.get("late"), abort=True)
    assert said.out == "secret passing: deleted\n"
    assert "warning: run late (submitted) still needs it" in said.err
    assert "`orch secret set passing` gives it a value again, `orch stop late` ends the run" in said.err
    with pytest.raises(NoSuchSecret):
        values(project, "passing")
    said = project.orch("secret", "delete", "hf_tokn")
    assert said.code == 3
    assert "error ORCH172: secret 'hf_tokn' is not set in this project" in said.err
    assert "did you mean 'hf_token'? Else `orch secret set hf_tokn`" in said.err


@pytest.mark.parametrize(
    ("name", "value", "code", "told"),
    [
        ("a b", "x", 2, "'a b' is not the name of a secret"),
        ("-x", "x", 2, "'-x' begins with a dash: every command would take it for an option"),
        ("empty", "", 2, "the value of empty is empty"),
        ("binary", b"\xff\xfe", 2, "a secret is text in UTF-8, and this is none"),
        ("null", "a\0b", 2, "holds a NUL character"),
        ("huge", "x" * (LARGEST + 1), 2, "has 65,537 bytes, a secret has 65,536 at most"),
    ],
)
def test_a_value_that_cannot_be_one_is_refused_and_changes_nothing(
    project: Folder, name: str, value: str | bytes, code: int, told: str
) -> None:
    said = set_secret(project, name, value)
    assert (said.code, told in said.err) == (code, True), said.err
    assert "Traceback" not in said.err
    assert name not in SecretStore(find(project.path)).set_at


def test_credentials_of_the_project_name_secrets(project: Folder) -> None:
    found = find(project.path)
    (written,) = (each for each in found.backends if isinstance(each, AwsSettings))
    assert "t0ken" not in repr(written)
    (filled,) = (each for each in backends_with_secrets(found) if isinstance(each, AwsSettings))
    assert isinstance(filled.creds, AccessKeyCreds)
    assert (filled.creds.access_key, filled.creds.secret_key) == ("${{ x }}", "<hf-t0ken-value>")
    tunnel = tunnels(found)
    assert "<hf-t0ken-value>" in tunnel.values()
    other = project.path / "other"
    other.mkdir(exist_ok=True)
    (other / "orch.yml").write_text(ORCH_YML.replace("hf_token", "hf_tokn"))
    with pytest.raises(NoSuchSecret) as caught:
        backends_with_secrets(find(other))
    assert caught.value.hint == "set it: `orch secret set hf_tokn`"
    assert str(caught.value.where).endswith("other/orch.yml:5:68")


def test_a_secret_is_asked_for_where_its_backend_is_used(tmp_path: Path) -> None:
    runpod = '  - type: runpod\n    creds: {type: api_key, api_key: "${{ secrets.runpod }}"}\n'
    (tmp_path / "orch.yml").write_text(f"project: vault\nbackends:\n  - type: nebius\n{runpod}")
    project = find(tmp_path)
    for used in ([], ["nebius"]):
        assert backends_with_secrets(project, used) == project.backends
    assert tunnels(project) == {}
    folder = Folder(tmp_path)
    for backend, code in (("nebius", "ORCH303"), ("runpod", "ORCH172")):
        fleet = f"type: fleet\nname: lab\nnodes: 0..2\nbackends: [{backend}]\nresources: {{gpu: H100}}\n"
        folder.write("lab.yml", fleet)
        said = folder.orch("preview", "lab.yml")
        assert (said.code, code in said.err) == (3, True), said.err
        place = f"{tmp_path}/orch.yml:5:37: error ORCH172: secret 'runpod' is not set in this project"
        assert (place in said.err) == (backend == "runpod"), said.err


def test_a_missing_file_and_two_values_are_told(project: Folder) -> None:
    said = project.orch("secret", "set", "x", "--from-file", "none.txt")
    assert (said.code, "none.txt: error: the file with the value cannot be read" in said.err) == (2, True)
    said = project.orch("secret", "set", "x", "v", "--from-file", "none.txt")
    assert (said.code, "a secret has one value" in said.err) == (2, True)


def test_a_terminal_is_asked_and_shows_nothing(project: Folder) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*ORCH, "secret", "set", "typed"],
        cwd=project.path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        shown = b""
        while b"value of typed: " not in shown:
            shown += os.read(ours, 1024)
        os.write(ours, b"typed-in-value\n")
        try:
            while chunk := os.read(ours, 1024):
                shown += chunk
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0, shown
    os.close(ours)
    assert b"secret typed: set" in shown
    assert b"typed-in" not in shown
    assert values(project, "typed") == {"typed": "typed-in-value"}


def test_another_passphrase_is_told(project: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "another")
    before = SecretStore(find(project.path)).set_at
    said = set_secret(project, "late", "x")
    assert said.code == 5, said
    assert "error ORCH354: the secrets of this project cannot be decrypted, so none can be set" in said.err
    project.write("t.yml", "type: task\nname: tt\nimage: x\nenv: {A: '${{ secrets.hf_token }}'}\n")
    assert project.orch("secret", "list").code == 0
    assert SecretStore(find(project.path)).set_at == before


def test_who_waits_too_long_for_another_change_is_told(
    project: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find(project.path)
    state = found.local_state
    assert state is not None
    folder = state / ".pulumi/locks/organization" / found.name / STACK
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "somebody.json"
    lock.write_text(
        '{"pid": 1, "username": "ada", "hostname": "elsewhere", "timestamp": "2026-01-01T00:00:00Z"}'
    )
    monkeypatch.setattr(recovery, "PATIENCE_S", 0.0)
    try:
        with pytest.raises(StackLocked) as caught:
            SecretStore(found).set("x", "value", lambda _: None)
    finally:
        lock.unlink()
    assert caught.value.summary == "the secrets of this project are being changed by somebody else"
    assert "ada@elsewhere" in (caught.value.where or "")


def test_validate_warns_of_a_secret_that_is_not_set(project: Folder, tmp_path: Path) -> None:
    text = (
        "type: task\nname: tt\nimage: x\nenv: {A: '${{ secrets.hf_tokn }}', B: '${{ secrets.hf_token }}'}\n"
    )
    project.write("train.yml", text)
    said = project.orch("validate", "train.yml")
    assert (said.code, said.out) == (0, "1 valid document, 1 warning\n")
    assert "train.yml:4:10: warning ORCH172: secret 'hf_tokn' is not set" in said.err
    # A checkout without the project's state knows of no secrets.
    (tmp_path / "train.yml").write_text(text)
    assert Folder(tmp_path).orch("validate", "train.yml").out == "1 valid document\n"
    assert not (tmp_path / ".orch").exists()


def test_no_fleet_can_have_the_name_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "fleet.yml").write_text(f"type: fleet\nname: {STACK}\nnodes: 1\n")
    said = Folder(tmp_path).orch("validate", "fleet.yml")
    assert (said.code, "ORCH115" in said.err) == (3, True)


def test_the_store_goes_with_no_verb_on_fleets(project: Folder) -> None:
    listed = project.orch("secret", "list").out
    for words in (("down", STACK, "--yes"), ("fleet", "delete", STACK, "--yes")):
        said = project.orch(*words)
        assert (said.code, "not up" in said.err) == (3, True), said.err
    assert project.orch("secret", "list").out == listed != ""
