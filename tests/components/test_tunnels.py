"""Ways through a cloud's own tunnel: whose credentials they take, and where those may be seen.

`aws` and `gcloud` are commands of these tests that write down how they were called; the shell is real.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.aws_cases import Case
from kit.clouds.gcp_cases import Case as GcpCase
from pydantic import ValidationError

from orch.components.aws.fleet_state import FleetOutputs, HostKey, fleet_state
from orch.components.cloud.machines.host_keys import public_host_key
from orch.components.gcp.fleet_state import iap_command
from orch.runner.ssh.connect import dial_command
from orch.runner.ssh.openssh import write_config
from orch.runner.ssh.user_config import UserConfig
from orch.spec.findings import PlanErrors
from orch.spec.state import FleetState, NodeState
from orch.stacks.project.project import Project
from orch.stacks.secrets.values import tunnels

SECRET = "wJalr/XUtnFEMI+K7MDENG%h"
KEYS = {"type": "access_key", "access_key": "AKIAIOSFODNN7EXAMPLE", "secret_key": SECRET}
OWN = ("AWS_ACCESS", "AWS_SECRET", "AWS_SESSION", "AWS_PROFILE", "ORCH_AWS")
STUB = """#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    log.write(json.dumps({{"words": sys.argv, "environment": dict(os.environ)}}) + "\\n")
if "assume-role" in sys.argv:
    print("ASIAROLE\\trole+secret/\\trole token".replace(" ", "-"))
elif os.environ.get("AWS_PROFILE") == "":
    sys.exit("the profile () could not be found")
"""


@dataclass(frozen=True)
class Machine:
    """This machine with stubs of the clouds' command lines; `calls` are theirs so far."""

    path: Path

    @property
    def calls(self) -> list[dict[str, Any]]:
        log = self.path / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def dial(self, node: NodeState, project: Project) -> tuple[str, dict[str, Any]]:
        """Open a node's way, or its jump host's: what the tunnel said last, and its last call."""
        hop = node.ssh.jump[0] if node.ssh.jump else node.ssh
        assert hop.proxy_command is not None
        stream = dial_command(hop.proxy_command, hop.address, 22, hop.user, tunnels(project))
        while stream.recv(4096):
            pass
        words = stream.last_words()
        stream.close()
        return words, self.calls[-1] if self.calls else {}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("aws", "gcloud"):
        stub = programs / name
        stub.write_text(STUB.format(python=sys.executable, log=str(tmp_path / "calls")))
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    # What this user has set for himself, of another account.
    monkeypatch.setenv("AWS_PROFILE", "private")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "private-token")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAPRIVATE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "private-secret")
    monkeypatch.chdir(tmp_path)
    return Machine(tmp_path)


def project(case: Case | GcpCase, path: Path) -> Project:
    return Project(path, "tests", f"file://{path}", None, "sqlite://", "image", (case.settings,))


def aws(creds: dict[str, str] | None, name: str = "p5") -> tuple[Case, FleetState]:
    case = Case.of(name)
    case.data["settings"] = {**case.data.get("settings", {}), **({"creds": creds} if creds else {})}
    plan = case.plan()
    ids = [f"i-{node.index}" for node in plan.nodes]
    seen = FleetOutputs(
        "ab" * 32,
        ids,
        [HostKey(public_host_key("ab" * 32, each), each) for each in ids],
        ["10.0.0.1"] * len(ids),
        (),
        (),
        ("i-bastion", "10.0.0.9"),
    )
    return case, FleetState.model_validate(fleet_state(plan, case.settings, "lab", seen))


def gcp(creds: dict[str, str] | None) -> tuple[GcpCase, NodeState]:
    case = GcpCase.of("a3-mega")
    case.data["settings"] = {**case.data.get("settings", {}), **({"creds": creds} if creds else {})}
    way = iap_command("acme-ml", "us-west1-b", case.settings, "orch-mega-0")
    return case, NodeState(
        index=0, name="mega-0", address="10.0.0.2", user="root", host_key="", proxy_command=way
    )


def taken(call: dict[str, Any]) -> dict[str, str]:
    """The credentials that a call of `aws` was given, without those of its caller."""
    return {key: value for key, value in call["environment"].items() if key.startswith(OWN)}


# AWS


def test_the_keys_of_the_project_lead_to_the_nodes_and_not_those_of_the_shell(machine: Machine) -> None:
    case, state = aws(KEYS)
    said, call = machine.dial(state.nodes[0], project(case, machine.path))
    assert said == ""
    assert taken(call) == {"AWS_ACCESS_KEY_ID": KEYS["access_key"], "AWS_SECRET_ACCESS_KEY": SECRET}


