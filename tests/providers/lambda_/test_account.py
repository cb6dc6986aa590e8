"""The client, names, and the simulated account as the published rules have it."""

from __future__ import annotations

import time

import pytest
from kit.clouds.lambda_lab import H100, QUICK, REGION, Lab, spec
from kit.clouds.strangers import answering

from orch.components.cloud.rest.client import MOST_PAUSE_S
from orch.components.cloud_errors import CloudRefused
from orch.components.lambda_.account.client import FILE_SYSTEM, INSTANCE, LambdaClient, Pace, lets_in
from orch.components.lambda_.account.errors import ERRORS, LambdaRefused, category
from orch.components.lambda_.account.facts import Lookups
from orch.components.lambda_.account.login import Login, open_login
from orch.components.marks.marked import cloud_name
from orch.rehearsal.scenario import Failure, Rate
from orch.spec.models.backends.lambda_ import LambdaSettings


@pytest.mark.parametrize(
    ("status", "code", "meaning"),
    [
        (400, "instance-operations/launch/insufficient-capacity", "capacity"),
        (400, "global/quota-exceeded", "quota"),
        (401, "global/invalid-api-key", "credentials"),
        (403, "global/account-inactive", "permission"),
        (403, "global/invalid-address", "permission"),
        (400, "global/invalid-parameters", "invalid"),
        (400, "instance-operations/launch/file-system-in-wrong-region", "invalid"),
        (404, "global/object-does-not-exist", "gone"),
        (400, "filesystems/filesystem-in-use", "conflict"),
        (400, "global/duplicate", "conflict"),
        (409, "global/internal-error", "transient"),
        (400, "provider/internal-unavailable", "transient"),
        (429, "", "rate"),
        (503, "", "transient"),
        (400, "something/new", "invalid"),
    ],
)
def test_an_error_is_of_a_category_by_its_code(status: int, code: str, meaning: str) -> None:
    assert category(status, code) == meaning


def test_a_wrong_key_is_told(lab: Lab) -> None:
    client = LambdaClient(Login("other", lab.url), **QUICK)
    with pytest.raises(LambdaRefused) as refused:
        client.all(INSTANCE)
    client.close()
    assert (refused.value.category, refused.value.code) == ("credentials", "ORCH303")
    assert "global/invalid-api-key" in str(refused.value.detail)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("LAMBDA_API_KEY", "", "there are no credentials of Lambda"),
        ("LAMBDA_API_KEY", "k\u00e9y\n", "the API key of Lambda does not read"),
        ("LAMBDA_API_ENDPOINT", "cloud.lambda.ai", "the address of Lambda's API does not read"),
    ],
)
def test_a_login_that_cannot_be_one_is_told_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv("LAMBDA_API_KEY", "secret_abc.def")
    monkeypatch.delenv("LAMBDA_API_ENDPOINT", raising=False)
    assert open_login(LambdaSettings()).url.startswith("https://")
    monkeypatch.setenv(name, value)
    with pytest.raises(CloudRefused, match=words) as refused:
        open_login(LambdaSettings())
    assert refused.value.code == "ORCH303"
    assert name in (refused.value.hint or "")


def test_a_read_is_tried_again_and_a_change_is_one_call(lab: Lab) -> None:
    lab.cloud.turn(failures=(Failure(code="503", action="listInstanceTypes", nth=1),))
    assert REGION in lab.client.stock()[H100].regions
    assert lab.asked("listInstanceTypes") == 2
    lab.cloud.turn(failures=(Failure(code="503", action="launchInstance", nth=1),))
    with pytest.raises(LambdaRefused) as refused:
        lab.instance("a", spec(lab.key()))
    assert refused.value.category == "transient"
    assert lab.asked("launchInstance") == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, "<html>"),
        (200, "[]"),
        (200, ""),
        (200, '{"data": null}'),
        (302, ""),
        (404, "<html>"),
        (400, "no"),
    ],
)
def test_what_is_not_the_api_tells_nothing_of_resources(status: int, body: str) -> None:
    """That an instance is gone is believed of the API alone: it would be made once more, and never ended."""
    with answering(status, body) as url:
        client = LambdaClient(Login("k", url), **QUICK)
        for ask in (
            client.stock,
            client.rules,
            lambda: client.all(INSTANCE),
            lambda: client.get(INSTANCE, "i"),
            lambda: client.remove(INSTANCE, "i", for_s=0),
            lambda: client.launch({"name": "a"}),
        ):
            with pytest.raises(LambdaRefused) as refused:
                ask()
            assert (refused.value.category, refused.value.code) == ("transient", "ORCH358")
            assert refused.value.where == url
            assert "LAMBDA_API_ENDPOINT names another" in str(refused.value.hint)
        client.close()


