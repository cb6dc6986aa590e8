"""The files of docs/how-to/controllers.md that people copy: each is read by what reads it there."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orch.cli.verbs import load

PAGE = (Path(__file__).parents[2] / "docs/how-to/controllers.md").read_text()
UNIT = re.search(r"```ini\n(.*?)```", PAGE, re.DOTALL)
MANIFESTS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
CRON = re.search(r"^    (\S+ \S+ \S+ \S+ \S+) cd \S+ && (.*)$", PAGE, re.MULTILINE)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    assert UNIT is not None
    parser.read_string(UNIT[1])
    return parser


def pods() -> Iterator[dict[str, Any]]:
    for manifest in MANIFESTS:
        of = manifest["spec"]
        yield (of["template"] if manifest["kind"] == "Deployment" else of["jobTemplate"]["spec"]["template"])


def commands() -> list[list[str]]:
    assert CRON is not None
    return [
        shlex.split(CRON[2]),
        shlex.split(unit()["Service"]["ExecStart"]),
        *(pod["spec"]["containers"][0]["command"] for pod in pods()),
    ]


def test_the_commands_have_the_options_that_the_page_gives_them() -> None:
    told = commands()
    assert [words[1] for words in told] == ["reconcile", "controller", "controller", "reconcile"]
    for program, verb, *arguments in told:
        assert Path(program).name == "orch"
        # Raises for an option that the verb does not have.
        load(verb).make_context(verb, list(arguments))


def test_kubernetes_asks_the_port_that_the_controller_answers_on() -> None:
    assert [(each["apiVersion"], each["kind"]) for each in MANIFESTS] == [
        ("apps/v1", "Deployment"),
        ("batch/v1", "CronJob"),
    ]
    deployment, cron = MANIFESTS
    assert deployment["spec"]["selector"]["matchLabels"] == next(pods())["metadata"]["labels"]
    container = next(pods())["spec"]["containers"][0]
    host, _, port = container["command"][-1].rpartition(":")
    assert (host, int(port)) == ("0.0.0.0", container["livenessProbe"]["httpGet"]["port"])
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert len(cron["spec"]["schedule"].split()) == 5
    for pod in pods():
        (container,), (volume,) = pod["spec"]["containers"], pod["spec"]["volumes"]
        (mount,) = container["volumeMounts"]
        assert (mount["name"], mount["mountPath"]) == (volume["name"], container["workingDir"])


def test_the_unit_waits_as_long_as_kubernetes_does() -> None:
    service = unit()["Service"]
    assert int(service["TimeoutStopSec"]) == next(pods())["spec"]["terminationGracePeriodSeconds"]
    assert unit()["Install"]["WantedBy"] == "default.target"
    assert Path(service["ExecStart"].split()[0]).is_relative_to(service["WorkingDirectory"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    assert UNIT is not None
    program = tmp_path / "project/.venv/bin/orch"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = tmp_path / "orch-controller.service"
    file.write_text(UNIT[1].replace("/srv/project", str(tmp_path / "project")))

    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}

    def verify() -> str:
        words = ["systemd-analyze", "verify", "--user", str(file)]
        return subprocess.run(
            words, env=environ, capture_output=True, text=True, timeout=300, check=False
        ).stderr

    assert verify() == ""
    file.write_text(file.read_text().replace("KillMode=mixed", "KillMode=some"))
    assert "kill mode" in verify()
