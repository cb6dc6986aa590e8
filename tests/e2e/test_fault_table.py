"""What runs survive, at random moments: each fault many times on two servers of one fleet, or on spot
nodes of a rehearsal that each run makes, and a table of it.

`make soak ARGS="-n0 -s -k fault_table"` prints the table. ORCHCTL_TEST_TRIALS sets how often each fault is
thrown, ORCHCTL_TEST_SEED repeats the moments of an earlier call. A test of the suite shows each of them once,
at a moment of its own: `tests/runner/test_faults.py`, `test_detached.py`, `test_controller.py`, and for spot
nodes `tests/e2e/test_interruption.py` and `test_aws_kills.py`.

What became of a trial is looked up past orch: the ledger by SQL, the servers by `docker ps` and by what lies
in `/var/lib/orch`, starts in a file to which each rank appends a line before anything else. A run that nobody
drives any more, as after a kill, is gone on with by `orch reconcile`, as cron has it.

MONEY is how often something was billed after a trial that no run has: what the simulated account and Docker
list, and what orch's own books say (`node_life`, `orch cost`, `orch gc`).
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest
from kit.clouds.rehearsals import Rehearsed
from kit.clouds.spotfleet import SHARED, spot_fleet
from kit.ledgers import postgres as servers
from kit.nodes.hostlab import Client, HostLab
from kit.nodes.labmachine import docker, wait_until
from kit.nodes.labserver import Server
from kit.nodes.stocked import stocked
from kit.support import Folder, Said, at_work, kill

from orch.images import volume_folders
from orch.rehearsal.__main__ import main as rehearsal
from orch.rehearsal.nodes.names import scope
from orch.stacks.project.project import find, scope_of

TRIALS = int(os.environ.get("ORCHCTL_TEST_TRIALS", "20"))
SEED = os.environ.get("ORCHCTL_TEST_SEED") or secrets.token_hex(4)
PATIENCE_S = 600.0
DROP_S, PAUSE_S = 30.0, 60.0
QUIET = subprocess.DEVNULL

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

TASK = """\
type: task
nodes: 2
image: orch/mpi
stop_duration: 3
volumes: ['/srv/began:/began']
commands:
- echo $ORCH_RUN_NAME $ORCH_ATTEMPT $NODE_RANK >> /began/ranks
- sleep {seconds}
"""
FLEET = """\
type: fleet
name: pair
placement: cluster
ssh_config:
  hosts: [one, two]