def test_keys_are_neither_recorded_nor_seen_in_a_list_of_processes(machine: Machine) -> None:
    case, state = aws(KEYS)
    _, call = machine.dial(state.nodes[0], project(case, machine.path))
    for text in (state.model_dump_json(), json.dumps([each["words"] for each in machine.calls])):
        assert SECRET not in text
        assert KEYS["access_key"] not in text
    assert "ssm" in call["words"]


def test_without_the_project_keys_are_asked_for_and_no_other_account_is_used(machine: Machine) -> None:
    case, state = aws(KEYS)
    other = Case.of("p5")
    said, call = machine.dial(state.nodes[0], project(other, machine.path))
    assert case.settings.creds != other.settings.creds
    assert call == {}
    assert "`creds` in orch.yml" in said


def test_a_role_is_assumed_before_the_way_is_opened(machine: Machine) -> None:
    role = "arn:aws:iam::123456789012:role/orch"
    case, state = aws({"type": "default", "role_arn": role, "profile": "team a"})
    said, call = machine.dial(state.nodes[0], project(case, machine.path))
    assert said == ""
    assumed, opened = machine.calls
    assert [assumed["words"][at + 1] for at, word in enumerate(assumed["words"]) if word == "--role-arn"] == [
        role
    ]
    assert assumed["words"][assumed["words"].index("--profile") + 1] == "team a"
    assert call == opened
    assert taken(opened) == {
        "AWS_ACCESS_KEY_ID": "ASIAROLE",
        "AWS_SECRET_ACCESS_KEY": "role+secret/",
        "AWS_SESSION_TOKEN": "role-token",
    }
    assert "--profile" not in opened["words"]


@pytest.mark.parametrize("profile", ["team a", "a; touch owned", "$(touch owned)", "it's", "50%hour", "`id`"])
@pytest.mark.parametrize("role", [None, "arn:aws:iam::1:role/x"])
def test_a_profile_is_one_word_whatever_it_holds(machine: Machine, profile: str, role: str | None) -> None:
    creds = {"type": "default", "profile": profile, **({"role_arn": role} if role else {})}
    case, state = aws(creds)
    machine.dial(state.nodes[0], project(case, machine.path))
    words = machine.calls[0]["words"]
    assert words[words.index("--profile") + 1] == profile
    assert not (machine.path / "owned").exists()


def test_ssh_by_hand_is_told_the_same_way_in_one_line(machine: Machine) -> None:
    case, state = aws({"type": "default", "profile": "50% a; b", "role_arn": "arn:aws:iam::1:role/x"})
    config = write_config(state.nodes[0], machine.path / "ssh", UserConfig()).read_text()
    (line,) = [line for line in config.splitlines() if "ProxyCommand" in line]
    assert "50%% a; b" in line
    assert case.plan().access.way == "bastion"


def test_a_profile_of_two_lines_is_refused() -> None:
    case = Case.of("p5")
    case.data["settings"] = {"creds": {"type": "default", "profile": "a\n  ProxyCommand touch owned #"}}
    with pytest.raises(ValidationError, match="creds"):
        case.plan()


# GCP


def test_the_key_file_of_the_project_leads_to_the_nodes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", "private")
    key = machine.path / "a key.json"
    case, node = gcp({"type": "service_account", "filename": str(key)})
    said, call = machine.dial(node, project(case, machine.path))
    assert said == ""
    assert call["environment"]["CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE"] == str(key)
    assert "CLOUDSDK_AUTH_ACCESS_TOKEN" not in call["environment"]
    assert "start-iap-tunnel" in call["words"]


def test_without_credentials_of_the_project_the_shells_own_are_taken(machine: Machine) -> None:
    case, state = aws(None)
    for each, node in ((case, state.nodes[0]), gcp(None)):
        _, call = machine.dial(node, project(each, machine.path))
        assert call["environment"].get("AWS_PROFILE") == "private"


def test_a_key_as_text_that_gcloud_cannot_take_is_told_in_the_plan() -> None:
    case = GcpCase.of("a3-mega")
    case.data["settings"] = {"creds": {"type": "service_account", "data": "{}"}}
    with pytest.raises(PlanErrors) as caught:
        case.plan()
    assert [(each.code, each.path) for each in caught.value.findings] == [("ORCH303", "network")]
    case.data["fleet"]["network"] = {"ssh_cidrs": ["192.0.2.0/24"]}
    assert case.plan().warnings is not None
