"""A ProxyCommand of one user's ~/.ssh/config is run on nobody else's machine, whatever a state holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch.providers.orch.handler import OBSERVED
from orch.providers.orch.ssh_host import SshHostHandler
from orch.runner.errors import HostUnreachable
from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.node_api.commands import Command
from orch.runner.ssh.openssh import write_config
from orch.runner.ssh.pool import SshConnector
from orch.runner.ssh.targets import SshTarget, find_targets
from orch.runner.ssh.user_config import UserConfig
from orch.spec.models.ssh import SshConfig
from orch.spec.state import FleetState, NodeState

KEY = new_key_pair().public


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home/.ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def recorded(command: str, backend: str = "ssh") -> FleetState:
    """A state as the former version wrote it."""
    hop = {"address": "gate", "user": "me", "host_key": KEY, "proxy_command": command}
    node = {"index": 0, "address": "127.0.0.1", "port": 9, "user": "ops", "host_key": KEY}
    nodes = [{**node, "name": "gpu1", "proxy_command": command}, {**node, "name": "gpu2", "jump": [hop]}]
    return FleetState.model_validate({"name": "lab", "stack": "lab", "backend": backend, "nodes": nodes})


def test_a_command_that_a_former_version_recorded_is_not_run(tmp_path: Path, home: Path) -> None:
    mark = tmp_path / "pwned"
    state = recorded(f"touch {mark}")
    transport = SshConnector(connect_timeout_s=2.0, deadline_s=0)
    for node in state.nodes:
        with pytest.raises(HostUnreachable):
            transport.run(node, Command("true"))
        assert "ProxyCommand" not in write_config(node, tmp_path / node.name, UserConfig()).read_text()
    transport.close()
    assert not mark.exists()


def test_nor_by_the_engine_that_reads_the_host_s_record(tmp_path: Path, home: Path) -> None:
    mark = tmp_path / "pwned"
    inputs: dict[str, Any] = {
        **recorded("x").nodes[0].model_dump(mode="json"),
        "stack": "s",
        "proxy_command": f"touch {mark}",
    }
    handler = SshHostHandler(deadline_s=0.5)
    found = handler.read("gpu1", inputs)
    assert found is not None
    assert "unreachable" in found[OBSERVED]["status"]
    hop = {"address": "gate", "user": "me", "host_key": KEY, "proxy_command": f"touch {mark}"}
    handler.read("gpu1", {**inputs, "proxy_command": None, "jump": [hop]})
    assert not mark.exists()


def test_the_caller_s_own_configuration_supplies_the_command(tmp_path: Path, home: Path) -> None:
    mark, config = tmp_path / "own", home / ".ssh/config"
    config.write_text(f"Host gpu1\n ProxyCommand touch {mark}-%h-%p-%r\n")
    node = recorded("touch theirs").nodes[0]
    transport = SshConnector(connect_timeout_s=5.0, deadline_s=0)
    with pytest.raises(HostUnreachable):
        transport.run(node, Command("true"))
    transport.close()
    assert Path(f"{mark}-127.0.0.1-9-ops").exists()
    written = write_config(node, tmp_path / "ssh", UserConfig()).read_text()
    assert f"ProxyCommand touch {mark}-%h-%p-%r\n" in written


def test_what_is_recorded_of_a_host_is_the_name_and_no_command(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        "Host gpu*\n HostName 10.0.0.4\n ProxyCommand nc %h %p\nHost gate\n ProxyCommand nc a 1\n"
    )
    hosts = [
        {"hostname": "gpu1", "name": "head", "host_key": KEY},
        {"hostname": "a", "host_key": KEY, "proxy_jump": {"hostname": "gate"}},
    ]
    settings = SshConfig.model_validate({"hosts": hosts})
    found = find_targets(settings, tmp_path, {"jump gate": KEY}, user_config=UserConfig(file, None))
    nodes = tuple(each.node for each in found if isinstance(each, SshTarget))
    assert [node.ssh.proxy_command for node in nodes] == [
        "nc %h %p",
        None,
    ]  # for the connection that is made now
    state = FleetState(name="lab", stack="lab", backend="ssh", nodes=nodes)
    assert "nc " not in state.model_dump_json()
    assert (state.nodes[0].ssh.ssh_alias, state.nodes[1].ssh.jump[0].ssh_alias) == ("gpu1", "gate")


def test_a_cloud_s_own_commands_stay() -> None:
    state = recorded("aws ssm start-session", "aws")
    assert (
        state.nodes[0].ssh.proxy_command
        == state.nodes[1].ssh.jump[0].proxy_command
        == "aws ssm start-session"
    )
    assert NodeState.model_validate(state.nodes[0].model_dump()) == state.nodes[0]