"""
SPOT_TASK = """\
type: task
nodes: 2
image: orch/mpi
stop_duration: 3
signal: USR1@10
retry: {{on_events: [interruption], duration: 1h}}
volumes: ['{shared}:/began']
commands:
- echo $ORCH_RUN_NAME $ORCH_ATTEMPT $NODE_RANK >> /began/ranks
- sleep {seconds}
"""
SPOT_S = 10
"""How long its ranks work."""
ENDED = ("done", "failed", "terminated")
REST = """\
SELECT rank FROM rank JOIN run ON run.id = run_id WHERE name = ? AND collected = 0
AND node NOT IN (SELECT node FROM node_life GROUP BY node HAVING count(*) = count(ended_at))
"""
"""Ranks that are to be removed from nodes that are there."""
LEFT = "docker ps -aq; cd /var/lib/orch && ls runs control claims | grep -v -e : -e '^$'; true"


@dataclass
class Site:
    """The fleet, and what holds the runs' ledger: a file of the project, or a server of PostgreSQL."""

    project: Folder
    servers: tuple[Server, ...] = ()
    submit_s: float = 0.0
    run_s: float = 0.0
    postgres: servers.OwnServer | None = None

    @property
    def ledger(self) -> Path:
        return self.project.path / ".orch/ledger.db"

    @property
    def nodes_called(self) -> str:
        """A pattern of the names of containers that would be nodes which the project made."""
        return f"^orch-.*-{scope_of(find(self.project.path))}"

    def orch(self, *words: str) -> Said:
        return self.project.orch(*words)

    def query(self, text: str, *values: str) -> list[tuple[object, ...]]:
        if self.postgres is not None:
            with psycopg.connect(self.postgres.url("postgres")) as database:
                return database.execute(text.replace("?", "%s").encode(), values).fetchall()
        with sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True, timeout=60) as database:
            return database.execute(text, values).fetchall()

    def status(self, name: str) -> str | None:
        """Of a run in the ledger; None when it is not there, or no more of it than its name."""
        found = self.query("SELECT status FROM run WHERE name = ? AND status != 'reserved'", name)
        assert len(found) <= 1, f"{name} was submitted twice"
        return str(found[0][0]) if found else None

    def known(self, name: str) -> bool:
        """Whether the ledger has anything of a run, its name alone too."""
        try:
            return bool(self.query("SELECT status FROM run WHERE name = ?", name))
        except (psycopg.Error, sqlite3.Error):  # its tables are being made
            return False

    def settle(self, name: str) -> str | None:
        """What became of a run: passes over it until it has ended, and nothing of it is on the nodes."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            self.orch("reconcile")
            status = self.status(name)
            rest = self.query(REST, name)
            if status is None or (status in ENDED and not rest):
                return status
            time.sleep(0.5)
        return self.status(name)

    def begun(self, name: str) -> Counter[str]:
        """How often each rank of each attempt began."""
        lines = (line for text in self.started() for line in text.splitlines())
        return Counter(line for line in lines if line.split()[0] == name)

    def started(self) -> list[str]:
        """What ranks have written when they began."""
        return [server.run("cat /srv/began/ranks", check=False) for server in self.servers]

    def left(self) -> list[str]:
        """Containers, claims and stages on the servers, and processes here."""
        found = [f"{server.name}: {line}" for server in self.servers for line in server.run(LEFT).split()]
        here = set(at_work(self.project.path, "orch")) - set(at_work(self.project.path, "orch", "controller"))
        return found + [f"process {pid}" for pid in here]

    def billed(self) -> list[str]:
        """What costs money though all runs have ended, by others' lists and by orch's books."""
        found = docker("ps", "-a", "--filter", f"name={self.nodes_called}", "--format", "{{.Names}}").split()
        found += [
            f"node_life: {node}"
            for (node,) in self.query(
                "SELECT node FROM node_life WHERE ended_at IS NULL AND price_hourly > 0"
            )
        ]
        cost, gc = self.orch("cost", "--json"), self.orch("gc", "--json")
        assert cost.code == 0, cost.err
        assert gc.code in (0, 2), gc.err  # 2: something is left
        hourly = cost.json["forecast"]["hourly"]
        found += [f"orch cost: {hourly} an hour"] if hourly else []
        kinds = ("orphans", "unknown", "data", "held", "unsure")
        return found + [f"orch gc: {row['id']}" for kind in kinds for row in gc.json[kind]]


@dataclass
class SpotSite(Site):
    """A rehearsed fleet whose spot nodes each run makes for itself. They end when it has ended."""

    there: Rehearsed = field(kw_only=True)

    @property
    def ledger(self) -> Path:
        return self.project.path / ".orch/rehearsal/ledger.db"

    @property
    def nodes_called(self) -> str:
        return f"^orch-sim-{scope(self.there.cloud)}-"

    def orch(self, *words: str) -> Said:
        return self.project.orch(*words, "--rehearse")

    def settle(self, name: str) -> str | None:
        """Until the nodes have ended, too."""
        end = super().settle(name)
        last = time.monotonic() + PATIENCE_S
        while self.there.cloud.instances() and time.monotonic() < last:
            self.orch("reconcile")
            time.sleep(0.5)
        return end

    def started(self) -> list[str]:
        volume, file = volume_folders.DOCKER_VOLUME, f"/all/orch-sim-{scope(self.there.cloud)}-*/ranks"
        if docker("volume", "inspect", volume, check=False) in ("", "[]"):
            return []  # nothing of any node is there
        look = ("run", "--rm", "--volume", f"{volume}:/all", "--entrypoint", "sh", stocked("mpi"))
        return [docker(*look, "-c", f"cat {file}", check=False)]

    def billed(self) -> list[str]:
        unrecorded = self.there.unrecorded("lab")
        return [*self.there.cloud.instances(), *unrecorded, *super().billed()]


@contextmanager
def _as_it_is(site: Site) -> Iterator[Site]:
    yield site


@dataclass(frozen=True)
class Fault:
    """`trial` submits a run by a name and has the fault happen to it. `ends`: None where it is not there."""

    name: str
    trial: Callable[[Site, random.Random, str], None]
    ends: frozenset[str | None]
    site: Callable[[Site], AbstractContextManager[Site]] = _as_it_is


@dataclass
class Row:
    """A line of the table."""

    fault: str
    trials: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    lost: int = 0
    left: int = 0
    twice: int = 0
    money: int = 0
    wrong: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()))
        wrong = f"{self.lost:>5} {self.left:>5} {self.twice:>6} {self.money:>6}"
        return f"{self.fault:<30} {self.trials:>6} {wrong}   {ends}"


HEAD = f"{'FAULT':<30} {'TRIALS':>6} {'LOST':>5} {'LEFT':>5} {'TWICE':>6} {'MONEY':>6}   ENDS"


@contextmanager
def controlled(site: Site) -> Iterator[Site]:
    """Two controllers, all the time."""
    loops = [site.project.start("controller") for _ in range(2)]
    try:
        yield site
    finally:
        for loop in loops:
            loop.terminate()
        for loop in loops:
            loop.communicate(timeout=120)


@contextmanager
def small_disk(site: Site) -> Iterator[Site]:
    """What orch has on the servers lies on disks of their own, of 16 MiB."""
    kept, own = "/srv/kept", "/var/lib/orch"
    small = (
        f"cp -a {own} {kept} && mount -t tmpfs -o size=16m orch {own} && cp -a {kept}/. {own} && rm -r {kept}"
    )
    for server in site.servers:
        server.run(small)
    try:
        yield site
    finally:
        for server in site.servers:
            server.run(f"umount {own}")


@contextmanager
def on_postgres(site: Site) -> Iterator[Site]:
    settings = site.project.path / "orch.yml"
    kept = settings.read_text()
    with servers.own_server() as own:
        settings.write_text(f"{kept}ledger: {own.url('postgres')}\n")
        try:
            yield replace(site, postgres=own)
        finally:
            settings.write_text(kept)


@contextmanager
def rehearsed(site: Site) -> Iterator[Site]:
    """A fleet of its own: spot nodes of a rehearsed account, which runs make."""
    folder = Path(tempfile.mkdtemp(prefix="rehearsed-", dir=site.project.path.parent))
    there, _ = spot_fleet(folder)
    there.write("job.yml", SPOT_TASK.format(shared=SHARED, seconds=SPOT_S))
    said = there.up("lab.yml")
    try:
        assert said.code == 0, said.err
        yield SpotSite(Folder(folder), there=there)
    finally:
        said = there.down("lab")
    assert said.code == 0, said.err
    assert there.cloud.everything() == {}


def any_moment(
    site: Site, rng: random.Random, name: str, process: subprocess.Popen[str], span_s: float
) -> None:
    """Wait for any moment of a span. It begins with the process or, as often, with the run's first trace in
    the ledger: how long a process takes until then says little on a machine that does other things as well.
    """
    if rng.random() < 0.5:
        wait_until(lambda: process.poll() is not None or site.known(name), f"{name} is known", PATIENCE_S)
    with suppress(subprocess.TimeoutExpired):
        process.wait(rng.uniform(0, span_s))


def submit(site: Site, name: str, *words: str, task: str = "job.yml") -> subprocess.Popen[str]:
    return site.project.start("run", task, "--name", name, *words)


def end_of(process: subprocess.Popen[str]) -> None:
    try:
        process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


def timed(process: subprocess.Popen[str]) -> float:
    """Seconds of a command that must succeed."""
    began = time.monotonic()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return time.monotonic() - began


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def killed_in_submit(site: Site, rng: random.Random, name: str) -> None:
    process = submit(site, name, "--detach")
    any_moment(site, rng, name, process, site.submit_s)
    killed(process)


def killed_in_run(site: Site, rng: random.Random, name: str) -> None:
    process = submit(site, name)
    any_moment(site, rng, name, process, site.run_s)
    killed(process)


def killed_in_stop(site: Site, rng: random.Random, name: str) -> None:
    end_of(submit(site, name, "--detach", task="long.yml"))
    time.sleep(rng.uniform(0, site.run_s - site.submit_s))
    process = site.project.start("stop", name)
    with suppress(subprocess.TimeoutExpired):
        process.wait(rng.uniform(0, site.run_s))
    killed(process)
    if rng.random() < 0.5:  # and who drives it
        kill(*at_work(site.project.path, "orch", "run", name))
    # The kill may have come before the wish was written down.
    assert site.project.orch("stop", name).code == 0


def during(fault: Callable[[Site, random.Random], None]) -> Callable[[Site, random.Random, str], None]:
    """A run that is followed to its end, and a fault at any moment of it."""

    def trial(site: Site, rng: random.Random, name: str) -> None:
        process = submit(site, name)
        any_moment(site, rng, name, process, site.run_s)
        fault(site, rng)
        end_of(process)

    return trial


def ssh_dropped(site: Site, rng: random.Random) -> None:
    server, rule = rng.choice(site.servers), "INPUT -p tcp --dport 22 -j DROP"
    server.run(f"iptables -I {rule}")
    time.sleep(DROP_S)
    server.run(f"iptables -D {rule}")


def node_killed(site: Site, rng: random.Random) -> None:
    server = rng.choice(site.servers)
    docker("kill", server.container)
    time.sleep(rng.uniform(0, 10))
    docker("start", server.container)
    wait_until(server.ssh_answers, f"sshd of {server.name} answers")
    wait_until(server.docker_answers, f"Docker of {server.name} answers")


def node_paused(site: Site, rng: random.Random) -> None:
    with rng.choice(site.servers).frozen():
        time.sleep(PAUSE_S)


def docker_restarted(site: Site, rng: random.Random) -> None:
    with rng.choice(site.servers).docker_stopped():
        time.sleep(rng.uniform(0, 3))


def disk_full(site: Site, rng: random.Random, name: str) -> None:
    """A run to its end on a disk that gets full, and stays so until then."""
    process, server = submit(site, name), rng.choice(site.servers)
    any_moment(site, rng, name, process, site.run_s)
    server.run("dd if=/dev/zero of=/var/lib/orch/filler bs=4k", check=False)
    end_of(process)
    server.run("rm /var/lib/orch/filler")


def two_controllers(site: Site, rng: random.Random, name: str) -> None:
    """The driver behind a run is killed; two others are there to go on."""
    end_of(submit(site, name, "--detach"))
    time.sleep(rng.uniform(0, site.run_s - site.submit_s))
    kill(*at_work(site.project.path, "orch", "run", name))
    wait_until(lambda: site.status(name) in ENDED, f"a controller ends {name}", PATIENCE_S)


def postgres_restarted(site: Site, rng: random.Random, name: str) -> None:
    assert site.postgres is not None
    ended_by = rng.choice((signal.SIGINT, signal.SIGQUIT))
    with ExitStack() as stack:
        stack.enter_context(site.postgres.running(ended_by, QUIET))
        process = submit(site, name)
        any_moment(site, rng, name, process, site.run_s)
        stack.close()
        time.sleep(rng.uniform(0, 5))
        stack.enter_context(site.postgres.running(output=QUIET))
        end_of(process)


def spot_notice(site: Site, rng: random.Random, name: str) -> None:
    """A node is told that it goes, and goes: as soon as it is there, in the middle of its work, or near the
    end of it."""
    assert isinstance(site, SpotSite)
    account, process = site.there.cloud, submit(site, name, "--yes", "--rehearse")
    moment = rng.choice(("before the start", "in the middle", "near the end"))

    def come() -> bool:
        begun = account.endpoints() if moment == "before the start" else site.begun(name)
        return process.poll() is not None or len(begun) >= 2

    wait_until(come, f"{name} has nodes", PATIENCE_S)
    half = SPOT_S / 2
    spans = {"before the start": (0, 5), "in the middle": (0, half), "near the end": (half, SPOT_S)}
    with suppress(subprocess.TimeoutExpired):
        process.wait(rng.uniform(*spans[moment]))
    nodes = sorted(account.endpoints())
    if nodes:
        ahead = rng.uniform(0, 10)
        interrupt = (str(site.there.account_file), "interrupt", rng.choice(nodes), "--in", f"{ahead:.1f}")
        assert rehearsal(list(interrupt)) == 0
    end_of(process)


def killed_making_nodes(site: Site, rng: random.Random, name: str) -> None:
    """At any moment, or from when the first of its nodes is there."""
    assert isinstance(site, SpotSite)
    account, process = site.there.cloud, submit(site, name, "--yes", "--rehearse")
    if rng.random() < 0.5:
        made = f"{name} has a node"
        wait_until(lambda: process.poll() is not None or account.instances(), made, PATIENCE_S)
    with suppress(subprocess.TimeoutExpired):
        process.wait(rng.uniform(0, SPOT_S))
    killed(process)


DONE, FAILED, STOPPED, NEVER = "done", "failed", "terminated", None
FAULTS = (
    Fault("CLI killed -9 in submit", killed_in_submit, frozenset({DONE, NEVER})),
    Fault("CLI killed -9 in run", killed_in_run, frozenset({DONE, NEVER})),
    Fault("CLI killed -9 in stop", killed_in_stop, frozenset({STOPPED})),
    Fault("ssh dropped for 30 s", during(ssh_dropped), frozenset({DONE, FAILED, NEVER})),
    Fault("node killed", during(node_killed), frozenset({DONE, FAILED, NEVER})),
    Fault("node paused for 60 s", during(node_paused), frozenset({DONE, FAILED, NEVER})),
    Fault("Docker daemon restarted", during(docker_restarted), frozenset({DONE, FAILED, NEVER})),
    Fault("disk full", disk_full, frozenset({DONE, FAILED, NEVER}), small_disk),
    Fault("two controllers, driver killed", two_controllers, frozenset({DONE}), controlled),
    Fault("PostgreSQL restarted", postgres_restarted, frozenset({DONE, NEVER}), on_postgres),
    Fault("CLI killed -9 making nodes", killed_making_nodes, frozenset({DONE, NEVER}), rehearsed),
    Fault("spot notice, rehearsed node", spot_notice, frozenset({DONE}), rehearsed),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two servers as a fleet, with the image on them, and how long a run takes to which nothing happens."""
    lab = HostLab(tmp_path_factory.mktemp("lab"))
    try:
        network = lab.network()
        one, two = (lab.server(name, network, disk_gib=None) for name in ("one", "two"))
        home = tmp_path_factory.mktemp("home")
        lab.ssh_config(home, one, two)
        project = Client(tmp_path_factory.mktemp("project"), home)
        project.write("orch.yml", "project: faults\n")
        project.write("fleet.yml", FLEET)
        project.write("job.yml", TASK.format(seconds=2))
        project.write("long.yml", TASK.format(seconds=600))
        said = project.orch("up", "fleet.yml", "--yes")
        assert said.code == 0, said.err
        for server in (one, two):
            server.run("mkdir -p /srv/began")
        site = Site(project, (one, two))
        timed(submit(site, "image"))
        site.run_s, site.submit_s = timed(submit(site, "followed")), timed(submit(site, "behind", "--detach"))
        assert site.settle("behind") == DONE
        yield site
    finally:
        lab.remove()


