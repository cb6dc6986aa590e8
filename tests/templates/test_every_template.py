"""Every template with values that somebody else chose: each stays one word, and nothing else runs.

A new template needs a row in `CASES`. Scripts run for real, in a sandbox.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kit.nodes.sandbox import Sandbox

import orch.templates
from orch.components.cloud.machines.cloudinit import filled
from orch.runner.launch.launcher import quote_words
from orch.runner.node.stage import target_text
from orch.runner.node_api.commands import LOOKUP, argv
from orch.runner.node_api.first_boot import FAILED_STEPS
from orch.runner.plan.run_plan import StagedFile
from orch.runner.preparation.mounts import unmount
from orch.templates import ShellText, environment, render

FOLDER = Path(orch.templates.__file__).parent
# Pages for people have tests of their own (tests/review).
NAMES = sorted(path.name for path in FOLDER.glob("*.j2") if ".html." not in path.name)
Values = dict[str, Any]

HOSTILE = (
    "plain",
    "two words",
    "it's",
    'a "quote"',
    "x;canary;",
    "x${IFS}y;canary",
    "$(canary)",
    "`canary`",
    "'; canary; '",
    '"; canary; "',
    '"$(canary)"',
    "x\ncanary\n",
    "x\r\ncanary",
    "x && canary || canary & canary | canary > pwned",
    "-rf",
    "--privileged",
    "* ? [a-z] {a,b} ~",
    "back\\slash \\$(canary) \\",
    "# not a comment\ncanary",
    "{{ canary }} {% canary %}",
    "@@HOST_KEY@@",
    "caf\u00e9 \u2028 \u2029 \x85 \U0001f600",
    "x" * 10_000,
)
# Few do for running: each way to break out, with and without a newline, and words that look like options.
RUN = (" ".join(HOSTILE[:10]), "\n".join(HOSTILE[:10]), HOSTILE[13], "-rf", HOSTILE[16] + HOSTILE[17])
# Where it stands inside quotes of the template's own, or in a comment, the shell cannot read the script.
TRAP = 'x(;"(;\n(;'


def scratches(v: str) -> Iterator[Any]:
    yield None
    for required in (True, False):
        for fs in ("xfs", "ext4"):
            yield SimpleNamespace(path=v, required=required, fs=fs)


def init_steps(v: str) -> list[Any]:
    step = {
        "name": v,
        "file": "00",
        "mark": "00.done",
        "timeout_s": 60,
        "user": v,
        "content": v,
        "exports": v,
    }
    return [SimpleNamespace(when=when, **step) for when in ("create", "boot")]


def init_of(v: str) -> dict[str, Any]:
    return {"init": "/var/lib/orch/init", "own": "/run/orch-init", "steps": init_steps(v)}


def sent_init(v: str) -> Iterator[Values]:
    given = {**init_of(v), "marks": {"00": "ran/0.0"}, "failed": 40, "busy": 41, "wait_s": 1, "lines": 9}
    given["unmount"] = unmount("0123456789ab")
    yield from ({**given, "new": new} for new in (True, False))


def mounted(v: str) -> Iterator[Values]:
    line = {"source": v, "path": v, "text": v, "origin": v, "helper": (v, v, v), "lustre_packages": True}
    line |= {"created": None}
    for optional in (True, False):
        kinds = [SimpleNamespace(**line, kind=kind, optional=optional) for kind in ("nfs", "")]
        by_id = SimpleNamespace(**{**line, "source": "fs-1.efs.REGION.x"}, kind="nfs4", optional=optional)
        new = SimpleNamespace(**{**line, "created": "fs-x-0000"}, kind="nfs4", optional=optional)
        yield {"owner": v, "lines": [*kinds, by_id], "created": "/nonexistent", "late_s": 0}
        yield {"owner": None, "lines": [*kinds, new], "created": "/nonexistent", "late_s": 0}


def aws_prepare(v: str) -> Iterator[Values]:
    for scratch in scratches(v):
        yield {"gpus": 8, "efa": 32, "efa_installer": v, "scratch": scratch, "idle": v, **init_of(v)}


def image_prepare(v: str) -> Iterator[Values]:
    for cards, data in ((8, None), (0, "disk"), (8, "local")):
        for toolkit in (None, v):
            yield {
                "gpus": cards,
                "toolkit": toolkit,
                "cards": cards,
                "data": data,
                "idle": v,
                **init_of(v),
            }


def crusoe_startup(v: str) -> Iterator[Values]:
    users = [(v, v)]
    yield {
        "mark": v,
        "hostname": v,
        "users": users,
        "commands": [ShellText("true")],
        "payload": ShellText("eA=="),
    }


def gcp_prepare(v: str) -> Iterator[Values]:
    given = {"gpus": 8, "rdmas": 8, "nics": 9, "queues": v, **init_of(v), "account": True}
    given["software"] = {"plugin": v, "receiver": v}
    given |= {"fleet": v, "host_key": v, "shown": v, "idle": v}
    for scratch in scratches(v):
        for system in ("ubuntu", "cos"):
            yield {**given, "os": system, "fabric": "gib", "scratch": scratch}
    for fabric in ("tcpx", "tcpxo"):
        yield {**given, "os": "cos", "fabric": fabric, "scratch": None}


def volumes(v: str) -> Iterator[Values]:
    given = {
        "home": "/var/lib/orch",
        "name": v,
        "volume": v,
        "folder": v,
        "paths": (v, v),
        "filesystem": "ext4",
    }
    given |= {"appear_s": 0, "failed": 42, "foreign": 49}
    for read_only, simulated in ((False, False), (True, True)):
        yield {**given, "read_only": read_only, "simulated": simulated, "may_format": not read_only}


def started(v: str) -> Iterator[Values]:
    part = {"per_block": 1, "devices": ShellText("echo dev"), "before": v, "after": v}
    given = {
        "home": "/var/lib/orch",
        "name": v,
        "claim": f"{v}|{v}",
        "blocks": 1,
        "blocks_total": 4,
        "in_pod": False,
        "left_after_s": 3600,
        "cordoned": 46,
        "preparing": 47,
        "unfit": 48,
        "unhealthy": 51,
        "failed_steps": FAILED_STEPS,
        "internal_ip": v,
        "ifname_for": (v,),
        "image": v,
        "image_command": True,
        "trees": (v, v),
        "lookup": LOOKUP,
        "no_files": 50,
        "mounts": [
            {"source": v, "bind": v, "optional": optional, "check": check}
            for optional in (True, False)
            for check in ("none", "make", "volume", "folder", "mount", "made")
        ],
        "access": SimpleNamespace(group=v, folders=(v,)),
        "fabric": SimpleNamespace(devices=(v,), optional_devices=(v,)),
        "options": argv(f"--label={v}", v),
        "hosts": True,
        "ports": (v,),
        "port_taken": 49,
        "find_port": True,
        "first_port": 29500,
        "idle_after": "/var/lib/orch/idle-after",
    }
    for simulated in (True, False):
        for joined in (True, False):
            for blocks in (1, 2):
                more = {"simulated": simulated, "left_out": v if simulated else "", "blocks": blocks}
                more |= {"privileged": simulated, "idle_after_s": 60 if simulated else None}
                more |= {"scratch": None, "scratch_export": v}
                more |= {"begins": blocks == 2, "find_port": joined, "ticks": 2}
                yield {**given, **more, "part": {**part, "joined": joined}}
    for check in ("mount", "folder", "none"):
        for required in (True, False):
            scratch = SimpleNamespace(path=v, check=check, required=required)
            yield {**given, **more, "part": None, "scratch": scratch}


def entries(v: str) -> Iterator[Values]:
    given = {"barrier_ticks": 3, "slurm": True, "entrypoint": (v, v), "image_command": False, "tasks": 1}
    given |= {"logins": True, "repo": False, "own_folder": False}
    files = [
        {
            "target": target_text(StagedFile(source="s", target=target)),
            "folder": folder,
            "name": v,
            "if_exists": if_exists,
        }
        for target in (v, f"~/{v}", f"{v}/")
        for folder, if_exists in ((True, None), (False, None), (True, "skip"), (True, "error"))
    ]
    yield {**given, "files": files, "shell": v}
    yield {**given, "files": files, "shell": v, "repo": True, "own_folder": True}
    yield {**given, "files": [], "shell": "sh", "tasks": 2}
    yield {**given, "files": [], "shell": "sh"}
    yield {**given, "files": [], "shell": "sh", "image_command": True}


def mpiruns(v: str) -> Iterator[Values]:
    given = {
        "port": 10022,
        "total": 4,
        "machines": (v, v),
        "mpi": v,
        "bind_to": v,
        "mca": ((v, v),),
        "ethernet": True,
        "export": (v,),
        "extra": quote_words(v),
        "torch_env": True,
        "program": quote_words(v, v),
    }
    for addresses in ((v, v), (v,)):
        for rank in range(len(addresses)):
            yield {**given, "nodes": len(addresses), "addresses": addresses, "rank": rank}


def node(**more: Any) -> Callable[[str], Iterator[Values]]:
    return lambda v: iter([{"home": "/var/lib/orch", "name": v, "slack_s": 30, **more}])


def host(**more: Any) -> Callable[[str], Iterator[Values]]:
    return lambda v: iter(
        [{"home": "/var/lib/orch", "registration": v, "label": v, "user": v, "authorized_keys": (v,), **more}]
    )


def images(v: str) -> Iterator[Values]:
    for pull in (True, False):
        yield {"image": v, "pull": pull, "likely": v, "limit_s": 60}


def software(v: str) -> Iterator[Values]:
    for account in (True, False):
        yield {"software": {"plugin": v, "receiver": v}, "queues": v, "rdmas": 8, "account": account}


def config(v: str) -> Iterator[Values]:
    files = [SimpleNamespace(path=v, mode=v, content=content) for content in (v, f"{v}\n", f" {v}\n\n{v}\n")]
    values = {"fleet": v, "user": v, "authorized_keys": (v, v), "files": files, "created": v}
    for console in (False, True):
        yield {**values, "console": console, "makes_key": v, "given": False, "ends": console}
    yield {**values, "console": False, "makes_key": None, "given": True, "ends": False}


def idle(v: str) -> Iterator[Values]:
    given = {"home": "/var/lib/orch", "script": "/nonexistent", "fleet": v, "by": v, "off": argv("off", v)}
    times = {"after_s": 60, "first_s": 600, "most_s": 15, "left_after_s": 3600, "own": v}
    for least in (0, 2):
        yield {**given, **times, "least": least}


def ttl(v: str) -> Iterator[Values]:
    given = {"home": "/var/lib/orch", "script": "/nonexistent", "tag": v, "by": v, "off": argv("off", v)}
    yield {**given, "ends": 1_764_000_000, "look_s": 20, "unset_s": 3600}


def nothing(v: str) -> Iterator[Values]:
    yield {}


CASES: Mapping[str, Callable[[str], Iterator[Values]]] = {
    "cloud-init-bastion.yml.j2": config,
    "cloud-init-begin.sh.j2": lambda v: iter([{"idle": v}, {"idle": None}]),
    "cloud-init-end.sh.j2": lambda v: iter([init_of(v)]),
    "cloud-init-forwards.sh.j2": lambda v: iter([{"user": v, "nodes": (v,)}, {"user": v, "nodes": ()}]),
    "cloud-init-idle.sh.j2": idle,
    "cloud-init-metadata.sh.j2": lambda v: iter([{"ssm": ssm} for ssm in (True, False)]),
    "cloud-init-ttl.sh.j2": ttl,
    "cloud-init-notices.sh.j2": lambda v: iter([{"cloud": cloud, "by": v} for cloud in ("aws", "gcp")]),
    "cloud-init-node.yml.j2": config,
    "cloud-init-prepare.sh.j2": aws_prepare,
    "crusoe-startup.sh.j2": crusoe_startup,
    "entry.sh.j2": entries,
    "gcp-prepare.sh.j2": gcp_prepare,
    "gcp-start-gib.sh.j2": software,
    "gcp-start-tcpx.sh.j2": software,
    "gcp-start-tcpxo.sh.j2": software,
    "claim-over.sh.j2": lambda v: iter([{"left_after_s": 3600}]),
    "host-authorize.sh.j2": host(),
    "host-container.sh.j2": images,
    "host-facts.sh.j2": lambda v: iter([{"limit_s": 1}]),
    "host-init.sh.j2": sent_init,
    "host-key-change.sh.j2": lambda v: (
        dict.fromkeys(("user", "present", "other", "line"), v)
        | {"what": what, "others": (v,), "lacks": 44, "alone": 45}
        for what in ("look", "add", "remove")
    ),
    "host-listen.sh.j2": lambda v: iter([{"address": v, "lives_s": 1}]),
    "host-reach.sh.j2": lambda v: iter([{"at_once": 2}]),
    "host-register.sh.j2": host(),
    "host-unregister.sh.j2": host(busy=40, force=False, left_after_s=3600, unmount=unmount("0123456789ab")),
    "image-prepare.sh.j2": image_prepare,
    "init-mounts.sh.j2": mounted,
    "init-steps.sh.j2": lambda v: iter([init_of(v)]),
    "job-session.sh.j2": nothing,
    "kernel-records.sh.j2": nothing,
    "kernel-xids.sh.j2": nothing,
    "mpirun.sh.j2": mpiruns,
    "node-go.sh.j2": lambda v: (
        values
        for stop_s, signal, before_s in ((5, "", 0), (None, v, 20))
        for values in node(
            max_duration_s=60,
            stop_duration_s=stop_s,
            content="x",
            ticks=1,
            signal=signal,
            signal_before_s=before_s,
            watch=signal,
            inactivity_s=60,
            look_s=15,
        )(v)
    ),
    "node-evidence.sh.j2": lambda v: iter([{"limit_s": 5, "most_mib": 32}]),
    "node-gpu-reset.sh.j2": lambda v: (
        {
            **{"home": "/var/lib/orch", "change": v, "ids": ids, "fabric": fabric},
            **{"busy": 41, "limit_s": 5},
        }
        for ids in (v, "")
        for fabric in (True, False)
    ),
    "node-devices.sh.j2": lambda v: (
        {**{"home": "/var/lib/orch", "contained": contained, "nvidia": nvidia, "limit_s": 5}, "tags": v}
        for contained in (True, False)
        for nvidia in (True, False)
    ),
    "node-gpus.sh.j2": lambda v: iter([{"limit_s": 5}]),
    "node-health.sh.j2": lambda v: (
        {
            **{
                "home": v,
                "limit_s": 1,
                "tool_s": 1,
                "log_s": 1,
                "starts": v,
                "silent": v,
                "wait_s": 1,
                "most_bytes": 1000,
                "simulated": 0,
            },
            **{"contained": contained, "nvidia": nvidia, "diagnose": nvidia, "amd": not nvidia},
            **{"tenstorrent": not nvidia, "gaudi": None if nvidia else v},
        }
        for nvidia in (True, False)
        for contained in (True, False)
    ),
    "node-hold.sh.j2": node(),
    "node-holders.sh.j2": lambda v: iter([{"home": v, "left_after_s": 3600}]),
    "node-log.sh.j2": lambda v: (
        {"name": v, "options": ("--timestamps", v), "skip": skip, "no_stage": 44, "no_docker": 45}
        for skip in (0, 3)
    ),
    "node-metrics.sh.j2": lambda v: (
        values
        for contained in (True, False)
        for values in node(contained=contained, job=argv("echo", v), devices=ShellText("echo 0, 1, 2, 3"))(v)
    ),
    "node-observe.sh.j2": node(),
    "node-release.sh.j2": lambda v: (
        values for scratch in (None, SimpleNamespace(path=v)) for values in node(scratch=scratch)(v)
    ),
    "node-interrupt.sh.j2": lambda v: iter([{"home": v, "jobs": ({"name": v, "stop_s": 5},)}]),
    "node-load.sh.j2": lambda v: node(image=v, lock=v)(v),
    "node-pull.sh.j2": lambda v: ({"image": v, "logged_in": logged_in} for logged_in in (True, False)),
    "node-receive.sh.j2": lambda v: (
        values
        for base in (v, "")
        for values in node(tree=v, token=v, lookup=LOOKUP, base=base, trees=9, need_kib=5)(v)
    ),
    "node-read.sh.j2": node(path="/p", no_path=51),
    "node-signal.sh.j2": lambda v: (
        values
        for shell_only in (True, False)
        for values in node(signal="USR1", number=10, shell_only=shell_only)(v)
    ),
    "node-start.sh.j2": started,
    "node-volume.sh.j2": volumes,
    "node-volume-detached.sh.j2": lambda v: [{"home": "/var/lib/orch", "volume": v, "token": v}],
    "node-volume-release.sh.j2": lambda v: node(volume=v, folder=v, token=v, detaching_min=15, failed=42)(v),
    "node-volume-reserve.sh.j2": lambda v: node(
        volume=v, detaching_min=15, preparing=47, detaching=48, failed=42
    )(v),
    "node-stop.sh.j2": lambda v: (
        values
        for kill, stop_s, signal, after in ((True, 5, "", ""), (False, 5, v, 0), (False, None, "", ""))
        for values in node(kill=kill, stop_duration_s=stop_s, signal=signal, signal_after_s=after)(v)
    ),
    "node-watch.sh.j2": lambda v: (
        values
        for per_block in (0, 4)
        for values in node(
            least=10, window_s=300, every_s=30, per_block=per_block, use=ShellText("true"), stop_duration_s=5
        )(v)
    ),
    "node-write.sh.j2": node(path="/p"),
    "pod-begin.sh.j2": lambda v: iter([{"home": "/var/lib/orch", "docker": v}]),
    "pod-docker.sh.j2": lambda v: iter([{"home": "/var/lib/orch"}]),
    "pod-bootstrap.sh.j2": lambda v: (
        {"authorized": (v, v), "host_key": given, "image": given, "hidden": given, "port": 22}
        for given in (v, "")
    ),
    "pod-hold.sh.j2": lambda v: iter(
        [{"home": "/var/lib/orch", "image": v, "start_within_s": 5, "kept_for_s": 5, "between_s": 5}]
    ),
    "scontrol.sh.j2": nothing,
    "ssh-authorize.sh.j2": nothing,
    "ssh-client.sh.j2": nothing,
    "ssh-enter.sh.j2": lambda v: iter([{"beat_s": 1, "others": (v, v)}, {"beat_s": None, "others": ()}]),
    "ssh-serve.sh.j2": lambda v: iter([{"address": v, "port": 10022}]),
    "torch-env.sh.j2": nothing,
}
SHELL = [name for name in NAMES if name.endswith(".sh.j2")]


def test_every_template_has_a_row() -> None:
    assert sorted(CASES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_show_every_value_of_a_template(name: str) -> None:
    """So that a value which is added is tried here too."""
    shown: set[int] = set()
    count = 0

    def mark(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"{{{{ ({match.group(1)}) | seen({count}) }}}}"

    def seen(value: object, number: int) -> str:
        shown.add(number)
        return "x"

    text = (FOLDER / name).read_text()
    raw = re.compile(r"\{% raw %\}.*?\{% endraw %\}", re.DOTALL)
    marked = re.sub(r"\{\{(.+?)\}\}", mark, raw.sub("", text))
    kind = environment(name.removesuffix(".j2").rpartition(".")[2])
    own = kind.overlay()
    own.filters = {**kind.filters, "seen": seen}
    for values in CASES[name]("x"):
        own.from_string(marked).render(**values)
    assert shown == set(range(1, count + 1))


@cache
def read_by(shell: str, text: str) -> tuple[int, str]:
    """What a shell that only reads a text ends with and says; some are one text whatever the values hold."""
    with NamedTemporaryFile("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)  # of a pipe bash asks for each byte on its own
        file.flush()
        read = subprocess.run([shell, "-n", file.name], capture_output=True, text=True, check=False)
    return read.returncode, read.stderr


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("name", SHELL)
def test_a_shell_reads_it_whatever_the_values_hold(name: str, shell: str) -> None:
    if shell == "sh" and (FOLDER / name).read_text().startswith("#!/bin/bash"):
        shell = "bash"
    for hostile in (TRAP, *HOSTILE):
        for values in list(CASES[name](hostile))[: None if hostile == TRAP else 1]:
            code, told = read_by(shell, render(name, **values))
            assert (code, told) == (0, ""), (hostile, told)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: text[:12].encode("unicode_escape").decode())
def test_yaml_gives_values_back_as_they_were(hostile: str) -> None:
    values, shown, keyed_by_us = config(hostile)
    read = yaml.safe_load(keyed(render("cloud-init-node.yml.j2", **values)))
    console = yaml.safe_load(keyed(render("cloud-init-node.yml.j2", **shown)))
    assert (console["users"], console["write_files"]) == (read["users"], read["write_files"])
    assert not {"hostname", "ssh_keys", "bootcmd"} & set(console)
    given = yaml.safe_load(keyed(render("cloud-init-node.yml.j2", **keyed_by_us)))
    assert (given["users"], given["write_files"]) == (read["users"], read["write_files"])
    assert given["ssh_genkeytypes"] == []
    assert set(given["ssh_keys"]) == {"ed25519_private", "ed25519_public"}
    assert "hostname" in given
    assert "bootcmd" not in given
    assert read["bootcmd"] == [["sh", "-c", hostile]]
    assert read["users"][0]["ssh_authorized_keys"][1:] == [hostile, hostile]
    assert [each["path"] for each in read["write_files"]] == [hostile] * 4
    assert [each["content"] for each in read["write_files"]] == [
        hostile,
        f"{hostile}\n",
        f" {hostile}\n\n{hostile}\n",
        None,  # no file system was created
    ]
    assert set(read) == {
        *("preserve_hostname", "disable_root", "ssh_pwauth", "ssh_deletekeys", "ssh_genkeytypes", "bootcmd"),
        *("users", "write_files", "runcmd"),
    }
    files = read["write_files"][:3]
    read = yaml.safe_load(keyed(render("cloud-init-bastion.yml.j2", **values)))
    assert (read["users"][0]["name"], read["write_files"]) == (hostile, files)


def keyed(text: str) -> str:
    """With keys where marks for them are."""
    return filled(text, name="n-0", host_key="key", host_key_public="public", authorized_key="mine")


# --- running them


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox.made(tmp_path)


def names_of(sandbox: Sandbox) -> set[str]:
    return {path.name for path in sandbox.folder.rglob("*")}


@pytest.mark.parametrize("hostile", RUN, ids=range(len(RUN)))
# What reads notices never ends, and is given no text of anybody; nor does what a pod begins with.
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in SHELL
        if not name.startswith(("gcp-start", "cloud-init-notices", "pod-bootstrap", "pod-hold"))
    ],
)
def test_only_what_is_written_there_runs(name: str, hostile: str, sandbox: Sandbox) -> None:
    shell = "bash" if (FOLDER / name).read_text().startswith("#!/bin/bash") else "sh"
    for values in list(CASES[name](hostile))[:4]:
        text = render(name, **values)
        if name == "host-authorize.sh.j2":
            text = f"H=/var/lib/orch\n{text}"
        sandbox.run(text, shell)
    called = {call[0] for call in sandbox.calls()}
    assert "canary" not in called
    assert not {"pwned", "canary"} & names_of(sandbox) - {"canary"}
    assert {path.name for path in (sandbox.folder / "work").iterdir()} <= left_by(name, hostile)


def left_by(name: str, hostile: str) -> set[str]:
    """What may lie in the working folder after it."""
    if name in ("entry.sh.j2", "node-start.sh.j2", "node-volume.sh.j2"):
        return {".ssh", hostile, hostile.split("/", maxsplit=1)[0]}
    return {hostile} if name.endswith(("-prepare.sh.j2", "-end.sh.j2")) else {".ssh"}


ARRIVES: Sequence[tuple[str, str, Callable[[str], tuple[str, ...]]]] = (
    ("node-observe.sh.j2", "timeout", lambda v: ("--", v)),
    ("node-load.sh.j2", "docker", lambda v: ("inspect", "-f", "ok", "--", v)),
    ("node-pull.sh.j2", "docker", lambda v: ("inspect", "-f", "ok", "--", v)),
    ("node-release.sh.j2", "docker", lambda v: ("rm", "-f", "-v", "--", v)),
    ("node-stop.sh.j2", "docker", lambda v: ("kill", "--", v)),
    ("node-start.sh.j2", "docker", lambda v: (f"--label={v}", v, "--", v)),
    ("mpirun.sh.j2", "mpirun", lambda v: ("--mca", v, v)),
    ("cloud-init-prepare.sh.j2", "timeout", lambda v: ("runuser", "-u", v, "--", "bash")),
)


@pytest.mark.parametrize("hostile", RUN, ids=range(len(RUN)))
@pytest.mark.parametrize(("name", "command", "words"), ARRIVES, ids=[row[0] for row in ARRIVES])
def test_values_arrive_as_they_were(
    name: str, command: str, words: Callable[[str], tuple[str, ...]], hostile: str, sandbox: Sandbox
) -> None:
    shell = "bash" if (FOLDER / name).read_text().startswith("#!/bin/bash") else "sh"
    for values in CASES[name](hostile):
        if name == "mpirun.sh.j2":
            values |= {"mpi": "openmpi", "extra": quote_words(), "torch_env": False}
        if name == "cloud-init-prepare.sh.j2":
            values |= {"gpus": 0, "efa": 0, "scratch": None}
        if name == "node-start.sh.j2":
            # Nothing is mounted here.
            unchecked = [mount for mount in values["mounts"] if mount["check"] == "none"]
            values |= {"mounts": unchecked, "scratch": None, "trees": ()}
        done = sandbox.run(render(name, **values), shell)
    wanted = words(hostile)
    assert any(
        call[0] == command and any(call[i : i + len(wanted)] == wanted for i in range(len(call)))
        for call in sandbox.calls()
    ), (sandbox.calls(), done.stderr)


def test_bare_text_cannot_pass_for_shell_text() -> None:
    with pytest.raises(TypeError, match="ShellText"):
        render(
            "mpirun.sh.j2",
            **{**next(mpiruns("x")), "rank": 0, "nodes": 1, "addresses": ("a",), "program": "rm -rf /"},
        )


@pytest.mark.parametrize("value", [None, True, ("a", "b"), b"x", float("nan")], ids=str)
def test_what_is_neither_text_nor_number_is_an_error(value: object) -> None:
    with pytest.raises(TypeError, match="text and numbers"):
        render("host-reach.sh.j2", at_once=value)


def test_a_null_character_reaches_no_shell() -> None:
    with pytest.raises(ValueError, match="null character"):
        render("node-observe.sh.j2", home="/var/lib/orch", name="a\0b")
