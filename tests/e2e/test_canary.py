"""Secrets go where they are needed and nowhere else: every verb is called, and all that is left is searched.

One project has a local fleet, a server, and a cloud fleet that is only previewed; each place where a secret
may be written holds a canary of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.canaries import Canary, Nest, Watch
from kit.nodes.containershell import inside
from kit.nodes.hostlab import Client, HostLab
from kit.nodes.labmachine import docker
from kit.nodes.registrylab import APP, registry
from kit.nodes.stocked import stocked
from kit.support import ORCH, Said, containers, until, verbs

pytestmark = pytest.mark.usefixtures("passphrase")

EXPORTED = ("fleet", "host", "task", "bare", "creds", "rotated", "bare_cli")
"""Canaries that the caller has in the environment; every process it starts inherits them."""

WRITTEN = ("literal", "cli", "init", "registry", "attached")
"""Canaries that are given otherwise: in a file, or as words."""

STORED = ("stored", "login")
"""Canaries that are set as secrets of the project, by standard input; files refer to them."""


@dataclass(frozen=True)
class Place:
    """The project, what was said in it, and what the processes of the machine showed meanwhile."""

    client: Client
    nest: Nest
    server: str
    said: dict[str, Said]
    watch: Watch
    during: dict[str, set[str]]

    @property
    def path(self) -> Path:
        return self.client.path


def variable(canary: Canary) -> str:
    return f"CANARY_{canary.name.upper()}"


def quoted(canary: Canary) -> str:
    """As YAML writes it."""
    return "'" + canary.value.replace("'", "''") + "'"


def files(nest: Nest) -> dict[str, str]:
    literal = quoted(nest["literal"])
    env = {name: f"${{{{ env.CANARY_{name.upper()} }}}}" for name in EXPORTED}
    stored, login = (f"'${{{{ secrets.{name} }}}}'" for name in STORED)
    local = "type: fleet\nname: nest\nbackend: local\nnodes: 1\nresources: {memory: 1GB}\n"
    checks = "".join(
        f'  - test "$(printf %s "${name}" | sha256sum | cut -c1-64)" = {digest(nest[of])}\n'
        for name, of in {"FLEET": "fleet", "LITERAL": "literal", "TASK": "task", "CLI": "cli"}.items()
    )
    checks += "".join(f"  - {is_stored(nest, name)}\n" for name in ("STORED", "STORED_TASK"))
    bare = f'  - test "$(printf %s "$CANARY_BARE" | sha256sum | cut -c1-64)" = {digest(nest["bare"])}\n'
    task = "type: task\nimage: orch/mpi\nresources: {cpu: 1, memory: 512MB}\n"
    given = f"env:\n  - TASK={env['task']}\n  - CANARY_BARE\n  - 'STORED_TASK=${{{{ secrets.stored }}}}'\n"
    private = task.replace("orch/mpi", APP) + "fleets: [nest]\ncommands: [echo pulled]\n"
    host = f"{{hostname: gpu9, env: {{HOST: '{env['host']}'}}}}"
    return {
        "orch.yml": f"project: canaries\nbackends:\n  - type: local\n    node_image: '{stocked('mpi')}'\n"
        "  - type: aws\n    regions: [us-east-1]\n"
        f"    creds: {{type: access_key, access_key: AKIACANARY, secret_key: '{env['creds']}'}}\n",
        "local.yml": f"{local}env:\n  FLEET: '{env['fleet']}'\n  LITERAL: {literal}\n  STORED: {stored}\n"
        f"init:\n  - run: |\n      {is_stored(nest, 'INIT')}\n    env: {{INIT: {stored}}}\n",
        "hosts.yml": f"type: fleet\nname: servers\nenv: {{FLEET: '{env['fleet']}'}}\nssh_config:\n"
        f"  hosts: [{host}]\n",
        "cloud.yml": "type: fleet\nname: cloud\nbackends: [aws]\nregions: [us-east-1]\n"
        f"instance_types: [p5.48xlarge]\nnodes: 1\nenv: {{FLEET: '{env['fleet']}'}}\n"
        f"init:\n  - run: pip install x\n    env: {{INIT: {quoted(nest['init'])}, STORED: {stored}}}\n",
        "job.yml": f"{task}name: job\nfleets: [nest]\n{given}commands:\n{checks}{bare}  - echo all arrived\n",
        "long.yml": f"{task}name: long\nfleets: [nest]\n{given}commands: [echo begun, sleep 600]\n",
        "fails.yml": f"{task}name: fails\nfleets: [nest]\n{given}commands: [exit 3]\n",
        "on-host.yml": f"{task}name: onhost\nfleets: [servers]\ncommands:\n"
        f'  - test "$(printf %s "$HOST" | sha256sum | cut -c1-64)" = {digest(nest["host"])}\n',
        "registry.yml": f"{private}name: registry\nregistry_auth:\n  username: team\n"
        f"  password: {quoted(nest['registry'])}\n",
        "private.yml": f"{private}name: private\nregistry_auth: {{username: team, password: {login}}}\n",
        "volume.yml": "type: volume\nname: kept\nbackend: local\nsize: 1GB\n",
        "wrong.yml": f"{local}env:\n  FLEET: '{env['fleet']}'\n  LITERAL: {literal}\nnods: 2\n",
        "more.yml": f"{local}env: {{LITERAL: {literal}}}\n".replace("memory: 1GB", "cpu: 4000"),
    }


def is_stored(nest: Nest, name: str) -> str:
    """Shell text that fails unless a variable is the secret `stored`."""
    return f'test "$(printf %s "${name}" | sha256sum | cut -c1-64)" = {digest(nest["stored"])}'


def digest(canary: Canary) -> str:
    return hashlib.sha256(canary.value.encode()).hexdigest()


VERBS: dict[str, tuple[str, ...]] = {
    "validate": ("validate", "local.yml", "hosts.yml", "job.yml"),
    "validate, wrong": ("validate", "wrong.yml"),
    "validate, as data": ("validate", "wrong.yml", "--format", "json"),
    "validate for strangers": ("validate", "local.yml", "wrong.yml", "--untrusted"),
    "preview for strangers": ("preview", "local.yml", "--untrusted", "--json"),
    "schema": ("schema",),
    "preview": ("preview", "local.yml"),
    "preview, wrong": ("preview", "wrong.yml", "--json"),
    "preview, too large": ("preview", "more.yml"),
    "preview of a cloud": ("preview", "cloud.yml", "--rehearse"),
    "preview of a cloud, as data": ("preview", "cloud.yml", "--rehearse", "--json"),
    "up": ("up", "local.yml", "--yes", "--json"),
    "up of hosts": ("up", "hosts.yml", "--yes"),
    "fleets": ("fleet",),
    "fleets, as data": ("fleet", "list", "--json"),
    "fleet": ("fleet", "show", "servers", "-v"),
    "fleet ids": ("fleet", "ids", "servers"),
    "apply": ("apply", "-f", "local.yml", "--yes"),
    "show": ("show", "nest", "--json"),
    "show of a run": ("show", "job"),
    "check": ("check", "hosts.yml", "--json"),
    "drift": ("drift", "servers", "--json"),
    "refresh": ("refresh", "nest", "--json"),
    "doctor": ("doctor", "--json"),
    "offers": ("offers", "cloud.yml", "--json"),
    "engine env": ("engine", "env"),
    "engine version": ("engine", "version"),
    "unlock": ("unlock", "nest", "--yes"),
    "runbooks": ("runbook", "list", "--json"),
    "runbook copied": ("runbook", "init", "broken-lock"),
    "runbook shown": ("runbook", "show", "cost-alarm"),
    "runbook planned": ("runbook", "plan", "bad-node", "fleet=nest", "node=nest-0", "--json"),
    "runbook of the past": ("runbook", "resume", "123456789", "--approve"),
    "runbook runs": ("runbook", "status", "--json"),
    "runbook": ("runbook", "run", "broken-lock", "fleet=nest", "--yes", "--json"),
    "lease": ("lease", "take", "nest", "--for", "8h", "--json"),
    "lease shown": ("lease", "show", "nest"),
    "lease given back": ("lease", "release", "nest"),
    "gc": ("gc", "--rehearse", "--yes", "--json"),
    "init": ("init",),
    "volume": ("up", "volume.yml", "--yes"),
    "volumes": ("volume", "list"),
    "volume in full": ("volume", "show", "kept", "--json"),
    "volumes that are due": ("volume", "gc", "--yes"),
    "volume of the past": ("volume", "delete", "kept", "--confirm", "kept"),
    "copy to a node": ("cp", "job.yml", "nest-0:/tmp/job.yml"),
    "copy of nothing": ("cp", "nest-0:/tmp/nothing", "."),
    "secret on a command line": ("secret", "set", "other", "@cli"),
    "secrets": ("secret", "list", "--json"),
    "secret of the past": ("secret", "delete", "other"),
    "run of a wrong login": ("run", "registry.yml"),
    "run of a private image": ("run", "private.yml"),
    "run": ("run", "job.yml", "--env", "CLI=@cli", "--env", "CANARY_BARE_CLI"),
    "run on a host": ("run", "on-host.yml", "--json"),
    "run that fails": ("run", "fails.yml", "-e", "CLI=@cli", "--json"),
    "run in the background": ("run", "long.yml", "--env", "CLI=@cli", "--detach"),
    "ps": ("ps",),
    "ps, as data": ("ps", "-a", "--json"),
    "cost": ("cost", "--by", "run", "--json"),
    "ps, wide": ("ps", "-a", "-o", "wide", "--fleet", "nest"),
    "reconcile": ("reconcile", "--json"),
    "controller": ("controller",),
    "exec": ("exec", "nest", "--json", "--", "uptime"),
    "metrics": ("metrics", "long", "--json"),
    "verify, while a run is on the nodes": ("verify", "nest", "--json"),
    "metrics served": ("metrics", "serve", "--listen", "127.0.0.1:0"),
    "metrics in a file": ("metrics", "textfile", "nest.prom"),
    "boards": ("metrics", "boards", "monitoring"),
    "exec that fails": ("exec", "nest", "--", "false"),
    "ssh": ("ssh", "gpu9", "--", "uptime"),
    "inventory": ("inventory", "--list"),
    "log": ("log", "--all", "--json"),
    "log of a change": ("log", "1"),
    "rotation of the SSH keys": ("rotate", "ssh-keys", "nest", "--yes", "--json"),
    "rotation of the passphrase": ("rotate", "passphrase", "--yes"),
    "repair of the state": ("state", "repair", "nest", "--yes", "--json"),
    "import of a state": ("state", "import", "cloud.yml", "--rehearse", "--json"),
    "move of the state": ("state", "move", "--to", "file://elsewhere", "--yes", "--json"),
    "health": ("health", "nest", "--json"),
    "health of the past": ("health", "--history"),
    "cordon": ("cordon", "gpu9", "--reason", "fan"),
    "drain": ("node", "drain", "gpu9", "--yes", "--json", "--report", "drain.md"),
    "drain that is taken back": ("node", "drain", "gpu9", "--undo"),
    "reboot that is only planned": ("node", "reboot", "gpu9", "--plan-only", "--json"),
    "replacement": ("node", "replace", "gpu9", "--yes"),
    "rollout": ("rollout", "hosts.yml", "--plan-only"),
    "evacuation of no zone": ("fleet", "evacuate", "nest", "--zone", "a", "--yes", "--json"),
    "reset of no GPU": ("node", "reset-gpu", "gpu9", "--yes", "--json"),
    "run without a key": ("run", "job.yml"),
    "stop": ("stop", "long", "--json"),
    "attach": ("attach", "long", "--json"),
    "logs": ("logs", "job"),
    "logs of none": ("logs", "nothing"),
    "preview of a change": ("preview", "hosts.yml"),
    "preview of a change, as data": ("preview", "hosts.yml", "--json"),
    "up after a change": ("up", "hosts.yml", "--yes", "--json"),
    "preview of a takeover after": ("preview", "hosts.yml", "--json"),
    "up of a takeover after": ("up", "hosts.yml", "--yes", "--json"),
    "preview when it is taken over after": ("preview", "hosts.yml", "--exit-code"),
    "down of hosts": ("down", "servers", "--yes", "--json"),
}
STEPS: tuple[tuple[str, ...], ...] = (
    (*list(VERBS)[:10], "doctor", "offers", "engine version"),
    ("preview of a cloud, as data", "up"),
    ("up of hosts", "run"),
    ("secret on a command line", "run of a wrong login"),
    ("volume", "copy to a node", "copy of nothing"),
    ("volumes", "volume in full", "volumes that are due", "lease"),
    ("secrets", "run of a private image", "lease shown"),
    ("secret of the past", "volume of the past", "lease given back"),
    ("fleets", "fleets, as data", "fleet", "fleet ids", "check", "drift", "refresh", "engine env", "unlock"),
    ("runbooks", "runbook shown", "runbook planned", "runbook of the past"),
    ("runbook copied",),
    ("runbook",),
    ("runbook runs",),
    ("init", "gc"),
    ("apply", "show of a run", "show", "ssh", "inventory"),
    ("run on a host", "run that fails"),
    ("run in the background",),
    (
        "ps",
        "ps, as data",
        "ps, wide",
        "cost",
        "exec",
        "exec that fails",
        "metrics",
        "verify, while a run is on the nodes",
        "run without a key",
        "logs",
        "logs of none",
    ),
    ("reconcile", "controller"),
    ("health", "health of the past"),
    ("metrics served", "metrics in a file", "boards"),
    ("drain", "reboot that is only planned"),
    ("drain that is taken back", "replacement"),
    ("reset of no GPU", "rollout", "evacuation of no zone"),
    ("cordon", "stop"),
    ("attach", "preview of a change"),
    ("preview of a change, as data",),
    ("up after a change",),
    ("log", "log of a change"),
    ("preview of a takeover after",),
    ("up of a takeover after",),
    ("preview when it is taken over after", "rotation of the SSH keys"),
    ("rotation of the passphrase",),
    ("repair of the state", "import of a state"),
    ("down of hosts",),
)
"""Verbs of one step are called two at a time; the first ones look at files alone."""

FAILING = {
    *(
        "validate for strangers",
        "preview for strangers",
        "validate, wrong",
        "validate, as data",
        "preview, wrong",
        "preview, too large",
        "run of a wrong login",
        "copy of nothing",
        "runbook",
        "runbook of the past",
    ),
    *("run that fails", "exec that fails", "run without a key", "logs of none"),
    "verify, while a run is on the nodes",
    *("replacement", "reset of no GPU", "evacuation of no zone", "import of a state"),
    "gc",  # a file with errors hides which backends it names
}
DEPENDING = {"doctor", "check", "offers"}
"""What they end with is the machine's matter."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """All verbs called in one project; then its fleets are removed."""
    path = tmp_path_factory.mktemp("canary")
    (path / "lab").mkdir()
    lab, nest = HostLab(path / "lab"), Nest(*EXPORTED, *WRITTEN, *STORED)
    try:
        server = lab.server("gpu9", lab.network())
        lab.ssh_config(path / "home", server)
        (path / "work").mkdir()
        client = Client(path / "work", path / "home")
        for name, text in files(nest).items():
            client.write(name, text)
        env = pytest.MonkeyPatch()
        for name in EXPORTED:
            env.setenv(variable(nest[name]), nest[name].value)
        place = Place(client, nest, server.container, {}, Watch(nest), {})
        try:
            with place.watch:
                call_all(place)
            yield place
        finally:
            last = client.orch("down", "local.yml", "--yes", "--json")
            env.undo()
        assert last.code == 0, last.err
        assert nest.in_bytes(f"{last.out}{last.err}".encode()) == set()
    finally:
        lab.remove()


