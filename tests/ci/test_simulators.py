"""What the simulated forges answer, and what is asked of them, is held against published descriptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kit.clouds.openapi import GITHUB, GITLAB, Exchange
from kit.forges.forges import BOT, GitHubServer

REPO = "/repos/acme/cluster"
COMMENTS = f"{REPO}/issues/5/comments"
ANSWER = GitHubServer(url="http://127.0.0.1").add_comment(5, BOT, "hello")
POSTED = Exchange("POST", COMMENTS, {}, {"body": "hello"}, 201, ANSWER)
CHECK = {"name": "orch", "head_sha": "a" * 40, "output": {"title": "x", "summary": "y"}}


def test_what_is_as_described_passes() -> None:
    assert GITHUB.problems(POSTED) == []
    listed = Exchange("GET", COMMENTS, {"per_page": "100", "page": "2"}, None, 200, [ANSWER])
    assert GITHUB.problems(listed) == []


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"path": f"{REPO}/issues/5/remarks"}, "is not described"),
        ({"method": "PUT"}, "is not described"),
        ({"query": {"size": "3"}}, "query size is not described"),
        ({"body": None}, "body: None is not of type 'object'"),
        ({"body": {"text": "hello"}}, "'body' is a required property"),
        ({"body": {"body": 7}}, "7 is not"),
        ({"body": {"body": "x", "colour": "red"}}, "body['colour'] is not described"),
        ({"status": 200}, "status 200 is not described"),
        ({"answer": {**ANSWER, "id": "7"}}, "answer 201['id']: '7' is not of type 'integer'"),
        ({"answer": {**ANSWER, "author": "ada"}}, "answer 201['author'] is not described"),
        ({"answer": {**ANSWER, "user": {"login": "ada"}}}, "answer 201['user']"),
        ({"answer": {name: ANSWER[name] for name in ANSWER if name != "node_id"}}, "'node_id' is a required"),
        ({"status": 422, "answer": {"message": "no"}}, "'documentation_url' is a required property"),
        ({"status": 401, "answer": {"message": 7}}, "7 is not of type 'string'"),
    ],
)
def test_each_difference_is_told(more: dict[str, Any], told: str) -> None:
    assert told in "\n".join(GITHUB.problems(replace(POSTED, **more)))


def test_limits_are_those_of_the_description() -> None:
    row = {"path": "a", "start_line": 1, "end_line": 1, "annotation_level": "failure", "message": "m"}

    def problems(**output: Any) -> str:
        body = {**CHECK, "output": {**CHECK["output"], **output}}  # type: ignore[dict-item]
        return "\n".join(GITHUB.problems(Exchange("POST", f"{REPO}/check-runs", {}, body, 401, {})))

    assert problems(annotations=[row] * 50) == ""
    assert "annotations" in problems(annotations=[row] * 51)
    assert "summary" in problems(summary="x" * 65_536)
    assert "annotation_level" in problems(annotations=[{**row, "annotation_level": "error"}])


def test_names_and_types_of_gitlab_are_its_client_s() -> None:
    notes = "/api/v4/projects/group%2Fcluster/merge_requests/5/notes"
    answer = {"id": 1, "body": "x", "author": {"username": "ada"}, "system": False}
    posted = Exchange("POST", notes, {}, {"body": "x"}, 201, answer)
    assert GITLAB.problems(posted) == []
    for more, told in (
        ({"body": {"text": "x"}}, "body['text'] is not described"),
        ({"body": {"body": 7}}, "7 is not"),
        ({"answer": {**answer, "login": "ada"}}, "answer 201['login'] is not described"),
        (
            {"answer": {**answer, "author": {"login": "ada"}}},
            "answer 201['author']['login'] is not described",
        ),
        ({"answer": {**answer, "id": "1"}}, "is not of type"),
        ({"query": {"ordered": "up"}}, "query ordered is not described"),
        ({"status": 200}, "status 200 is not described"),
    ):
        assert told in "\n".join(GITLAB.problems(replace(posted, **more)))


def test_a_test_in_which_an_answer_is_not_as_described_fails() -> None:
    def asks() -> None:
        with GitHubServer().running() as server:
            assert isinstance(server, GitHubServer)
            server.add_pull(5, "a" * 40)
            del server.pulls[5]["node_id"]
            server.handled("GET", f"{REPO}/pulls/5", b"", "workflow")

    with pytest.raises(AssertionError, match="answer 200: 'node_id' is a required property"):
        asks()
