"""Steps of `init`, from the file to what runs: the cloud-config is read as cloud-init does, and a shell runs
its scripts with stand-ins for the tools of a machine."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit.clouds import aws_cases, cloudconfig, gcp_cases

PREPARES = {"aws": "/usr/local/sbin/orch-prepare", "gcp": "/var/lib/orch/prepare"}
PLACES = ("/var/lib/orch", "/usr/local/sbin/orch", "/run/orch", "/etc/ssh", "/etc/orch")
METADATA = "/var/lib/orch/metadata.sh"

HOSTILE = {
    "mark": "@@HOST_KEY@@",
    "return": "a\rb\r",
    "next line": "a\u0085b",
    "line separator": "a\u2028b\u2029c",
    "quotes": 'it\'s "so" \\ $HOME `id` $(id) !',
    "lines": "one\n\ntwo\n",
    "spaces": "  both  ",
    "nothing": "",
    "yaml": "- a: [b, *c, &d, !e]\n#f: |\n",
    "emoji": "\U0001f680\ufeff",
}

# The tools that steps are run by tell what they were called with, which everybody on a machine can see.
TOOLS = {
    "timeout": 'echo "timeout $*" >> "$SEEN"; shift 3; exec "$@"',
    "runuser": 'echo "runuser $*" >> "$SEEN"; shift 3; exec "$@"',
    "install": 'shift 4; for file; do :; done; cp "$@" && chmod 0400 "$file"/*',
    "lsblk": "",
    "docker": "echo tried",
    **dict.fromkeys(("getent", "sysctl", "systemctl", "apt-get", "mountpoint", "mount", "curl"), "exit 0"),
    "iptables": "exit 0",
}


@dataclass(frozen=True)
class Machine:
    """A machine in a folder, as its user data makes it."""

    root: Path
    prepare: str
    written: Mapping[str, cloudconfig.Written]

    @classmethod
    def made(
        cls, root: Path, cloud: str, steps: Sequence[Mapping[str, Any]], closes: str = "exit 0"
    ) -> Machine:
        text = user_data(cloud, steps)
        machine = cls(root, PREPARES[cloud], cloudconfig.files(text))
        for path, file in {**machine.written, METADATA: cloudconfig.Written(closes, 0o700)}.items():
            there = root / path.lstrip("/")
            there.parent.mkdir(parents=True, exist_ok=True)
            # Line ends are part of what is tested.
            there.write_bytes(
                (
                    file.content if path.startswith("/var/lib/orch/init/") else machine.moved(file.content)
                ).encode()
            )
            there.chmod(file.mode)
        (root / "etc/ssh/sshd_config").write_text("Port 22\n")
        (root / "bin").mkdir()
        for name, script in TOOLS.items():
            tool = root / "bin" / name
            tool.write_text(f"#!/bin/bash\n{script}\n")
            tool.chmod(0o755)
        return machine

    def moved(self, script: str) -> str:
        for place in PLACES:
            script = script.replace(place, f"{self.root}{place}")
        return script

    def start(self) -> str:
        """Prepare it; what its boot folder then says."""
        path = f"{self.root}/bin:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "SEEN": str(self.root / "seen"), "OUT": str(self.root)}
        script = str(self.root / self.prepare.lstrip("/"))
        done = subprocess.run(
            ["bash", script],
            env=environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # What systemd does after it, however it ended.
        unit = self.moved(self.written["/etc/systemd/system/orch-prepare.service"].content)
        ended = {**environment, "SERVICE_RESULT": "success" if done.returncode == 0 else "signal"}
        for line in unit.splitlines():
            if line.startswith("ExecStopPost="):
                subprocess.run(shlex.split(line.partition("=")[2]), env=ended, check=True)
        boot = {each.name: each.read_text() for each in (self.root / "var/lib/orch/boot").iterdir()}
        assert ("ok" in boot) == (done.returncode == 0), done.stderr
        assert ("ok" in boot) != ("failed" in boot), (boot, done.stderr)
        return "ok" if "ok" in boot else boot["failed"]

    @property
    def seen(self) -> str:
        return (self.root / "seen").read_text()


def user_data(cloud: str, steps: Sequence[Mapping[str, Any]]) -> str:
    case: Any = {"aws": aws_cases.Case, "gcp": gcp_cases.Case}[cloud].of("cpu")
    case.data["fleet"]["init"] = list(steps)
    return case.plan().cloud_init


clouds = pytest.mark.parametrize("cloud", PREPARES)


@clouds
def test_variables_arrive_as_they_were_written(cloud: str, tmp_path: Path) -> None:
    env = {f"V{number}": value for number, value in enumerate(HOSTILE.values())}
    step = {"run": "".join(f'printf %s "${each}" > "$OUT/{each}"\n' for each in env), "env": env}
    assert Machine.made(tmp_path, cloud, [step]).start() == "ok"
    told = {name: (tmp_path / f"V{number}").read_bytes().decode() for number, name in enumerate(HOSTILE)}
    assert told == HOSTILE
    read = cloudconfig.config(user_data(cloud, [step]))
    assert read["users"][0]["ssh_authorized_keys"] == ["ssh-ed25519 BBBB me"]


@clouds
def test_a_script_arrives_as_it_was_written(cloud: str, tmp_path: Path) -> None:
    text = "".join(
        f"value{number}={value!r}\n" for number, value in enumerate(HOSTILE.values()) if value.isprintable()
    )
    script = f"cat > \"$OUT/told\" <<'E'\n{text}@@NAME@@ \u2028 \u0085\nE\n"
    machine = Machine.made(tmp_path, cloud, [{"run": script}])
    assert machine.start() == "ok"
    assert (tmp_path / "told").read_bytes().decode() == script.partition("\n")[2].rpartition("E\n")[0]


@clouds
def test_a_variable_is_in_no_command_line_and_in_no_file_but_its_own(cloud: str, tmp_path: Path) -> None:
    step = {"run": 'printf %s "$TOLD" > "$OUT/told"', "env": {"TOLD": "hf_s3cret"}}
    machine = Machine.made(tmp_path, cloud, [step])
    assert {file.mode for file in machine.written.values() if "hf_s3cret" in file.content} == {0o600}
    assert machine.start() == "ok"
    assert "bash" in machine.seen
    assert "hf_s3cret" not in machine.seen
    left = [each for each in tmp_path.rglob("*") if each.is_file() and b"hf_s3cret" in each.read_bytes()]
    assert {each.name: each.stat().st_mode & 0o077 for each in left if each.name != "told"} == {"00.env": 0}


# Line breaks and a leading dash are refused with their place: tests/spec/test_hostile_texts.py.
NAMES = (
    'the 24" disk',
    "it's",
    "$(touch pwned)",
    "`touch pwned`",
    "@@HOST_KEY@@",
    "x -n",
    "; touch pwned",
)


@clouds
def test_steps_may_have_any_name(cloud: str, tmp_path: Path) -> None:
    steps = [{"name": name, "run": f"touch $OUT/{number}"} for number, name in enumerate(NAMES)]
    assert Machine.made(tmp_path, cloud, steps).start() == "ok"
    assert all((tmp_path / str(number)).exists() for number in range(len(NAMES)))
    assert not list(tmp_path.rglob("pwned"))


@clouds
@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_any_name_may_fail(cloud: str, name: str, tmp_path: Path) -> None:
    said = Machine.made(tmp_path, cloud, [{"name": name, "run": "exit 3"}]).start()
    assert said.startswith(f"init step {' '.join(name.split())} failed with 3: see ")
    assert said.count("\n") == 1
    assert not list(tmp_path.rglob("pwned"))


@clouds
def test_a_step_runs_again_only_when_it_or_its_variables_change(cloud: str, tmp_path: Path) -> None:
    step = {"run": 'echo "$WHAT" >> "$OUT/told"'}
    machine = Machine.made(
        tmp_path, cloud, [{**step, "env": {"WHAT": "a"}}, {**step, "env": {"WHAT": "b"}, "when": "boot"}]
    )
    assert [machine.start(), machine.start()] == ["ok", "ok"]
    assert (tmp_path / "told").read_text() == "a\nb\nb\n"


@clouds
@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_a_preparation_that_is_ended_says_so(cloud: str, signal: str, tmp_path: Path) -> None:
    machine = Machine.made(tmp_path, cloud, [{"run": f"kill -{signal} $PPID; sleep 1"}])
    assert "ended" in machine.start()


@clouds
def test_a_machine_whose_metadata_stays_open_takes_no_jobs(cloud: str, tmp_path: Path) -> None:
    closes = "echo first >&2; echo 'it answers in spite of the rules' >&2; exit 1"
    assert Machine.made(tmp_path, cloud, [], closes).start() == "it answers in spite of the rules\n"
