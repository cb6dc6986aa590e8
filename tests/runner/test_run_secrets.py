"""Secrets of a run: in the job's environment, in nobody's files, and as they are when containers start."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from kit.nodes.foldernodes import FolderLab, FolderRuntime
from sqlalchemy import select

from orch.runner.errors import RunFailed
from orch.runner.events import LogLine, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger import schema
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import RunRow
from orch.runner.node.registry import RegistryLogin, is_refusal, registry_of
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.runs.run_secrets import filled_login, names_in, runs_that_need
from orch.spec.confidential import MASK, hidden, remember
from orch.spec.models import Task
from orch.spec.state import FleetState

VALUE = "s3cret-'\"$x ${{ secrets.other }}\nsecond line"


class Store:
    """A store of secrets that counts how often it is asked."""

    def __init__(self, **values: str) -> None:
        self.secrets = values
        self.asked: list[frozenset[str]] = []

    def values(self, names: Collection[str]) -> Mapping[str, str]:
        self.asked.append(frozenset(names))
        if missing := set(names) - set(self.secrets):
            raise RunFailed(f"not set: {missing}")
        return {name: self.secrets[name] for name in names}


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[FolderLab]:
    (tmp_path / "boxes").mkdir()
    lab = FolderLab(tmp_path / "boxes")
    yield lab
    lab.end()


@pytest.fixture
def store() -> Store:
    return Store(token=VALUE, host="of the host")


@pytest.fixture
def place(tmp_path: Path, boxes: FolderLab, store: Store, ledger_url: str) -> Iterator[RunnerContext]:
    ledger = open_ledger(ledger_url)
    runtimes = {**RUNTIMES, "folder": FolderRuntime()}
    yield RunnerContext(tmp_path / ".orch", ledger, boxes.connector, Recorder(), runtimes, store.values)
    ledger.close()


def submitted(place: RunnerContext, fleet: FleetState, base: Path, **task: object) -> RunRow:
    given = Task.model_validate({"name": "job", "nodes": 2, "shell": "sh", **task})
    return lifecycle.submit(
        place, Submission(given, fleet, image="none", base=base, cli_env={"CLI": "${{ secrets.token }}"})
    )


def lines(place: RunnerContext, rank: int) -> list[str]:
    assert isinstance(place.processor, Recorder)
    told = [event for event in place.processor.events if isinstance(event, LogLine)]
    return [line.text for line in told if line.rank == rank]


def with_env(fleet: FleetState) -> FleetState:
    """The fleet with variables of its own and of its hosts, which refer to secrets and to ranks."""
    nodes = tuple(node.model_copy(update={"env": {"HOST": "${{ secrets.host }}"}}) for node in fleet.nodes)
    env = {"FLEET": "<${{ secrets.token }}>", "RANK": "r${{ orch.node_rank }}", "PLAIN": "5$$"}
    return fleet.model_copy(update={"env": env, "nodes": nodes})


def test_secrets_reach_the_job_by_every_way_and_lie_in_no_file_here(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path
) -> None:
    said = 'printf "%s|" "$TOKEN" "$FLEET" "$HOST" "$RANK" "$PLAIN" "$LITERAL" "$CLI" | tr "\\n" ";"; echo'
    env = {"TOKEN": "${{ secrets.token }}", "LITERAL": "$${{ secrets.token }}"}
    row = submitted(place, with_env(boxes.fleet()), tmp_path, commands=[said], env=env)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [
        path for path, content in files.items() if b"s3cret" in content or b"second line" in content
    ] == []
    folder = place.context(row).folder
    assert folder.environments()[1]["TOKEN"] == "${{ secrets.token }}"
    ended = lifecycle.drive(place, row)
    assert ended.status == "done", (ended.message, lines(place, 0))
    flat = VALUE.replace("\n", ";")
    for rank in (0, 1):
        wanted = [flat, f"<{flat}>", "of the host", f"r{rank}", "5$$"]
        wanted += ["${{ secrets.token }}", "${{ secrets.token }}"]
        assert lines(place, rank) == ["|".join(wanted) + "|"]
    assert not (folder.path / "environment.json").exists()
    with place.ledger._begin() as database:
        for table in schema.metadata.sorted_tables:
            assert "s3cret" not in repr(database.execute(select(table)).fetchall())


def test_a_driver_that_takes_over_takes_the_secret_as_it_is_then(
    place: RunnerContext, boxes: FolderLab, store: Store, tmp_path: Path
) -> None:
    row = submitted(
        place, boxes.fleet(), tmp_path, commands=['echo "$TOKEN"'], env={"TOKEN": "${{ secrets.token }}"}
    )
    rotated = Store(token="another")
    taking_over = replace(place, secrets=rotated.values)
    needed = [each.name for each in runs_that_need(place.dot, place.ledger, "token")]
    assert (needed, runs_that_need(place.dot, place.ledger, "host")) == (["job"], ())
    assert lifecycle.drive(taking_over, row).status == "done"
    assert runs_that_need(place.dot, place.ledger, "token") == ()
    assert lines(place, 0) == ["another"]
    assert (store.asked, rotated.asked) == ([frozenset({"token"})], [frozenset({"token"})])


def test_a_secret_that_is_not_set_is_told_before_anything_is_submitted(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path
) -> None:
    fleet = with_env(boxes.fleet())
    for env in ({"A": "${{ secrets.gone }}"}, {"A": "${{ secrets.token }} ${{ secrets.gone }}"}):
        with pytest.raises(RunFailed, match="gone"):
            submitted(place, fleet, tmp_path, commands=["true"], env=env)
    auth = {"username": "me", "password": "${{ secrets.gone }}"}
    with pytest.raises(RunFailed, match="gone"):
        submitted(place, fleet, tmp_path, commands=["true"], image="r.example/i", registry_auth=auth)
    assert place.ledger.runs() == ()
    assert not (tmp_path / ".orch" / "runs").exists()


def test_a_secret_that_goes_before_the_start_fails_the_run_and_not_the_driver(
    place: RunnerContext, boxes: FolderLab, store: Store, tmp_path: Path
) -> None:
    row = submitted(place, boxes.fleet(), tmp_path, commands=["true"], env={"TOKEN": "${{ secrets.token }}"})
    store.secrets.clear()
    ended = lifecycle.drive(place, row)
    assert (ended.status, ended.message) == ("failed", "not set: {'token'} (and 1 more)")
    assert [str(path) for name in ("runs", "claims") for path in boxes.path.glob(f"*/{name}/*")] == []


def test_a_run_without_secrets_asks_for_none(
    place: RunnerContext, boxes: FolderLab, store: Store, tmp_path: Path
) -> None:
    row = submitted(place, boxes.fleet(), tmp_path, commands=["true"], env={"A": "$${{ secrets.token }}"})
    assert lifecycle.drive(place, row).status == "done"
    assert not any(store.asked)


def test_variables_go_from_here_when_somebody_else_has_ended_the_run(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path
) -> None:
    row = submitted(place, boxes.fleet(), tmp_path, commands=["true"], env={"A": "value of a variable"})
    elsewhere = replace(place, dot=tmp_path / "elsewhere")
    lifecycle.stop(elsewhere, row, abort=True)
    kept = place.context(row).folder.path / "environment.json"
    assert kept.exists()
    lifecycle.reconcile_once(place)
    assert not kept.exists()


def test_the_log_in_waits_in_the_folder_as_it_is_written(
    place: RunnerContext, boxes: FolderLab, store: Store, tmp_path: Path
) -> None:
    auth = {"username": "$oauthtoken", "password": "<${{ secrets.token }}>"}
    row = submitted(
        place, boxes.fleet(), tmp_path, commands=["true"], image="nvcr.io/a/b", registry_auth=auth
    )
    folder = place.context(row).folder
    assert (folder.path / "registry.json").stat().st_mode & 0o777 == 0o600
    assert "s3cret" not in (folder.path / "registry.json").read_text()
    login = filled_login(folder, "nvcr.io/a/b", store.values)
    assert login == RegistryLogin("nvcr.io", "$oauthtoken", f"<{VALUE}>", "$oauthtoken")
    assert "s3cret" not in repr(login)
    assert lifecycle.drive(place, row).status == "done"
    assert not (folder.path / "registry.json").exists()


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("ubuntu", "docker.io"),
        ("library/ubuntu:22.04", "docker.io"),
        ("index.docker.io/a/b", "docker.io"),
        ("nvcr.io/nvidia/pytorch:24.01-py3", "nvcr.io"),
        ("localhost/a", "localhost"),
        ("127.0.0.1:5000/team/app@sha256:0123", "127.0.0.1:5000"),
        ("me/app:1.0", "docker.io"),
    ],
)
def test_an_image_tells_its_registry(image: str, registry: str) -> None:
    assert registry_of(image) == registry


def test_what_docker_says_of_a_wrong_password_is_a_refusal_and_of_a_wrong_name_is_none() -> None:
    assert is_refusal("Error response from daemon: Get https://r/v2/: unauthorized: authentication required")
    assert is_refusal('Head "http://127.0.0.1:5000/v2/a/manifests/1": no basic auth credentials')
    assert is_refusal("pull access denied for x/y, repository does not exist or may require 'docker login'")
    assert not is_refusal("manifest for 127.0.0.1:5000/a:1 not found: manifest unknown: manifest unknown")
    assert not is_refusal("dial tcp 127.0.0.1:5000: connect: connection refused")


def test_values_that_were_decrypted_are_masked_in_all_their_forms() -> None:
    value = "pass'\"w\\ord-7f3a"
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nshort\n-----END KEY-----\n"
    remember([value, pem, "tiny"])
    for shown in (value, repr(value), json.dumps({"a": value}), f"at {value!r}: {json.dumps(repr(value))}"):
        assert "w\\\\ord" not in hidden(shown)
        assert "7f3a" not in hidden(shown), shown
    assert hidden("line 2: MIIEvQIBADANBgkqhkiG9w0BAQEFAASC!") == f"line 2: {MASK}!"
    assert hidden("tiny and short") == "tiny and short"


def test_a_secret_that_a_group_alone_names_is_known_before_anything_is_submitted() -> None:
    groups = [{"nodes": 1, "commands": ["true"], "env": {"A": "${{ secrets.first }}"}}]
    groups += [{"nodes": 1, "commands": ["true"], "env": {"B": "${{ secrets.second }}"}}]
    task = Task.model_validate({"name": "job", "image": "i", "groups": groups})
    fleet = FleetState(name="lab", stack="lab", backend="local")
    assert names_in(task, fleet) == {"first", "second"}
