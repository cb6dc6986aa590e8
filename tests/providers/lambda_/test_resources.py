"""Resources of Lambda as the engine asks for them: made, found again, drifted, deleted, waited for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.lambda_lab import H100, QUICK, REGION, Lab, spec

from orch.components.cloud_errors import CloudRefused
from orch.components.lambda_.account.client import TAG, LambdaClient
from orch.components.lambda_.account.errors import LambdaRefused
from orch.components.lambda_.account.login import Login
from orch.components.lambda_.plugin import (
    FileSystemHandler,
    FirewallHandler,
    InstanceHandler,
    LambdaGang,
    SshKeyHandler,
)
from orch.components.marks.marked import Survey, cloud_name
from orch.components.marks.orphans import RecordedResource, StackSnapshot, delete_named, survey_named
from orch.providers.orch.handler import OBSERVED, differences
from orch.rehearsal.lambda_.api.resources import USUAL
from orch.rehearsal.scenario import Failure
from orch.spec.errors import ExitCode

MARK = "p/s/abc123"
SSH = {"protocol": "tcp", "port_range": [22, 22], "source_network": "198.51.100.0/24"}
FASTEST = {"pause_s": 0.01, "settle_s": 0.05}


def inputs(name: str, body: dict[str, Any], mark: str = MARK, **more: Any) -> dict[str, Any]:
    return {"name": name, "mark": mark, "spec": body, **more}


def machine(name: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return inputs(name, body, user_data="#cloud-config\n", **more)


def instances(lab: Lab) -> InstanceHandler:
    return InstanceHandler(lambda: lab.client, **FASTEST)


def firewall(lab: Lab, client: LambdaClient | None = None) -> FirewallHandler:
    return FirewallHandler(lambda: client or lab.client, **FASTEST)


def rules(name: str, *sources: str, mark: str = MARK) -> dict[str, Any]:
    return inputs(name, {"rules": [{**SSH, "source_network": each} for each in sources]}, mark)


def test_a_fleet_is_made_with_what_it_stands_on_and_goes_again(lab: Lab) -> None:
    keys, disks = (kind(lambda: lab.client, **FASTEST) for kind in (SshKeyHandler, FileSystemHandler))
    key, state = keys.create(inputs("lab-key", {"public_key": "ssh-ed25519 AAAA"}))
    disk, _ = disks.create(inputs("lab-fs", {"region": REGION}))
    body = spec(state["key_name"], file_system_mounts=[{"file_system_id": disk, "mount_point": "/data/a"}])
    nodes = {f"lab-{n}": instances(lab).create(machine(f"lab-{n}", body))[0] for n in range(2)}
    gang = LambdaGang(lambda: lab.client, pause_s=0.01)
    _, waited = gang.create({"name": "g", "instances": nodes})
    machines = waited["machines"]
    assert {node: each["id"] for node, each in machines.items()} == nodes
    assert len({each["address"] for each in machines.values()}) == 2
    assert len({each["public"] for each in machines.values()}) == 2
    docs = lab.cloud.instances().values()
    assert all({"key": TAG, "value": MARK} in doc["tags"] for doc in docs)
    for each in nodes.values():
        instances(lab).delete(each, {})
    disks.delete(disk, {})
    keys.delete(key, {})
    assert lab.cloud.everything() == {}
    keys.delete(key, {})  # what is gone is no error
    assert instances(lab).read(nodes["lab-0"], {}) is None


@pytest.mark.parametrize("code", ["ANSWER_LOST", "503", "429"])
@pytest.mark.parametrize("kind", ["instance", "ssh-key", "filesystem", "rules"])
def test_a_create_without_an_answer_makes_one(lab: Lab, kind: str, code: str) -> None:
    key = lab.key()
    call = {"instance": "launchInstance", "rules": "firewallRulesSet"}.get(kind, f"create {kind}")
    nth = lab.asked(call) + 1
    lab.cloud.turn(failures=(Failure(code=code, action=call, nth=nth),))
    if kind == "instance":
        resource, _ = instances(lab).create(machine("n", spec(key)))
    elif kind == "rules":
        resource, _ = firewall(lab).create(rules("r", "198.51.100.0/24"))
    elif kind == "ssh-key":
        handler = SshKeyHandler(lambda: lab.client, **FASTEST)
        resource, _ = handler.create(inputs("k", {"public_key": "k"}))
    else:
        resource, _ = FileSystemHandler(lambda: lab.client, **FASTEST).create(inputs("d", {"region": REGION}))
    assert lab.asked(call) - nth + 1 == (1 if code == "ANSWER_LOST" else 2)
    known = {each: word for each, word in lab.cloud.everything().items() if word == kind}
    others = [each for each, doc in lab.cloud.things("ssh-key").items() if doc["name"] == "key"]
    assert known.keys() - set(others) == {resource}


def test_names_tell_whose_it_is_and_what_was_asked_for(lab: Lab) -> None:
    body = spec(lab.key())
    first, _ = instances(lab).create(machine("n", body))
    assert instances(lab).create(machine("n", body))[0] == first  # what a killed call left
    assert instances(lab).create(machine("n", body, mark="p/other/abc123"))[0] != first
    assert instances(lab).create(machine("n", {**body, "region_name": "us-west-1"}))[0] != first
    assert lab.cloud.instances()[first]["name"] == cloud_name("n", MARK, body, most=64)


def test_of_two_by_one_name_one_goes(lab: Lab) -> None:
    body = spec(lab.key())
    made = {lab.instance(cloud_name("n", MARK, body, most=64), body) for _ in range(2)}
    kept, _ = instances(lab).create(machine("n", body))
    assert kept in made
    while len(lab.cloud.instances()) > 1:
        lab.client.rules()
        instances(lab).read(next(iter(made - {kept})), {})
    assert list(lab.cloud.instances()) == [kept]


def test_one_that_is_waited_for_alone_is_taken_back(lab: Lab) -> None:
    wanted = machine("n", spec(lab.key()), waits=True)
    lab.cloud.turn(pending_s=3600.0)
    handler, failed = instances(lab), []

    def create() -> None:
        try:
            handler.create(wanted)
        except LambdaRefused as refused:
            failed.append(refused.category)

    waiting = threading.Thread(target=create)
    waiting.start()
    while not lab.cloud.instances():
        waiting.join(0.05)
    lab.cloud.lose_host(next(iter(lab.cloud.instances())))
    waiting.join(60)
    assert failed == ["transient"]
    assert lab.cloud.instances() == {}


def test_capacity_and_quota_stop_at_once(lab: Lab) -> None:
    lab.cloud.turn(capacity={H100: 0})
    body = spec(lab.key())
    with pytest.raises(LambdaRefused) as refused:
        instances(lab).create(machine("n", body))
    assert refused.value.category == "capacity"
    lab.cloud.turn(capacity={}, quotas={"instances": 0})
    with pytest.raises(LambdaRefused) as refused:
        instances(lab).create(machine("n", body))
    assert refused.value.category == "quota"
    assert lab.asked("launchInstance") == 2


def test_an_unhealthy_instance_is_drift_and_is_made_anew(lab: Lab) -> None:
    wanted = machine("n", spec(lab.key()), status="active")
    resource, state = instances(lab).create(wanted)
    seen = instances(lab).read(resource, wanted)
    assert seen is not None
    assert differences(instances(lab), {**wanted, **state, **seen}, wanted) == []
    lab.cloud.lose_host(resource)
    seen = instances(lab).read(resource, wanted)
    assert seen is not None
    (drift,) = differences(instances(lab), {**wanted, **state, **seen}, wanted)
    assert (drift.path, drift.replaces, drift.drifted) == ("status", True, True)


def test_an_account_that_does_not_answer_is_a_value_when_it_is_read(lab: Lab) -> None:
    resource, _ = instances(lab).create(machine("n", spec(lab.key())))
    lab.cloud.turn(denied=("getInstance",))
    seen = instances(lab).read(resource, {})
    assert seen is not None
    assert seen[OBSERVED]["reachable"] is False
    assert "does not let these credentials" in seen[OBSERVED]["reason"]


# What a killed call left


def test_what_bears_a_mark_and_is_not_recorded_goes_and_file_systems_stay(lab: Lab) -> None:
    key, other = lab.key(), "p/other/abc123"
    keys, disks = (kind(lambda: lab.client, **FASTEST) for kind in (SshKeyHandler, FileSystemHandler))
    keys.create(inputs("s-key", {"public_key": "k"}))
    disk, _ = disks.create(inputs("s-fs", {"region": REGION}))
    kept, _ = instances(lab).create(machine("s-0", spec(key)))
    lost, _ = instances(lab).create(machine("s-1", spec(key)))
    theirs, _ = instances(lab).create(machine("other-0", spec(key), mark=other))
    ours, _ = firewall(lab).create(rules("s-ssh", "198.51.100.0/24"))
    others, _ = firewall(lab).create(rules("other-ssh", "198.51.100.0/24", mark=other))

    def price(kind: str, region: str, spot: bool) -> float | None:
        return 31.92

    def survey(project: str) -> Survey:
        return survey_named("lambda", project, lab.client.removable(price)).joined(
            lab.client.data_of(project)
        )

    found = survey("p")
    assert found.foreign == 0
    known = {each.id: (each.mark, each.kind, each.holds_data) for each in found.resources}
    assert known[disk] == (MARK, "file system", True)
    assert known[ours] == (MARK, "firewall rules", False)
    assert known[theirs] == (other, "instance", False)
    assert len(known) == 7
    assert survey("q").foreign == 7

    recorded = RecordedResource("orch-lambda:index:Instance", "s-0", kept, {"mark": MARK})
    snapshot = StackSnapshot((recorded,), ())
    said = list(delete_named(snapshot, "orch-lambda:", lambda: lab.client.removable(price)))
    assert len(said) == 3
    assert f"{ours} ({ours})" in said
    assert any(lost in each for each in said)
    assert {kept, theirs} == lab.cloud.instances().keys()
    assert others in {row["description"] for row in lab.cloud.rules()}
    assert list(lab.cloud.things("filesystem")) == [disk]


# Firewall rules


def test_rules_are_added_to_those_of_others_changed_and_taken_away_alone(lab: Lab) -> None:
    own = rules("lab-ssh", "198.51.100.0/24")
    name, _ = firewall(lab).create(own)
    assert lab.cloud.rules() == [*USUAL, {**SSH, "description": name}]
    strange = {"protocol": "udp", "port_range": [9, 9], "source_network": "192.0.2.7", "description": "mine"}
    lab.cloud.put_rules([*lab.cloud.rules(), strange])
    assert firewall(lab).create(own)[0] == name  # they are there
    other = rules("lab-ssh", "198.51.100.0/24", "203.0.113.0/24")
    firewall(lab).update(name, own, other)
    assert [each["source_network"] for each in lab.cloud.rules() if each["description"] == name] == [
        "198.51.100.0/24",
        "203.0.113.0/24",
    ]
    firewall(lab).delete(name, other)
    assert lab.cloud.rules() == [*USUAL, strange]
    firewall(lab).delete(name, other)


def test_rules_that_somebody_changed_are_drift(lab: Lab) -> None:
    own = rules("lab-ssh", "198.51.100.0/24")
    name, state = firewall(lab).create(own)
    seen = firewall(lab).read(name, own)
    assert seen is not None
    assert differences(firewall(lab), {**own, **state, **seen}, own) == []
    lab.cloud.put_rules([*USUAL, {**SSH, "source_network": "0.0.0.0/0", "description": name}])
    seen = firewall(lab).read(name, own)
    assert seen is not None
    (drift,) = differences(firewall(lab), {**own, **state, **seen}, own)
    assert (drift.path, drift.replaces, drift.drifted) == ("spec", False, True)
    lab.cloud.put_rules(list(USUAL))
    assert firewall(lab).read(name, own) is None


def test_many_at_once_lose_none_of_each_others_rules(lab: Lab) -> None:
    """Each with a client of its own, as the providers of several fleets have."""
    clients = [LambdaClient(Login(lab.cloud.api_key, lab.url), **QUICK) for _ in range(6)]
    names = [f"lab{number}-ssh" for number in range(6)]

    def each(act: str) -> None:
        threads = [
            threading.Thread(target=getattr(firewall(lab, client), act), args=args)
            for client, name in zip(clients, names, strict=True)
            for args in (
                [(rules(name, "198.51.100.0/24"),)]
                if act == "create"
                else [(cloud_name(name, MARK, {}, most=64), rules(name, "198.51.100.0/24"))]
            )
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    each("create")
    there = {row["description"] for row in lab.cloud.rules()}
    assert {cloud_name(name, MARK, {}, most=64) for name in names} <= there
    each("delete")
    assert lab.cloud.rules() == USUAL
    for client in clients:
        client.close()


def test_rules_that_another_machine_overwrote_are_put_again(lab: Lab) -> None:
    """Nobody locks an account for other machines: what was put is looked at, and put once more."""
    before = lab.cloud.rules()
    own = rules("lab-ssh", "198.51.100.0/24")
    call, lost = lab.client.call, []

    def other(what: str, method: str, path: str, **more: Any) -> Any:
        answer = call(what, method, path, **more)
        if method == "PUT" and not lost:
            lost.append(True)
            lab.cloud.put_rules(before)  # they had read before, and put after
        return answer

    lab.client.call = other  # type: ignore[method-assign]
    name, _ = firewall(lab).create(own)
    assert lost
    assert name in {row["description"] for row in lab.cloud.rules()}


def test_a_folder_for_the_lock_that_cannot_be_written_is_told(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(CloudRefused) as refused:
        firewall(lab).create(rules("lab-ssh", "198.51.100.0/24"))
    assert (refused.value.code, refused.value.exit_code) == ("ORCH307", ExitCode.PROVISION)
    assert refused.value.where == str(tmp_path / "cache")
    assert refused.value.detail == "File exists"
    assert "XDG_CACHE_HOME" in str(refused.value.hint)
    assert lab.cloud.rules() == USUAL