def call_all(place: Place) -> None:
    with ExitStack() as open_registry:
        for name in STORED:
            set_secret(place, name)
        call_steps(place, open_registry)
    (node,) = containers(place.client, "nest")
    for name, container in (("node", node), ("server", place.server)):
        place.during[f"files of the {name}"] = left_on(place, container)
    call(place, "move of the state")


def set_secret(place: Place, name: str) -> None:
    value = place.nest[name].value.encode()
    command = [*ORCH, "secret", "set", name]
    done = subprocess.run(command, cwd=place.path, input=value, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    place.said[f"secret {name}"] = Said(done.returncode, done.stdout.decode(), done.stderr.decode())


def call_steps(place: Place, open_registry: ExitStack) -> None:
    for step in STEPS:
        if "run of a wrong login" in step:
            (node,) = containers(place.client, "nest")
            open_registry.enter_context(registry(node, "team", place.nest["login"].value))
        if "preview of a takeover after" in step:
            write_as_formerly(place)
        with ThreadPoolExecutor(2) as both:
            list(both.map(lambda what: call(place, what), step))
        if "run in the background" in step:
            until(lambda: "begun" in place.client.orch("logs", "long").out, 120, "the job has begun")
            place.during.update(inspected(place))


def call(place: Place, what: str) -> None:
    """Call a verb. The host's secret is another one since `preview of a change`."""
    nest = place.nest
    words = [nest["cli"].value.join(word.split("@cli")) for word in VERBS[what]]
    env = {"PULUMI_CONFIG_PASSPHRASE": "not it"} if what == "run without a key" else {}
    if "after" in what or "change" in what:
        env[variable(nest["host"])] = nest["rotated"].value
    if what == "controller":
        place.said[what] = controlled(place, words)
    elif what == "metrics served":
        place.said[what] = served(place, words)
    else:
        place.said[what] = place.client.orch(*words, env=env)


def controlled(place: Place, words: list[str]) -> Said:
    """A controller, which goes on until it is told to end."""
    with place.client.start(*words) as process:
        until(lambda: bool(place.client.orch("ps", "--json").json["controllers"]), 120, "it lives")
        process.terminate()
        out, err = process.communicate(timeout=120)
    return Said(process.returncode, out, err)


def served(place: Place, words: list[str]) -> Said:
    """A project that is scraped once; what it answers counts as told."""
    with place.client.start(*words) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        with urllib.request.urlopen(line.split()[-1]) as answer:
            told = answer.read().decode()
        assert 'orch_node_up{fleet="nest"' in told
        process.terminate()
        out, err = process.communicate(timeout=120)
    return Said(process.returncode, out + told, line + err)


def write_as_formerly(place: Place) -> None:
    """The state of the servers as the version before wrote it: variables in clear, also in a backup."""
    state = place.path / ".orch" / "state" / ".pulumi"
    checkpoint = state / "stacks" / "canaries" / "servers.json"
    recorded = json.loads(checkpoint.read_text())
    fleet, host = {"FLEET": place.nest["fleet"].value}, {"HOST": place.nest["rotated"].value}
    for resource in recorded["checkpoint"]["latest"]["resources"]:
        if resource["type"] == "pulumi:pulumi:Stack":
            found = resource["outputs"]
            assert place.nest.in_bytes(json.dumps(found).encode()) == set()
            del found["env"]
            found["orch"]["schema"] = found["fleet"]["schema_version"] = 1
            found["fleet"]["env"] = fleet
            found["fleet"]["nodes"][0]["env"] = host
        if resource["type"] == "orch:ssh:Host":
            resource["inputs"]["env"] = resource["outputs"]["env"] = {**fleet, **host}
    checkpoint.write_text(json.dumps(recorded))
    (state / "backups" / "canaries" / "servers" / "servers.1.json").write_text(json.dumps(recorded))
    assert place.nest.in_bytes(checkpoint.read_bytes()) == {"fleet", "rotated"}


def inspected(place: Place) -> dict[str, set[str]]:
    """What Docker tells of the node, and the node's Docker of the job that runs on it."""
    (node,) = containers(place.client, "nest")
    jobs = inside(node, "docker ps -aq").split()
    assert jobs
    return {
        "docker inspect of the node": place.nest.in_bytes(docker("inspect", node).encode()),
        "docker inspect of its jobs": place.nest.in_bytes(
            inside(node, f"docker inspect {' '.join(jobs)}").encode()
        ),
        "docker logs of the node": place.nest.in_bytes(docker("logs", node).encode()),
    }


def left_on(place: Place, container: str) -> set[str]:
    """Canaries in any file of a machine that has no job any more."""
    packed = subprocess.run(
        [
            "docker",
            "exec",
            container,
            "sh",
            "-c",
            "cd / && tar -cf - --one-file-system etc home root run tmp var",
        ],
        capture_output=True,
        check=False,
    ).stdout
    assert len(packed) > 100_000
    return place.nest.in_bytes(packed)


def called(verb: tuple[str, ...]) -> bool:
    return any(words[: len(verb)] == verb for words in VERBS.values())


@pytest.mark.timeout(900)
def test_all_verbs_did_what_they_are_for(place: Place) -> None:
    """Or what follows would prove nothing."""
    # `engine install` comes before any test, `offers refresh` asks a cloud; `plan` and `fleet delete` are
    # other names of what is called. Verbs of `ci` read orch.yml and what others wrote, and post to a forge.
    apart = {("engine", "install"), ("offers", "refresh"), ("plan",), ("fleet", "delete")}
    posts = ("init", "comment", "check", "drift-issue", "pull-request", "watched", "environment")
    apart |= {("ci", verb) for verb in posts}
    assert [each for each in verbs() if each not in apart and not called(each)] == []
    for what, said in place.said.items():
        assert what in DEPENDING or (said.code != 0) == (what in FAILING), (what, said)
    assert set(place.said) == {*VERBS, *(f"secret {name}" for name in STORED)}
    assert "all arrived" in place.said["run"].out
    assert "refuses the log-in of team" in place.said["run of a wrong login"].err
    assert "pulled" in place.said["run of a private image"].out


def test_no_verb_tells_a_secret(place: Place) -> None:
    told = {
        what: place.nest.in_bytes(f"{said.out}\n{said.err}".encode()) for what, said in place.said.items()
    }
    assert {what: names for what, names in told.items() if names} == {}


def test_a_rotated_secret_is_seen_to_change(place: Place) -> None:
    assert "env.HOST: another secret" in place.said["preview of a change"].out
    (change,) = (each for each in place.said["preview of a change, as data"].json["changes"] if each["diff"])
    assert (change["op"], change["name"]) == ("update", "gpu9")
    assert [(leaf["path"], leaf["old"], leaf["new"]) for leaf in change["diff"]] == [
        ("env.HOST", "(secret)", "(secret)")
    ]


def test_a_state_with_clear_text_is_taken_over_without_a_replacement(place: Place) -> None:
    for what in ("preview of a takeover after", "up of a takeover after"):
        changed = [each for each in place.said[what].json["changes"] if each["op"] != "same"]
        assert [(each["op"], each["name"]) for each in changed] == [("update", "gpu9")]
        leaves = {(leaf["path"], leaf["old"], leaf["new"]) for each in changed for leaf in each["diff"]}
        assert leaves == {(f"env.{name}", "(secret)", "(secret)") for name in ("FLEET", "HOST")}
    told = place.said["up of a takeover after"].err
    assert "a former version wrote FLEET, HOST in clear into the state" in told
    assert "older copies" in told
    # That nothing of it is left is what the test of all files says.


def test_no_file_holds_one_but_those_that_were_written_with_it(place: Place) -> None:
    written = {"local.yml", "wrong.yml", "more.yml", "cloud.yml", "registry.yml"}
    found = dict(place.nest.in_files(place.path))
    assert {name: names for name, names in found.items() if name not in written} == {}
    assert set(found) == written


def test_no_file_of_orch_is_open_to_others(place: Place) -> None:
    dot = place.path / ".orch"
    every = [dot, *dot.rglob("*")]
    assert [path for path in every if not path.is_symlink() and path.stat().st_mode & 0o077] == []
    assert {path.name for path in every} >= {"ledger.db", "history", "backups", "0.log", "driver.log"}
    shared = ("orch.yml", "Pulumi.yaml", "__main__.py")
    umask = os.umask(0)
    os.umask(umask)
    assert {(place.path / name).stat().st_mode & 0o777 for name in shared} == {0o666 & ~umask}


def test_no_command_line_and_no_foreign_environment_shows_one(place: Place) -> None:
    own = [(what, line) for what, line, names in place.watch.found if not allowed(what, line, names)]
    assert own == []
    assert place.watch.looks > 20


def allowed(what: str, line: str, names: frozenset[str]) -> bool:
    """What a caller typed stands on that command's line; what it exported, all children inherit."""
    return names <= (
        set(EXPORTED)
        if what == "environ"
        else {"cli"}
        if " run " in line or " secret set " in line
        else set()
    )


def test_neither_docker_nor_the_machines_keep_one(place: Place) -> None:
    assert {what: names for what, names in place.during.items() if names} == {}


def test_how_many_places_were_searched(
    place: Place, record_testsuite_property: Callable[[str, object], None]
) -> None:
    record_testsuite_property("canary-places", place.nest.searched)
    assert place.nest.searched > 500