def test_where_nothing_listens_that_is_told() -> None:
    client = LambdaClient(Login("k", "http://127.0.0.1:9/api/v1"), **QUICK)
    with pytest.raises(LambdaRefused) as refused:
        client.stock()
    client.close()
    assert refused.value.where == "http://127.0.0.1:9/api/v1"
    assert "refused" in str(refused.value.detail)


def test_calls_and_launches_keep_their_distance(lab: Lab) -> None:
    """As the API asks: one call, and one launch, in so many seconds."""
    pace = {"pause_s": 0.01, "call_every_s": 0.1, "launch_every_s": 0.5}
    client, key = LambdaClient(Login(lab.cloud.api_key, lab.url), **pace), lab.key()
    began = time.monotonic()
    for number in range(3):
        client.launch({"name": f"n-{number}", **spec(key)})
    assert time.monotonic() - began >= 1.0
    began = time.monotonic()
    for _ in range(4):
        client.rules()
    assert time.monotonic() - began >= 0.3
    client.close()


def test_a_launch_that_waited_for_other_calls_keeps_the_next_one_away() -> None:
    """Its distance counts from the call itself, not from when its turn among launches came."""
    calls, launches = Pace(0.3), Pace(0.2)
    calls.wait()
    launches.wait(then=calls)
    began = time.monotonic()
    launches.wait(then=Pace(0.0))
    assert time.monotonic() - began >= 0.15


def test_what_is_asked_too_fast_is_refused(lab: Lab) -> None:
    lab.cloud.turn(rate={"launchInstance": Rate(burst=1, per_second=0.0001)})
    key = lab.key()
    lab.instance("a", spec(key))
    with pytest.raises(LambdaRefused) as refused:
        lab.instance("b", spec(key))
    assert refused.value.category == "rate"


def test_who_is_asked_to_wait_comes_through_when_others_ask_too(lab: Lab) -> None:
    """A change of the rules is two calls: the first must not take what the second waits for, again and
    again."""
    pace = {"pause_s": 0.05, "call_every_s": 0.0, "launch_every_s": 0.0}
    client, key = LambdaClient(Login(lab.cloud.api_key, lab.url), **pace), lab.key()
    lab.cloud.turn(rate={"*": Rate(burst=1, per_second=4.0), "launchInstance": Rate(burst=1, per_second=2.0)})
    rule = {"protocol": "tcp", "port_range": [22, 22], "source_network": "192.0.2.0/24", "description": "r"}
    client.change_rules(lambda rules: [*rules, rule] if rule not in rules else list(rules), for_s=60)
    assert rule in lab.cloud.rules()
    for name in ("a", "b"):
        client.launch({"name": name, **spec(key)}, for_s=60)
    client.close()
    assert sorted(doc["name"] for doc in lab.cloud.instances().values()) == ["a", "b"]


def test_calls_that_are_asked_to_wait_keep_away_and_come_nearer_again() -> None:
    pace = Pace(0.1)
    for gap_s in (0.2, 0.4, 0.8):
        pace.slower(0.05)
        assert pace.gap_s == gap_s
    for _ in range(60):
        pace.slower(0.05)
    assert pace.gap_s == MOST_PAUSE_S
    for _ in range(60):
        pace.faster()
    assert pace.gap_s == 0.1
    at_once = Pace(0.0)
    at_once.slower(0.05)
    assert at_once.gap_s == 0.05