@pytest.fixture(scope="module")
def table() -> Iterator[list[Row]]:
    rows: list[Row] = []
    yield rows
    print(f"\nseed {SEED}\n{HEAD}")
    for row in rows:
        print(row)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_no_run_is_lost_left_or_started_twice(fault: Fault, site: Site, table: list[Row]) -> None:
    row = Row(fault.name)
    table.append(row)
    print(f"\nseed {SEED}\n{HEAD}")
    with fault.site(site) as place:
        for number in range(TRIALS):
            judge(fault, place, number, row)
            print(row, flush=True)  # what was found so far, should the rest not be waited for
    assert row.wrong == [], f"seed {SEED}"


def judge(fault: Fault, site: Site, number: int, row: Row) -> None:
    name = f"{fault.name.lower().translate({ord(' '): '-', ord(','): None})}-{number}"
    fault.trial(site, random.Random(f"{SEED} {fault.name} {number}"), name)
    with ExitStack() as stack:
        if site.postgres is not None:
            stack.enter_context(site.postgres.running(output=QUIET))
        end = site.settle(name)
        billed = site.billed()
    begun, left = site.begun(name), site.left()
    twice = [line for line, count in begun.items() if count > 1]
    row.trials += 1
    row.ends[end or "not submitted"] += 1
    row.lost += end not in (*ENDED, None) or (end is None and bool(begun))
    row.left += bool(left)
    row.twice += bool(twice)
    row.money += bool(billed)
    wrong = [f"it is {end}"] if end not in fault.ends else []
    # Of the attempt that ended well; the ones before it were interrupted, perhaps before they began.
    last = max((line.split()[1] for line in begun), default="")
    whole = [line.split()[1] for line in begun].count(last) == 2
    wrong += ["it is done, and not all ranks began"] if end == DONE and not whole else []
    wrong += [f"left: {left}"] if left else []
    wrong += [f"twice: {twice}"] if twice else []
    wrong += [f"billed: {billed}"] if billed else []
    row.wrong += [f"{name}: {text}" for text in wrong]
