"""Answers that are none of the cloud's which was asked, and lists that do not end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.clouds.strangers import HTML, JSON, PORTAL, answering, serving

from orch.catalog.aws.machines import unit_quota
from orch.components.aws.account import gather_facts
from orch.components.aws.account.client import RegionClient
from orch.components.aws.account.client_errors import pages
from orch.components.cloud.rest.client import RestClient
from orch.components.cloud_errors import CategoryRefused, CloudRefused
from orch.components.crusoe.account import client as crusoe
from orch.components.crusoe.account import login as crusoe_login
from orch.components.lambda_.account import client as lambda_
from orch.components.lambda_.account import login as lambda_login
from orch.components.runpod.account import client as runpod
from orch.runner.kubernetes.errors import NotFound, ServerError
from orch.runner.kubernetes.refusals import Asked, refusal, status_document
from orch.spec import cursors
from orch.spec.cursors import follow
from orch.spec.models.backends.aws import AwsSettings

Get = Callable[[Any], Any]
Make = Callable[[str], RestClient]

PACE = {"pause_s": 0.0, "call_every_s": 0.0, "launch_every_s": 0.0}
CLOUDS: dict[str, tuple[Make, Get, str]] = {
    "crusoe": (
        lambda url: crusoe.CrusoeClient(crusoe_login.Login("AK", "c2VjcmV0", "p", f"{url}/v1"), pause_s=0.0),
        lambda client: client.get(crusoe.INSTANCE, "vm-1"),
        '{"code": "404", "message": "not_found: instance not found"}',
    ),
    "lambda": (
        lambda url: lambda_.LambdaClient(lambda_login.Login("key", f"{url}/api/v1"), **PACE),
        lambda client: client.get(lambda_.INSTANCE, "i-1"),
        '{"error": {"code": "global/object-does-not-exist", "message": "It does not exist."}}',
    ),
    "runpod": (
        lambda url: runpod.RunpodClient(runpod.Login("key", url), pause_s=0.0),
        lambda client: client.get(runpod.POD, "p-1"),
        '{"title": "Not Found", "status": 404, "detail": "pod not found"}',
    ),
}
STRANGERS = {
    "empty": ("", JSON),
    "captive portal": (PORTAL, HTML),
    "any object": ("{}", JSON),
    "Kong": ('{"message": "no Route matched with those values"}', JSON),
    "Spring": ('{"timestamp": 1, "status": 404, "error": "Not Found", "path": "/v1"}', JSON),
    "gRPC gateway": ('{"code": 5, "message": "Not Found", "details": []}', JSON),
    "plain": ('{"error": "not found"}', JSON),
    "nested": ('{"error": {"code": 404, "message": "not found"}}', JSON),
}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_what_the_clouds_own_document_says_is_gone_is_gone(cloud: str) -> None:
    make, get, own = CLOUDS[cloud]
    with answering(404, own) as url:
        assert get(make(url)) is None


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_nothing_is_gone_because_a_stranger_answers_404(cloud: str, stranger: str) -> None:
    make, get, _ = CLOUDS[cloud]
    body, kind = STRANGERS[stranger]
    with answering(404, body, kind) as url:
        with pytest.raises(CategoryRefused) as refused:
            get(make(url))
        assert (refused.value.code, refused.value.category) == ("ORCH358", "transient")
        assert str(refused.value.where).startswith(url)


def test_an_operation_of_crusoe_has_not_ended_because_a_stranger_answers_403() -> None:
    make, _, _ = CLOUDS["crusoe"]
    own = '{"code": "403", "message": "unauthorized"}'
    with answering(403, own) as url:
        client: Any = make(url)
        assert client.operation(crusoe.INSTANCE, "op-1", "wait") is True
    with answering(403, PORTAL, HTML) as url:
        client = make(url)
        with pytest.raises(CategoryRefused) as refused:
            client.operation(crusoe.INSTANCE, "op-1", "wait")
    assert refused.value.code == "ORCH358"


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(("status", "kind"), [(200, HTML), (302, HTML), (500, HTML), (503, HTML)])
def test_a_page_in_the_place_of_a_rest_api_is_told_with_the_address(
    cloud: str, status: int, kind: str
) -> None:
    make, get, _ = CLOUDS[cloud]
    with answering(status, PORTAL, kind) as url:
        with pytest.raises(CategoryRefused) as refused:
            get(make(url))
        assert refused.value.code == "ORCH358"
        assert str(refused.value.where).startswith(url)


@pytest.mark.parametrize(
    ("body", "gone"),
    [
        ('{"kind": "Status", "reason": "NotFound", "code": 404, "details": {"name": "p"}}', True),
        ("404 page not found\n", True),
        ('{"message": "no Route matched with those values"}', False),
        (PORTAL, False),
    ],
)
def test_a_404_of_kubernetes_is_an_api_servers(body: str, gone: bool) -> None:
    error = refusal(Asked("GET", "/api/v1/pods", "lab"), 404, status_document(body.encode()))
    assert isinstance(error, NotFound) is gone
    assert isinstance(error, ServerError) is not gone


# -- lists that do not end ---------------------------------------------------------------------------------


def test_cursors_that_come_again_or_never_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(*answers: str) -> list[str]:
        given: Iterator[str] = iter(answers)
        return list(follow(lambda cursor: cursor, lambda page: next(given), ValueError))

    assert walk("a", "b", "") == ["", "a", "b"]
    for loop in (("a", "a"), ("a", "b", "a")):
        with pytest.raises(ValueError, match="cursor of an earlier one"):
            walk(*loop)
    monkeypatch.setattr(cursors, "MOST_PAGES", 3)
    with pytest.raises(ValueError, match="more than 3 pages"):
        walk("a", "b", "c", "d", "")


ENDLESS: dict[str, tuple[Get, Callable[[int], dict[str, Any]]]] = {
    "crusoe": (
        lambda client: list(client.all(crusoe.INSTANCE)),
        lambda number: {"items": [], "next_token": "ab"[number % 2]},
    ),
    "runpod": (
        lambda client: client.all(runpod.POD),
        lambda number: {"pods": [], "pagination": {"nextCursor": "ab"[number % 2]}},
    ),
}


@pytest.mark.parametrize("cloud", ENDLESS)
def test_a_rest_cloud_that_goes_in_circles_is_told_with_its_address(cloud: str) -> None:
    walk, page = ENDLESS[cloud]
    calls: list[str] = []

    def answer(path: str, headers: object, body: str) -> tuple[int, str, str]:
        calls.append(path)
        return 200, JSON, json.dumps(page(len(calls)))

    with serving(answer) as url:
        with pytest.raises(CategoryRefused, match="list") as refused:
            walk(CLOUDS[cloud][0](url))
        assert (refused.value.code, str(refused.value.where).startswith(url)) == ("ORCH358", True)
    assert len(calls) == 3


# -- AWS ---------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore's pauses before it tries again."""
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)


