"""Resources of Crusoe as the engine asks for them: made, found again, drifted, deleted, waited for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.crusoe_lab import H200, IB, LOCATION, Lab, spec

from orch.components.crusoe.account.client import DISK, INSTANCE, NETWORK, PARTITION, RULE, SUBNET, Kind
from orch.components.crusoe.account.errors import CrusoeRefused
from orch.components.crusoe.plugin import CrusoeGang, CrusoeHandler, InstanceHandler
from orch.components.crusoe.startup import startup_script
from orch.components.marks.marked import cloud_name
from orch.providers.orch.handler import OBSERVED, differences
from orch.rehearsal.crusoe.account import machine_config
from orch.rehearsal.nodes.user_data import file_of, keys_of
from orch.rehearsal.scenario import Failure

MARK = "p/s/1"
CONFIG = """\
#cloud-config
hostname: lab-0
ssh_keys:
  ed25519_private: |
    PRIVATE
  ed25519_public: ssh-ed25519 PUBLIC
users:
  - name: root
    ssh_authorized_keys:
    - ssh-ed25519 CLIENT
write_files:
  - path: /etc/motd
    permissions: 0644
    owner: root:root
    content: "it's ümlaut"
runcmd:
  - [systemctl, enable, --now, orch-prepare.service]
"""


def handler(lab: Lab, kind: Kind) -> CrusoeHandler:
    return CrusoeHandler(kind, lambda: lab.client, pause_s=0.01, settle_s=0.05)


def instances(lab: Lab) -> InstanceHandler:
    return InstanceHandler(lambda: lab.client, pause_s=0.01, settle_s=0.05)


def inputs(name: str, body: dict[str, Any], mark: str = MARK, **more: Any) -> dict[str, Any]:
    return {"name": name, "mark": mark, "spec": body, **more}


def machine(name: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return inputs(name, body, script="", public_key="ssh-ed25519 AAAA", **more)


def made(lab: Lab, name: str, body: dict[str, Any]) -> dict[str, str]:
    resource, state = instances(lab).create(machine(name, body))
    return {"id": resource, "operation": state["operation"]}


def gang(lab: Lab) -> CrusoeGang:
    return CrusoeGang(lambda: lab.client, pause_s=0.01)


def test_a_fleet_is_made_with_what_it_stands_on_and_goes_again(lab: Lab) -> None:
    network, _ = handler(lab, NETWORK).create(inputs("n", {"cidr": "10.0.0.0/16"}))
    body = {"cidr": "10.0.0.0/16", "location": LOCATION, "vpc_network_id": network}
    subnet, _ = handler(lab, SUBNET).create(inputs("s", body))
    within = [{"resource_id": network}]
    rule_body = {"action": "allow", "direction": "ingress", "protocols": ["tcp"], "sources": within}
    rule_body |= {"destinations": within, "vpc_network_id": network}
    rule, _ = handler(lab, RULE).create(inputs("r", rule_body))
    partition, _ = handler(lab, PARTITION).create(inputs("p", {"ib_network_id": IB}))
    size = {"size": "100GiB", "type": "persistent-ssd", "location": LOCATION}
    disk, _ = handler(lab, DISK).create(inputs("d", size))
    attached = [{"disk_id": disk, "attachment_type": "data", "mode": "read-write"}]
    nodes = {
        "n-0": made(lab, "n-0", spec(subnet, partition, disks=attached)),
        "n-1": made(lab, "n-1", spec(subnet, partition)),
    }
    _, state = gang(lab).create({"name": "fleet", "instances": nodes})
    machines = state["machines"]
    assert {each["id"] for each in machines.values()} == {each["id"] for each in nodes.values()}
    assert len({each["address"] for each in machines.values()}) == 2
    assert len({each["public"] for each in machines.values()}) == 2
    (pod,) = {tuple(each["topology"]) for each in machines.values()}
    assert pod[0].startswith("pod-")
    for each in nodes.values():
        instances(lab).delete(each["id"], {})
    for kind, resource in ((DISK, disk), (PARTITION, partition), (RULE, rule), (SUBNET, subnet)):
        handler(lab, kind).delete(resource, {})
    handler(lab, NETWORK).delete(network, {})
    assert lab.cloud.everything() == {}
    handler(lab, NETWORK).delete(network, {})  # what is gone is no error
    assert handler(lab, NETWORK).read(network, {}) is None


@pytest.mark.parametrize("code", ["ANSWER_LOST", "503", "429"])
@pytest.mark.parametrize("kind", ["instance", "ib-partition", "disk"])
def test_a_create_without_an_answer_makes_one(lab: Lab, kind: str, code: str) -> None:
    subnet, partition = lab.subnet(), lab.partition()
    lab.cloud.turn(failures=(Failure(code=code, action=f"create {kind}", at=lab.cloud.calls[-1].number + 2),))
    before = lab.asked(f"create {kind}")
    if kind == "instance":
        resource = made(lab, "n", spec(subnet, partition))["id"]
    elif kind == "disk":
        size = {"size": "100GiB", "type": "persistent-ssd", "location": LOCATION}
        resource, _ = handler(lab, DISK).create(inputs("d", size))
    else:
        resource, _ = handler(lab, PARTITION).create(inputs("p", {"ib_network_id": IB}))
    assert lab.asked(f"create {kind}") - before == (1 if code == "ANSWER_LOST" else 2)
    others = {partition} if kind == "ib-partition" else set[str]()
    assert set(lab.cloud.things(kind)) - others == {resource}


def test_names_tell_whose_it_is_and_what_was_asked_for(lab: Lab) -> None:
    body = {"ib_network_id": IB}
    first, _ = handler(lab, PARTITION).create(inputs("p", body))
    assert handler(lab, PARTITION).create(inputs("p", body))[0] == first  # what a killed call left
    assert handler(lab, PARTITION).create(inputs("p", body, mark="p/other/1"))[0] != first
    assert handler(lab, PARTITION).create(inputs("p", {"ib_network_id": f"{IB[:-1]}2"}))[0] != first
    assert lab.cloud.things("ib-partition")[first]["name"] == cloud_name("p", MARK, body, most=63)


def test_of_two_by_one_name_the_younger_goes(lab: Lab) -> None:
    body = spec(lab.subnet(), lab.partition())
    name = cloud_name("n", MARK, body)
    lab.cloud.turn(clock=1_000.0)
    first = lab.instance(name, body)
    lab.cloud.turn(clock=2_000.0)
    lab.instance(name, body)
    assert made(lab, "n", body) == {"id": first, "operation": ""}
    while len(lab.cloud.instances()) > 1:
        list(lab.client.all(INSTANCE))
    assert list(lab.cloud.instances()) == [first]


def test_one_that_is_out_of_stock_ends_the_wait_for_all(lab: Lab) -> None:
    lab.cloud.turn(capacity={H200: 1})
    body = spec(lab.subnet(), lab.partition())
    nodes = {f"n-{number}": made(lab, f"n-{number}", body) for number in range(2)}
    with pytest.raises(CrusoeRefused, match="cannot bring n-1 up") as refused:
        gang(lab).create({"name": "fleet", "instances": nodes})
    assert refused.value.category == "capacity"


def test_one_that_is_waited_for_alone_is_taken_back(lab: Lab) -> None:
    lab.cloud.turn(capacity={H200: 0})
    body = spec(lab.subnet(), lab.partition())
    with pytest.raises(CrusoeRefused) as refused:
        instances(lab).create(machine("n", body, waits=True))
    assert refused.value.category == "capacity"
    assert lab.cloud.instances() == {}


def test_a_quota_stops_at_once(lab: Lab) -> None:
    lab.cloud.turn(quotas={"h200-141gb-sxm-ib": 8})
    body = spec(lab.subnet(), lab.partition())
    made(lab, "a", body)
    with pytest.raises(CrusoeRefused) as refused:
        made(lab, "b", body)
    assert refused.value.category == "quota"


def test_a_vm_that_is_off_is_drift_and_is_made_anew(lab: Lab) -> None:
    wanted = machine("n", spec(lab.subnet(), lab.partition()), status="running")
    resource, state = instances(lab).create(wanted)
    gang(lab).create({"name": "g", "instances": {"n": {"id": resource, "operation": state["operation"]}}})
    seen = instances(lab).read(resource, wanted)
    assert seen is not None
    assert differences(instances(lab), {**wanted, **state, **seen}, wanted) == []
    lab.cloud.lose_host(resource)
    seen = instances(lab).read(resource, wanted)
    assert seen is not None
    (drift,) = differences(instances(lab), {**wanted, **state, **seen}, wanted)
    assert (drift.path, drift.replaces, drift.drifted) == ("status", True, True)


def test_a_project_that_does_not_answer_is_a_value_when_it_is_read(lab: Lab) -> None:
    partition = lab.partition()
    lab.cloud.turn(denied=("get ib-partition",))
    seen = handler(lab, PARTITION).read(partition, {})
    assert seen is not None
    assert seen[OBSERVED]["reachable"] is False
    assert "does not let these credentials" in seen[OBSERVED]["reason"]


# The startup script


def test_a_startup_script_is_plain_text_and_the_same_twice() -> None:
    script = startup_script(CONFIG)
    assert script == startup_script(CONFIG)
    assert script.isascii()
    assert script.startswith("#!/bin/bash\n")
    assert "hostnamectl set-hostname lab-0" in script


def test_what_it_unpacks_is_what_the_config_says() -> None:
    config = machine_config(startup_script(CONFIG)).encode()
    assert file_of(config, "/etc/motd") == "it's ümlaut".encode()
    assert file_of(config, "/root/.ssh/authorized_keys") == b"ssh-ed25519 CLIENT\n"
    assert file_of(config, "/etc/ssh/ssh_host_ed25519_key") == b"PRIVATE\n"
    assert keys_of(config) is None  # PRIVATE is no key


def test_it_does_its_work_once_and_again_when_it_was_cut_short(tmp_path: Path) -> None:
    """Run by bash, with what it calls of the system replaced, below a folder instead of /."""
    root, tools = tmp_path / "root", tmp_path / "bin"
    for folder in ("var/lib/orch", "var/log", "etc/ssh", "root/.ssh"):
        (root / folder).mkdir(parents=True)
    tools.mkdir()
    for tool in ("systemctl", "hostnamectl"):
        path = tools / tool
        path.write_text(f'#!/bin/sh\necho {tool} "$@" >> {tmp_path}/called\n[ ! -e {tmp_path}/broken ]\n')
        path.chmod(0o755)
    text = startup_script(CONFIG)
    for name in ("/var/lib/orch", "/var/log", "/etc/ssh", "/root/.ssh"):
        text = text.replace(f"{name}", f"{root}{name}")
    text = text.replace(" -C /\n", f" -C {root}\n")
    (tmp_path / "script").write_text(text)

    def run() -> list[str]:
        (tmp_path / "called").write_text("")
        environment = {"PATH": f"{tools}:/usr/bin:/bin:/usr/sbin"}
        subprocess.run(["bash", str(tmp_path / "script")], env=environment, check=False)
        return (tmp_path / "called").read_text().splitlines()

    (root / "etc/ssh/ssh_host_rsa_key").write_text("of the image")
    (tmp_path / "broken").touch()
    assert run() == ["hostnamectl set-hostname lab-0"]  # cut short: a command of it fails
    (tmp_path / "broken").unlink()
    done = run()
    assert done[0] == "hostnamectl set-hostname lab-0"
    assert done[-1] == "systemctl enable --now orch-prepare.service"
    assert (root / "etc/motd").read_text() == "it's ümlaut"
    assert not (root / "etc/ssh/ssh_host_rsa_key").exists()
    (root / "etc/motd").write_text("changed since")
    assert run() == []
    assert (root / "etc/motd").read_text() == "changed since"
