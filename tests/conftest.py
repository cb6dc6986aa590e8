"""Fixtures that several suites share."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from kit.engine import transit
from kit.engine.forkserver import interpreter
from kit.ledgers import postgres as servers
from kit.ledgers import postgres_ledgers, statements
from kit.memoryfolder import use_memory
from kit.nodes.hostlab import Room, server_room
from kit.support import ROOT, Folder

from orch.stacks.engine.install import require

pytest_plugins = ("kit.workers",)

# A fourth of what a short call of the engine or of `docker` takes is Go's search for garbage.
os.environ |= {"GOGC": "off", "GOMEMLIMIT": "512MiB"}
use_memory()
transit.use()
statements.share()
if postgres_ledgers.chosen():
    postgres_ledgers.use()

# How long an example takes on a machine that does other things as well says nothing.
settings.register_profile("tests", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty project."""
    (tmp_path / "orch.yml").write_text("project: tests\n")
    return Folder(tmp_path)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Postgres]:
    """A server of PostgreSQL, which the processes of a session share."""
    if servers.binaries() is None:
        pytest.skip("there is no PostgreSQL server here: `make set-up-test` installs one")
    base = tmp_path_factory.getbasetemp()
    with servers.server(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) as server:
        yield server


@pytest.fixture(scope="session", autouse=postgres_ledgers.chosen())
def ledgers_on_postgres(postgres: servers.Postgres) -> Iterator[None]:
    """The database that has the ledgers of all tests, where they are on PostgreSQL."""
    with postgres.database() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv(postgres_ledgers.SERVER, url)
        yield


@pytest.fixture(params=["postgresql"] if postgres_ledgers.chosen() else ["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new ledger, of each kind of database in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'deep/er/ledger.db'}"
        return
    if postgres_ledgers.chosen():
        yield postgres_ledgers.url_of(tmp_path / "ledger.db")
        return
    server: servers.Postgres = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


@pytest.fixture(scope="session")
def engine() -> None:
    """For tests that start the engine: it is there, and they are not `quick`."""
    require()


@pytest.fixture(scope="module")
def passphrase() -> Iterator[None]:
    """Stacks that are made here have a passphrase, as users' have who name no secrets provider."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(transit.URL, "")
        yield


@pytest.fixture(scope="module")
def forked_providers() -> Iterator[None]:
    """Engines that this process starts have their providers forked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", interpreter())
        yield


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """The quickstart's files in a folder of their own, its fleet up for the whole session."""
    path = tmp_path_factory.mktemp("quickstart")
    shutil.copytree(ROOT / "examples" / "quickstart", path, dirs_exist_ok=True)
    project = Folder(path)
    said = project.orch("up", "fleet.yml", "--yes", env={transit.URL: ""}, timeout=600)
    assert said.code == 0, said.err
    yield project
    said = project.orch("down", "fleet.yml", "--yes")
    assert said.code == 0, said.err


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """Four servers and a jump host, for the whole session: who breaks one mends it."""
    room = server_room(tmp_path_factory.mktemp("room"))
    try:
        yield room
    finally:
        room.lab.remove()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if postgres_ledgers.chosen() and item.get_closest_marker("sqlite"):
            item.add_marker(pytest.mark.skip(reason="it is about SQLite's own file"))