def region(url: str) -> RegionClient:
    creds = {"type": "access_key", "access_key": "AKIA", "secret_key": "s"}
    settings = AwsSettings.model_validate({"creds": creds, "endpoint_url": url})
    return RegionClient(gather_facts.open_session(settings), "us-east-1", url)


CALLS: dict[str, Callable[[RegionClient], object]] = {
    "EC2": lambda client: client.zones(),
    "STS": lambda client: client.caller(),
    "service-quotas": lambda client: client._quota(unit_quota("address"), 0),
}


@pytest.mark.parametrize("service", CALLS)
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, PORTAL, HTML),
        (200, "<html><body><p>Log in</p></body></html>", HTML),
        (302, PORTAL, HTML),
        (403, PORTAL, HTML),
        (404, "<html><body>none</body></html>", HTML),
        (500, PORTAL, HTML),
        (502, "<html><head><title>502 Bad Gateway</title></head></html>", HTML),
        (503, "upstream connect error", "text/plain"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_a_page_in_the_place_of_aws_is_told_with_the_address(
    service: str, status: int, body: str, kind: str
) -> None:
    with answering(status, body, kind) as url:
        with pytest.raises(CloudRefused) as refused:
            CALLS[service](region(url))
        assert (refused.value.code, refused.value.where) == ("ORCH358", url)


@pytest.mark.usefixtures("quick")
def test_a_list_of_ec2_that_goes_in_circles_ends() -> None:
    calls: list[str] = []

    def answer(path: str, headers: object, body: str) -> tuple[int, str, str]:
        calls.append(body)
        token = f"<nextToken>{'ab'[len(calls) % 2]}</nextToken>"
        return 200, "text/xml", f"<DescribeTagsResponse><tagSet/>{token}</DescribeTagsResponse>"

    with serving(answer) as url, pytest.raises(CloudRefused, match="does not end") as refused:
        list(pages(region(url).client("ec2"), "describe_tags", "Tags"))
    assert (refused.value.code, len(calls)) == ("ORCH358", 3)