def test_capacity_and_quota_are_of_the_account(lab: Lab) -> None:
    key = lab.key()
    lab.cloud.turn(capacity={f"{H100}@{REGION}": 1}, quotas={"instances": 2})
    lab.instance("a", spec(key))
    assert REGION not in lab.client.stock()[H100].regions
    with pytest.raises(LambdaRefused) as refused:
        lab.instance("b", spec(key))
    assert refused.value.category == "capacity"
    error = ERRORS.read(refused.value.text())
    assert error is not None
    assert error.verdict == "next"
    lab.instance("b", spec(key, region_name="us-west-1"))
    with pytest.raises(LambdaRefused) as refused:
        lab.instance("c", spec(key, region_name="us-west-1"))
    assert refused.value.category == "quota"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ssh_key_names": []}, "at least 1 item"),
        ({"ssh_key_names": ["key", "other"]}, "at most 1 item"),
        ({"ssh_key_names": ["nobodys"]}, "SSH key nobodys does not exist"),
        ({"quantity": 2}, "Extra inputs are not permitted"),
        ({"image": {"family": "windows"}}, "Image does not exist"),
        ({"tags": [{"key": "Team", "value": "a"}]}, "tags.0.key"),
        ({"user_data": "x" * 1_000_001}, "user_data"),
        ({"instance_type_name": "gpu_9x_h100"}, "gpu_9x_h100"),
    ],
)
def test_what_an_instance_cannot_be_is_refused(lab: Lab, change: dict[str, object], said: str) -> None:
    body = {**spec(lab.key()), **change}
    with pytest.raises(LambdaRefused) as refused:
        lab.instance("a", body)
    assert said in str(refused.value.detail)


def test_a_file_system_is_of_a_region_and_in_use_until_its_instance_is_gone(lab: Lab) -> None:
    here, there = lab.file_system(), lab.file_system("far", "us-west-1")
    key = lab.key()
    mount = {"file_system_id": there, "mount_point": "/data/x"}
    with pytest.raises(LambdaRefused) as refused:
        lab.instance("a", spec(key, file_system_mounts=[mount]))
    assert refused.value.category == "invalid"
    mounts = [{"file_system_id": here, "mount_point": "/data/x"}]
    resource = lab.instance("a", spec(key, file_system_mounts=mounts))
    with pytest.raises(LambdaRefused) as refused:
        lab.client.delete(FILE_SYSTEM, here)
    assert refused.value.category == "conflict"
    lab.client.remove(INSTANCE, resource, for_s=30)
    assert lab.cloud.instances() == {}
    lab.client.remove(FILE_SYSTEM, here, for_s=30)
    assert [each.name for each in lab.client.file_systems()] == ["far"]


def test_facts_tell_what_a_plan_asks(lab: Lab) -> None:
    lab.file_system()
    facts = lab.client.facts(Lookups(H100, REGION, "lambda-stack", "x86", ["data", "gone"]))
    assert facts.image is not None
    assert facts.image.words == "lambda-stack-24-04 24.4.2"
    assert list(facts.file_systems) == ["data"]
    assert facts.ssh_from == ("0.0.0.0/0",)
    arm = lab.client.facts(Lookups("gpu_1x_gh200", REGION, "lambda-stack", "arm", []))
    assert arm.image is not None
    assert arm.image.id != facts.image.id
    pinned = lab.client.facts(Lookups(H100, REGION, facts.image.id, "x86", []))
    assert pinned.image == facts.image


def test_rules_that_orch_made_for_a_fleet_are_not_the_accounts(lab: Lab) -> None:
    """They go with their fleet, or when it names other networks: nobody can count on them."""
    name = cloud_name("lab-ssh", "p/lab/abc123", {}, most=64)
    own = {"protocol": "tcp", "port_range": [22, 22], "source_network": "198.51.100.0/24"}
    lab.cloud.put_rules([{**own, "description": name}])
    asked = Lookups(H100, REGION, "lambda-stack", "x86", [])
    assert lab.client.facts(asked).ssh_from == ()
    lab.cloud.put_rules([{**own, "description": name}, {**own, "description": "office"}])
    assert lab.client.facts(asked).ssh_from == ("198.51.100.0/24",)


def test_a_rule_is_about_ports() -> None:
    assert lets_in({"protocol": "all", "port_range": [1, 65535]}, 22)
    assert lets_in({"protocol": "tcp", "port_range": [20, 30]}, 22)
    assert not lets_in({"protocol": "tcp", "port_range": [443, 443]}, 22)
    assert not lets_in({"protocol": "udp", "port_range": [22, 22]}, 22)
    assert not lets_in({"protocol": "icmp"}, 22)
