"""Comments, checks and issues, on servers that speak the APIs of GitHub and GitLab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from kit.forges.forges import BOT, GitHubServer, GitLabServer, Server
from kit.support import Folder, Said

from orch.ci.comments import composed, marker_of, stale, sync_comment
from orch.ci.forge import ForgeBusy, ForgeError
from orch.ci.github import GitHub
from orch.ci.gitlab import GitLab
from orch.ci.pipeline import pipeline as of_environment
from orch.review.blocks import MOST_BYTES

HEAD, NEWER, BASE = "a" * 40, "c" * 40, "b" * 40
MARKER = "<!-- orch:plan v1 project=tests path=infra -->"
BODY = f"{MARKER}\n### ✅ changes: orch plan of tests infra\n\n2 to create.\n"


@pytest.fixture
def github() -> Iterator[GitHubServer]:
    with GitHubServer().running() as server:
        assert isinstance(server, GitHubServer)
        server.add_pull(5, HEAD)
        yield server


@pytest.fixture
def gitlab() -> Iterator[GitLabServer]:
    with GitLabServer().running() as server:
        assert isinstance(server, GitLabServer)
        server.add_request(5, HEAD)
        yield server


def actions(server: GitHubServer, folder: Folder, *words: str, **more: str) -> Said:
    """`orch ci` as a job of a workflow for pull request 5."""
    event = folder.path / "event.json"
    head, base = {"sha": HEAD, "ref": "change"}, {"sha": BASE, "ref": "main"}
    event.write_text(json.dumps({"pull_request": {"number": 5, "head": head, "base": base}}))
    environment = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_API_URL": server.url,
        "GITHUB_TOKEN": "workflow",
        "GITHUB_REPOSITORY": server.repo,
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_RUN_ID": "77",
        "GITHUB_REF": "refs/pull/5/merge",
        "GITLAB_CI": "",
        **more,
    }
    return folder.orch("ci", *words, env=environment)


def pipeline(server: GitLabServer, folder: Folder, *words: str, **more: str) -> Said:
    """`orch ci` as a job of a pipeline for merge request 5."""
    environment = {
        "GITLAB_CI": "true",
        "CI_SERVER_URL": server.url,
        "GITLAB_TOKEN": "project-token",
        "CI_PROJECT_ID": "7",
        "CI_MERGE_REQUEST_IID": "5",
        "CI_COMMIT_SHA": HEAD,
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
        **more,
    }
    return folder.orch("ci", *words, env=environment)


def write(folder: Folder, body: str) -> str:
    return folder.write("comment.md", body)


def test_a_comment_is_made_then_left_alone_then_updated(github: GitHubServer, folder: Folder) -> None:
    said = actions(github, folder, "comment", "--body-file", write(folder, BODY))
    assert (said.code, said.out) == (0, "pull request 5: posted\n"), said.err
    (made,) = github.comments[5]
    assert made["user"]["login"] == BOT
    assert made["body"].splitlines()[:3] == [
        MARKER,
        f"<!-- orch:commit head={HEAD} base={BASE} -->",
        "### ✅ changes: orch plan of tests infra",
    ]
    assert f"https://github.com/{github.repo}/actions/runs/77" in made["body"]
    github.calls.clear()
    assert (
        actions(github, folder, "comment", "--body-file", "comment.md").out == "pull request 5: unchanged\n"
    )
    assert github.writes() == []
    said = actions(github, folder, "comment", "--body-file", write(folder, BODY.replace("2", "3")), "--json")
    assert said.json == {"schema": 1, "comments": [{"number": 5, "done": "updated"}]}
    (made,) = github.comments[5]
    assert "3 to create" in made["body"]


def test_a_comment_is_found_on_the_third_page_and_only_its_author_s(
    github: GitHubServer, folder: Folder
) -> None:
    forged = github.add_comment(5, "mallory", BODY)
    for number in range(230):
        github.add_comment(5, "ada", f"{number}\n{MARKER}")
    github.add_comment(5, BOT, BODY.replace("path=infra", "path=other"))
    mine = github.add_comment(5, BOT, BODY)
    for number in range(40):
        github.add_comment(5, "ada", str(number))
    before = len(github.comments[5])
    said = actions(github, folder, "comment", "--body-file", write(folder, BODY.replace("2", "4")))
    assert said.out == "pull request 5: updated\n", said.err
    assert len(github.comments[5]) == before
    assert "4 to create" in mine["body"]
    assert forged["body"] == BODY
    assert [each.method for each in github.writes()] == ["PATCH"]


@pytest.mark.quick
@pytest.mark.parametrize("size", [100, 0], ids=["the same page for ever", "empty pages for ever"])
def test_a_list_that_does_not_end_is_an_error(
    github: GitHubServer, gitlab: GitLabServer, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    asked: list[str] = []

    def page(self: Any, path: str, query: dict[str, str], rows: list[Any]) -> tuple[int, Any, dict[str, str]]:
        asked.append(path)
        if len(asked) > 1_500:
            pytest.fail("it is asked for ever")
        return 200, rows[:size], {"Link": f'<{self.url}{path}?{urlencode({**query, "page": 2})}>; rel="next"'}

    github.add_comment(5, "ada", "hello")
    gitlab.add_note(5, "ada", "hello")
    monkeypatch.setattr(Server, "page", page)
    lists = (
        lambda: GitHub(github.repo, "workflow", github.url).comments(5),
        lambda: GitHub(github.repo, "workflow", github.url).pulls(),
        lambda: GitLab("7", "project-token", gitlab.url).comments(5),
        lambda: GitLab("7", "project-token", gitlab.url).pulls(),
    )
    # An empty page ends a list of GitHub's library.
    for each in lists if size else lists[2:]:
        asked.clear()
        with pytest.raises(ForgeError, match="the list does not end"):
            list(each())


def test_another_app_finds_its_own_comment_and_issue_too(github: GitHubServer, folder: Folder) -> None:
    github.logins["app"] = "cluster-app[bot]"
    tag = {"urn": "u", "name": "net", "path": "tags", "registered": "a", "observed": "b"}
    drift_json(folder, ("pool", [tag]))
    for number in (2, 4):
        write(folder, BODY.replace("2", str(number)))
        said = actions(github, folder, "comment", "--body-file", "comment.md", GITHUB_TOKEN="app")
        assert said.code == 0, said.err
        said = actions(github, folder, "drift-issue", "drift.json", GITHUB_TOKEN="app")
        assert said.code == 0, said.err
    (made,) = github.comments[5]
    assert made["user"]["login"] == "cluster-app[bot]"
    assert "4 to create" in made["body"]
    assert [each["number"] for each in github.issues.values() if each["state"] == "open"] == [6]


def test_doubles_are_deleted(github: GitHubServer, folder: Folder) -> None:
    first = github.add_comment(5, BOT, BODY)
    github.add_comment(5, BOT, BODY)
    assert actions(github, folder, "comment", "--body-file", write(folder, BODY)).code == 0
    assert github.comments[5] == [first]


@pytest.mark.parametrize(
    "text",
    [
        "€" * 70_000,
        "| a | b |\n" * 20_000,
        "```\n" + "x\n" * 70_000 + "```\n",
        "<details><summary>x</summary>\n\n" * 300 + "y\n" * 60_000 + "</details>\n" * 300,
        "🙂 @all\n" * 30_000,
    ],
    ids=["one line", "rows", "code", "folded", "emoji"],
)
def test_no_body_is_too_long_for_github(github: GitHubServer, folder: Folder, text: str) -> None:
    said = actions(github, folder, "comment", "--body-file", write(folder, BODY + text))
    assert said.code == 0, said.err
    (made,) = github.comments[5]
    body = made["body"]
    assert len(body.encode()) <= MOST_BYTES
    assert marker_of(body) == MARKER
    assert "**Shortened: the end is left out. Do not approve" in "\n".join(body.splitlines()[:6])
    assert body.count("<details") == body.count("</details>")
    assert sum(line.startswith("```") for line in body.splitlines()) % 2 == 0
    struck = stale(body, "main has moved")
    assert struck is not None
    assert len(struck.encode()) <= MOST_BYTES
    assert struck.count("<details") == struck.count("</details>")
    assert actions(github, folder, "comment", "--body-file", "comment.md").out.endswith("unchanged\n")


def test_a_stale_plan_is_struck_out_once_and_a_new_one_takes_its_place(
    github: GitHubServer, folder: Folder
) -> None:
    (folder.path / "infra").mkdir()
    actions(github, folder, "comment", "--body-file", write(folder, BODY))
    stale_words = ("comment", "--stale", "a newer commit, by @all", "--path", "infra")
    assert actions(github, folder, *stale_words, "--base-sha", "d" * 40).out == (
        "pull request 5: the plan is struck out\n"
    )
    (made,) = github.comments[5]
    lines = made["body"].splitlines()
    assert lines[0] == MARKER
    assert lines[3] == "### ~~✅ changes: orch plan of tests infra~~"
    assert "This plan is stale: a newer commit, by @&#8203;all." in lines[5]
    assert "2 to create." in lines[lines.index("<details><summary>The stale plan</summary>") :]
    github.calls.clear()
    assert actions(github, folder, *stale_words, "--base-sha", "d" * 40).out == ""
    assert github.writes() == []
    assert actions(github, folder, "comment", "--body-file", "comment.md").out.endswith("updated\n")
    assert "stale" not in github.comments[5][0]["body"]


def test_plans_onto_an_older_commit_are_struck_out_in_all_pull_requests(
    github: GitHubServer, folder: Folder
) -> None:
    new = "e" * 40
    for number in range(6, 140):
        github.add_pull(number, f"{number:040x}")
    github.add_pull(200, "f" * 40, base="release")
    old, current = composed(BODY, _footing("1" * 40, BASE)), composed(BODY, _footing(f"{7:040x}", new))
    for number, body in ((6, old), (7, current), (139, old), (200, old)):
        github.add_comment(number, BOT, body)
    said = actions(
        github,
        folder,
        *("comment", "--stale", "main has moved", "--all", "--base-sha", new, "--check", "orch plan infra"),
        "--json",
        GITHUB_EVENT_PATH="",
        GITHUB_REF="refs/heads/main",
    )
    assert said.json == {"schema": 1, "stale": [6, 139]}, said.err
    assert [check["head_sha"] for check in github.checks.values()] == [f"{6:040x}", f"{139:040x}"]
    assert {check["conclusion"] for check in github.checks.values()} == {"action_required"}


MERGED = "d" * 40
REFUSED = {
    "schema": 1,
    "plan": "0123456789ab",
    "exit_code": 9,
    "applied": [],
    "not_begun": ["fleet b"],
    "error": {
        "code": "ORCH393",
        "summary": "the plan of the fleet a is not what `up` would do now; nothing was changed",
        "where": "infra/a.yml:1",
        "detail": ["drift of a-0 tags.owner: as registered (ada) -> found @mallory"],
        "hint": "make a new plan, and have it approved",
    },
}


def told(github: GitHubServer, folder: Folder, data: Any, *words: str) -> Said:
    """`orch ci comment --result` as the job of the workflow that applies what was merged."""
    (folder.path / "infra").mkdir(exist_ok=True)
    folder.write("result.json", json.dumps(data))
    environment = {"GITHUB_EVENT_PATH": "", "GITHUB_REF": "refs/heads/main", "GITHUB_SHA": MERGED}
    words = ("comment", "--result", "result.json", "--path", "infra", *words)
    return actions(github, folder, *words, **environment)


def test_what_refused_an_apply_stands_above_the_plan_of_the_pull_request_that_was_merged(
    github: GitHubServer, folder: Folder
) -> None:
    assert actions(github, folder, "comment", "--body-file", write(folder, BODY)).code == 0
    said = told(github, folder, REFUSED)
    assert (said.code, said.out) == (0, "")
    assert "the commit dddddddddddd came with no pull request: nothing is posted" in said.err
    github.merge(5, MERGED)
    assert told(github, folder, REFUSED).out == "pull request 5: updated\n"
    (made,) = github.comments[5]
    lines = made["body"].splitlines()
    assert lines[0] == MARKER
    assert lines[3] == "### ⛔ apply refused: orch plan of tests infra"
    assert lines[5].startswith("**ORCH393: the plan of the fleet a is not what")
    assert lines[5].endswith("(infra/a.yml:1)")
    assert lines[7].startswith("- drift of a-0 tags.owner: as registered (ada)")
    assert "found @&#8203;mallory" in lines[7]
    assert "Not begun: fleet b." in lines
    fold = lines.index("<details><summary>The plan that was posted before</summary>")
    assert fold < lines.index("2 to create.") < lines.index("</details>")
    # As often as it is tried again there is one plan below.
    failed = {**REFUSED, "exit_code": 5, "applied": ["fleet a"], "error": {"summary": "no room"}}
    for data, words in ((REFUSED, "refused"), (failed, "failed")):
        assert told(github, folder, data).code == 0
        body = made["body"]
        assert body.splitlines()[3] == f"### ⛔ apply {words}: orch plan of tests infra"
        assert (body.count("2 to create."), body.count("<details>")) == (1, 1)
    assert "Applied: fleet a." in made["body"]
    done = {"schema": 1, "plan": "0123456789ab", "exit_code": 0, "applied": ["fleet a", "fleet b"]}
    assert told(github, folder, done, "--json").json["comments"] == [{"number": 5, "done": "updated"}]
    assert "### ✅ applied: orch plan of tests infra" in made["body"]
    assert told(github, folder, done).out == "pull request 5: unchanged\n"


def test_a_result_is_told_where_no_plan_was_posted_and_another_form_is_refused(
    github: GitHubServer, folder: Folder
) -> None:
    rows = [f"node p5-{number}: no change -> update ({'x' * 600})" for number in range(40)]
    data = {**REFUSED, "error": {**REFUSED["error"], "detail": rows}}
    assert told(github, folder, data, "--pr", "5").out == "pull request 5: posted\n"
    body = github.comments[5][0]["body"]
    assert "- … 20 more" in body
    assert len(body.encode()) < 20_000
    for bad in ({"schema": 1}, {"schema": 2, "exit_code": 0}, [], {"schema": 1, "exit_code": "x"}):
        said = told(github, folder, bad, "--pr", "5")
        assert (said.code, said.out) == (3, ""), bad
        assert "Traceback" not in said.err
    assert actions(github, folder, "comment", "--result", "none.json", "--path", "infra").code == 3


def test_the_pull_request_of_a_commit_and_whether_somebody_may_have_it_applied(
    github: GitHubServer, folder: Folder
) -> None:
    merge = github.pulls[5]["merge_commit_sha"]
    lines = f"owner=PR #5\nnumber=5\nhead={HEAD}\nmerge={merge}\n"
    assert actions(github, folder, "pull-request", "--pr", "5", "--by", "ada").out == lines
    on_main = {"GITHUB_EVENT_PATH": "", "GITHUB_REF": "refs/heads/main", "GITHUB_SHA": MERGED}
    assert actions(github, folder, "pull-request", **on_main).out == "owner=commit dddddddddddd\n"
    github.merge(5, MERGED)
    said = actions(github, folder, "pull-request", "--json", **on_main)
    assert said.json == {"schema": 1, "owner": "PR #5", "number": 5, "head": HEAD, "merge": MERGED}
    github.add_pull(6, HEAD, fork="mallory/cluster")
    github.add_pull(7, HEAD)
    github.pulls[7]["mergeable"] = False
    github.add_pull(8, HEAD)
    for number, who, why in (
        (8, "mallory", "mallory may not have it applied"),
        (8, "someone[bot]", "may not have it applied"),
        (6, "ada", "comes from a fork is not applied"),
        (5, "ada", "is not open is not applied"),
        (7, "ada", "cannot be merged"),
    ):
        said = actions(github, folder, "pull-request", "--pr", str(number), "--by", who)
        assert (said.code, said.out) == (4, ""), said.err
        assert why in said.err


def test_the_plan_of_an_older_commit_is_not_posted(github: GitHubServer, folder: Folder) -> None:
    github.add_pull(5, NEWER)
    said = actions(github, folder, "comment", "--body-file", write(folder, BODY))
    assert said.code == 0
    assert "has a newer commit, cccccccccccc" in said.err
    assert github.writes() == []


def test_what_was_taken_before_the_answer_got_lost_is_not_posted_again(github: GitHubServer) -> None:
    forge = GitHub(github.repo, "workflow", github.url, in_actions=True, pause=0.01)
    github.fail("POST", 502, after=True)
    assert sync_comment(forge, 5, BODY, pause=0.01) == "unchanged"
    assert len(github.comments[5]) == 1
    github.comments.clear()
    for _ in range(2):
        github.fail("POST", 403, {"message": "You have exceeded a secondary rate limit"}, Retry_After="0")
    assert sync_comment(forge, 5, BODY, pause=0.01) == "posted"
    for _ in range(3):
        github.fail("GET", 502)
    assert sync_comment(forge, 5, BODY, pause=0.01) == "unchanged"
    for _ in range(20):
        github.fail("GET", 500)
    with pytest.raises(ForgeBusy, match="the forge does not answer") as told:
        sync_comment(forge, 5, BODY, pause=0.01)
    assert "too many 500 error responses" in str(told.value.detail)


@pytest.mark.parametrize(
    ("more", "words", "end"),
    [
        ({"GITHUB_TOKEN": "wrong"}, (), (5, "the token is not valid")),
        ({"GITHUB_TOKEN": ""}, (), (2, "there is no token")),
        ({"GITHUB_TOKEN": "reader"}, (), (5, "the token may not do this")),
        ({}, ("--repo", "acme/other"), (5, "there is no such repository, pull request or issue")),
        ({}, ("--pr", "99"), (5, "there is no such repository, pull request or issue")),
        ({}, ("--repo", "acme"), (2, "this is no repository")),
        ({"GITHUB_EVENT_PATH": "", "GITHUB_REF": "refs/heads/main"}, (), (2, "which pull request?")),
        ({"GITHUB_EVENT_PATH": "/nowhere"}, (), (2, "the event of the workflow cannot be read")),
        ({"GITHUB_API_URL": "http://127.0.0.1:9"}, (), (5, "the forge does not answer")),
        ({}, ("--forge", "gitea"), (2, "no forge is called gitea")),
        ({"GITHUB_API_URL": "api.github.com"}, (), (2, "this is no address of a forge")),
        ({"GITHUB_API_URL": "ftp://127.0.0.1"}, (), (2, "this is no address of a forge")),
        ({"GITHUB_API_URL": "http://[127.0.0.1"}, (), (2, "this is no address of a forge")),
        ({"GITHUB_TOKEN": "ghp\u2603"}, (), (2, "GITHUB_TOKEN cannot be a token")),
    ],
)
def test_what_goes_wrong_is_told_without_a_trace(
    github: GitHubServer, folder: Folder, more: dict[str, str], words: tuple[str, ...], end: tuple[int, str]
) -> None:
    github.logins["reader"] = BOT
    github.readers.add("reader")
    said = actions(github, folder, "comment", "--body-file", write(folder, BODY), *words, **more)
    assert (said.code, said.out) == (end[0], "")
    assert end[1] in said.err
    assert "Traceback" not in said.err
    assert "bug" not in said.err
    assert github.comments == {}


@pytest.mark.parametrize("end", ["\n", "\r", " ", "\nX-Header: 1"])
def test_a_token_with_the_end_of_a_line_is_refused_and_not_told(
    github: GitHubServer, folder: Folder, end: str
) -> None:
    words = ("comment", "--body-file", write(folder, BODY))
    said = actions(github, folder, *words, GITHUB_TOKEN=f"ghp_qzxwvJKQvbxz{end}")
    assert (said.code, said.out) == (2, "")
    assert "GITHUB_TOKEN cannot be a token" in said.err
    assert "qzxwv" not in said.err


@pytest.mark.parametrize(
    "event",
    [
        "[]",
        "3",
        '{"pull_request": "x"}',
        '{"pull_request": {"number": "7", "head": 3, "base": []}}',
        '{"pull_request": {"number": true, "head": {"sha": 5}, "base": {"sha": [1], "ref": {}}}}',
        '{"pull_request": {"number": -1}}',
    ],
)
def test_an_event_of_another_form_tells_no_pull_request(tmp_path: Path, event: str) -> None:
    file = tmp_path / "event.json"
    file.write_text(event)
    environment = {"GITHUB_EVENT_PATH": str(file), "GITHUB_SHA": HEAD, "GITHUB_REF": "refs/heads/main"}
    found = of_environment(environment)
    assert (found.number, found.head, found.base, found.base_branch) == (None, HEAD, "", "main")


@pytest.mark.parametrize("number", ["", "0", "-1", "\u00b2", "\u0663", "1_0", "5\n", "9" * 5000])
def test_what_is_no_number_of_a_merge_request_tells_none(number: str) -> None:
    environment = {"GITLAB_CI": "true", "CI_MERGE_REQUEST_IID": number}
    assert of_environment(environment).number is None
    assert of_environment({"GITHUB_REF": f"refs/pull/{number}/merge"}).number is None


def test_a_comment_that_nobody_wrote_is_nobody_s(github: GitHubServer, folder: Folder) -> None:
    github.add_comment(5, "ghost", BODY)["user"] = None
    said = actions(github, folder, "comment", "--body-file", write(folder, BODY))
    assert (said.code, said.out) == (0, "pull request 5: posted\n")
    assert len(github.comments[5]) == 2


def test_a_body_needs_a_marker_or_a_key(github: GitHubServer, folder: Folder) -> None:
    said = actions(github, folder, "comment", "--body-file", write(folder, "### hello\n"))
    assert said.code == 2
    assert "no marker in its first line" in said.err
    for text in ("one", "two"):
        write(folder, f"### {text}\n")
        assert actions(github, folder, "comment", "--body-file", "comment.md", "--key", "a -->").code == 0
    (made,) = github.comments[5]
    assert made["body"].startswith("<!-- orch:comment v1 key=a%20%2D%2D%3E -->\n")
    assert "### two" in made["body"]


def test_a_check_has_all_annotations_fifty_at_a_time(github: GitHubServer, folder: Folder) -> None:
    rows = [
        {
            "file": f"infra/{number}.yml",
            "line": 3,
            "column": 1,
            "end_line": 3,
            "end_column": 5,
            "severity": ("error", "warning", "note")[number % 3],
            "code": "ORCH110",
            "summary": f"unknown property {number}",
            "hint": "leave it out",
        }
        for number in range(120)
    ]
    rows.append({"severity": "error", "summary": "no login", "host": "gpu1"})
    rows.append({"severity": "error", "file": "../../etc/passwd", "line": 1, "summary": "outside"})
    folder.write("found.json", json.dumps({"schema": 1, "diagnostics": rows}))
    said = actions(github, folder, "check", "--name", "orch plan infra", "--findings", "found.json")
    assert said.code == 0, said.err
    (check,) = github.checks.values()
    assert (check["status"], check["conclusion"], check["head_sha"]) == ("completed", "failure", HEAD)
    assert len(check["output"]["annotations"]) == 120
    assert [each.method for each in github.writes()] == ["POST", "PATCH", "PATCH"]
    assert {row["path"] for row in check["output"]["annotations"]} == {f"infra/{n}.yml" for n in range(120)}
    assert check["output"]["annotations"][0]["annotation_level"] == "failure"
    assert "no login (gpu1)" in check["output"]["summary"]


def test_findings_of_a_stranger_take_few_requests_and_no_message_is_too_long(
    github: GitHubServer, folder: Folder
) -> None:
    row = {"file": "infra/a.yml", "column": 1, "end_line": 3, "end_column": 5, "severity": "error"}
    rows = [{**row, "line": number, "code": "X", "summary": f"n{number}"} for number in range(1, 6_001)]
    rows[0]["summary"], rows[0]["hint"] = "\U0001f600" * 20_000, "\u00e9" * 20_000
    text = json.dumps({"schema": 1, "diagnostics": rows}, ensure_ascii=False)
    assert len(text.encode()) < 1 << 20
    folder.write("found.json", text)
    words = ("check", "--untrusted", "--name", "orch files of a fork", "--findings", "found.json")
    said = actions(github, folder, *words)
    assert said.code == 0, said.err
    (check,) = github.checks.values()
    shown = check["output"]["annotations"]
    assert len(shown) == 200
    assert len(github.calls) == 4
    assert max(len(each["message"].encode()) for each in shown) <= 8_000
    assert "5800 more findings at lines of files, not shown there." in check["output"]["summary"]
    assert check["conclusion"] == "failure"


@pytest.mark.parametrize(
    ("environments", "mode", "ends"),
    [
        ({}, "", (4, "there is no such environment")),
        ({"production": (False, None)}, "", (4, "each branch may deploy to it")),
        ({"production": (True, ["main", "x/*"])}, "", (4, "others may deploy to it: x/*")),
        ({"production": (False, ["main"])}, "", (4, "nobody has to approve a deployment")),
        ({"production": (False, ["main"])}, "branch", (0, "")),
        ({"production": (True, ["main"])}, "", (0, "")),
    ],
)
def test_a_workflow_goes_on_in_an_environment_that_is_protected(
    github: GitHubServer,
    folder: Folder,
    environments: dict[str, tuple[bool, list[str] | None]],
    mode: str,
    ends: tuple[int, str],
) -> None:
    (code, told), github.environments = ends, environments
    words = ("environment", "production", "--branch", "main", "--reviewed")
    said = actions(github, folder, *words, ORCH_PROTECTED=mode)
    assert (said.code, told in said.err) == (code, True), said.err
    assert github.writes() == []


@pytest.mark.parametrize(
    ("data", "conclusion", "title"),
    [
        ({"stacks": [{"verdict": "changes"}], "exit_code": 0}, "success", "changes are planned"),
        ({"stacks": [{"verdict": "danger"}], "exit_code": 0}, "neutral", "the plan is dangerous"),
        ({"stacks": [{"verdict": "changes"}], "exit_code": 4}, "failure", "changes are planned"),
        ({"stacks": [{"verdict": "failed"}], "exit_code": 5}, "failure", "there is no plan"),
        ({"diagnostics": []}, "success", "nothing is wrong"),
        ({"diagnostics": [{"severity": "warning", "summary": "x"}]}, "success", "1 warning"),
    ],
)
def test_the_conclusion_of_a_check(
    github: GitHubServer, folder: Folder, data: dict[str, Any], conclusion: str, title: str
) -> None:
    folder.write("found.json", json.dumps({"schema": 1, **data}))
    said = actions(github, folder, "check", "--findings", "found.json")
    assert said.code == 0, said.err
    (check,) = github.checks.values()
    assert (check["conclusion"], check["output"]["title"]) == (conclusion, title)


def test_a_policy_stands_at_its_line(github: GitHubServer, folder: Folder) -> None:
    policy = {"name": "no-ssh", "level": "mandatory", "message": "open", "file": "infra/a.yml", "line": 4}
    exempt = {"owner": "ada", "expires": "2026-12-31", "reason": "old cluster"}
    other = {**policy, "name": "ttl", "line": 5, "urn": None, "exempt": exempt}
    stack = {"verdict": "refused", "where": "infra/a.yml:1", "policies": [policy, other], "diagnostics": []}
    stack["diagnostics"] = [{"severity": "error", "summary": "quota", "code": "ORCH1"}]
    folder.write("found.json", json.dumps({"schema": 1, "stacks": [stack], "exit_code": 4}))
    assert actions(github, folder, "check", "--findings", "found.json").code == 0
    (check,) = github.checks.values()
    found = {(each["title"], each["start_line"]): each for each in check["output"]["annotations"]}
    assert {key: each["annotation_level"] for key, each in found.items()} == {
        ("no-ssh", 4): "failure",
        ("ORCH1", 1): "failure",
        ("ttl", 5): "notice",
    }
    assert "exempt until 2026-12-31, by ada: old cluster" in found["ttl", 5]["message"]


def test_a_review_is_three_files_of_one_plan_and_goes_to_a_comment_and_a_check(
    github: GitHubServer, folder: Folder
) -> None:
    (folder.path / "infra").mkdir()
    folder.write("infra/pool.yml", "type: fleet\nname: pool\nnodes: many\n")
    assert folder.orch("preview", "infra", "--review", "out").code == 3
    assert sorted(each.name for each in (folder.path / "out").iterdir()) == [
        *("comment.md", "review.html", "review.json")
    ]
    assert folder.orch("preview", "infra", "--review", "out", "--json").code == 2
    assert folder.orch("preview", "infra", "--review", "/proc/no").code == 2
    assert actions(github, folder, "comment", "--body-file", "out/comment.md").code == 0
    assert (
        github.comments[5][0]["body"].splitlines()[2].startswith("### ⛔ no plan: orch plan of tests infra")
    )
    assert actions(github, folder, "check", "--findings", "out/review.json").code == 0
    (check,) = github.checks.values()
    assert check["conclusion"] == "failure"
    (row,) = check["output"]["annotations"]
    assert (row["path"], row["start_line"], row["annotation_level"]) == ("infra/pool.yml", 3, "failure")


def forks_findings(folder: Folder) -> None:
    (folder.path / "fork").mkdir()
    folder.write("fork/pool.yml", "type: fleet\nname: pool\nbackend: local\nnodes: 2\nplacment: cluster\n")
    out = folder.orch("validate", "--untrusted", "--format", "json", "fork").out
    folder.write("found.json", out)
    folder.write("fork/pool.yml", "type: fleet\nname: pool\nbackend: local\nnodes: 2\n")
    folder.write("forecast.json", folder.orch("preview", "--untrusted", "--json", "fork").out)


def test_what_a_fork_s_job_found_is_posted_to_the_pull_request_of_its_commit(
    github: GitHubServer, folder: Folder
) -> None:
    forks_findings(folder)
    github.add_pull(8, NEWER, fork="mallory/cluster")
    github.add_pull(9, NEWER)
    given = ("--findings", "found.json", "--findings", "forecast.json")
    said = actions(github, folder, "comment", "--untrusted", "--head-sha", NEWER, *given)
    assert said.out == "pull request 8: posted\n", said.err
    (made,) = github.comments[8]
    assert "### ⛔ 1 error: files of a fork, read as data" in made["body"]
    assert "unknown property 'placment' in a fleet" in made["body"].replace("\\", "")
    assert "| fleet pool | local | 2 | &#36;0.00 |" in made["body"]
    said = actions(github, folder, "comment", "--untrusted", "--head-sha", "9" * 40, *given)
    assert (said.code, said.out) == (0, "")
    assert "nothing is posted" in said.err
    said = actions(github, folder, "check", "--untrusted", "--head-sha", NEWER, "--findings", "found.json")
    assert said.code == 0, said.err
    (check,) = github.checks.values()
    assert (check["head_sha"], check["conclusion"]) == (NEWER, "failure")
    assert check["output"]["annotations"][0]["path"] == "fork/pool.yml"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": 1, "diagnostics": 3}',
        '{"schema": 1, "diagnostics": [{"line": -1}]}',
        '{"schema": 1, "stacks": 5}',
        '{"schema": 1, "stacks": [], "exit_code": "x"}',
        '{"schema": 1, "diagnostics": [' + "[" * 100_000,
        '{"schema": 1, "x": "' + "y" * (1 << 20) + '"}',
        "\x00\xff",
    ],
    ids=["empty", "list", "object", "number", "line", "stacks", "code", "deep", "large", "bytes"],
)
def test_a_stranger_s_json_of_another_form_is_refused(
    github: GitHubServer, folder: Folder, text: str
) -> None:
    (folder.path / "found.json").write_text(text, encoding="latin-1")
    github.add_pull(8, NEWER, fork="mallory/cluster")
    words = ("comment", "--untrusted", "--head-sha", NEWER, "--findings", "found.json")
    said = actions(github, folder, *words)
    assert said.code == 3, said.err
    assert "this is no JSON of orch" in said.err
    assert "Traceback" not in said.err
    assert len(said.err) < 1000
    assert github.writes() == []


def test_a_stranger_s_link_and_words_lead_nowhere(github: GitHubServer, folder: Folder) -> None:
    github.add_pull(8, NEWER, fork="mallory/cluster")
    (folder.path / "secret.json").write_text('{"schema": 1, "diagnostics": []}')
    (folder.path / "found.json").symlink_to("secret.json")
    words = ("comment", "--untrusted", "--head-sha", NEWER, "--findings", "found.json")
    assert actions(github, folder, *words).code == 3
    (folder.path / "found.json").unlink()
    evil = "@acme/all #1 <img src=x> | --> <!-- orch:plan v1 --> https://evil.example\n```"
    row = {"severity": "error", "summary": evil, "file": evil, "line": 1, "code": evil, "hint": evil}
    folder.write("found.json", json.dumps({"schema": 1, "diagnostics": [row], "fleet": evil}))
    assert actions(github, folder, *words).code == 0
    body = github.comments[8][0]["body"]
    assert "@acme" not in body
    assert "<img" not in body
    assert "#1" not in body
    assert body.count("<!-- orch:") == 2
    assert "https://evil" not in body
    assert body.count("\n```") == 0


def drift_json(folder: Folder, *found: tuple[str, list[dict[str, Any]]]) -> str:
    text = "".join(json.dumps({"schema": 1, "fleet": name, "drift": rows}) for name, rows in found)
    return folder.write("drift.json", text)


def test_drift_has_one_issue_a_stack_that_opens_changes_closes_and_opens_again(
    github: GitHubServer, folder: Folder
) -> None:
    gone = [
        {"urn": f"u{n}", "name": f"pool-{n}", "path": "", "registered": "node", "observed": "(gone)"}
        for n in range(8)
    ]
    tag = {"urn": "u", "name": "net", "path": "tags.@team", "registered": "a", "observed": None}
    fake = "<!-- orch:drift v1 project=tests stack=fleet/pool -->\nfake"
    github.issues[3] = github.shapes.issue(3, "mallory", "Drift: fleet pool", fake, ["orch-drift"])

    def done(*found: tuple[str, list[dict[str, Any]]]) -> list[tuple[str, Any]]:
        said = actions(github, folder, "drift-issue", drift_json(folder, *found), "--json")
        assert said.code == 0, said.err
        return [(each["done"], each["issue"]) for each in said.json["issues"]]

    assert done(("pool", gone), ("idle", [])) == [("opened", 6), ("none", None)]
    issue = github.issues[6]
    assert issue["title"] == "Drift: fleet pool"
    assert "8 differences" in issue["body"]
    assert "| pool-\\[0-7\\] |" in issue["body"]
    github.calls.clear()
    assert done(("pool", gone)) == [("unchanged", 6)]
    assert github.writes() == []
    assert done(("pool", [*gone, tag])) == [("updated", 6)]
    assert "tags.@&#8203;team" in issue["body"]
    assert done(("pool", [])) == [("closed", 6)]
    assert issue["state"] == "closed"
    assert done(("pool", [])) == [("none", 6)]
    assert done(("pool", gone), ("idle", [tag])) == [("opened again", 6), ("opened", 7)]
    assert issue["state"] == "open"
    assert github.issues[3]["state"] == "open"


def test_gitlab_has_the_same_comment_status_and_issues(gitlab: GitLabServer, folder: Folder) -> None:
    (folder.path / "infra").mkdir()
    gitlab.add_note(5, "mallory", BODY)
    for number in range(130):
        gitlab.add_note(5, "ada", str(number), system=number % 2 == 0)
    assert pipeline(gitlab, folder, "comment", "--body-file", write(folder, BODY)).out == (
        "merge request 5: posted\n"
    )
    assert pipeline(gitlab, folder, "comment", "--body-file", "comment.md").out.endswith("unchanged\n")
    write(folder, BODY + "x\n" * 700_000)
    assert pipeline(gitlab, folder, "comment", "--body-file", "comment.md").out.endswith("updated\n")
    mine = gitlab.notes[5][-1]
    assert (mine["author"]["username"], len(gitlab.notes[5])) == ("project_7_bot", 132)
    said = pipeline(gitlab, folder, "comment", "--stale", "x", "--path", "infra")
    assert said.out == "merge request 5: the plan is struck out\n", said.err
    assert "### ~~" in mine["body"]

    row = {"severity": "error", "summary": "twice", "file": "infra/a.yml", "line": 2, "code": "ORCH1"}
    other = {**row, "line": 3}
    folder.write("found.json", json.dumps({"schema": 1, "diagnostics": [row, other]}))
    words = ("check", "--name", "orch plan", "--findings", "found.json")
    said = pipeline(gitlab, folder, *words)
    assert said.code == 0, said.err
    (status,) = gitlab.statuses
    assert (status["sha"], status["status"], status["name"]) == (HEAD, "failed", "orch plan")
    folder.write("result.json", json.dumps(REFUSED))
    result = ("comment", "--result", "result.json", "--path", "infra")
    on_main = {"CI_MERGE_REQUEST_IID": "", "CI_COMMIT_SHA": MERGED}
    assert pipeline(gitlab, folder, *result, **on_main).out == ""
    gitlab.requests[5] |= {"state": "merged", "merge_commit_sha": MERGED}
    said = pipeline(gitlab, folder, *result, **on_main)
    assert said.out == "merge request 5: updated\n", said.err
    assert "### ⛔ apply refused: " in mine["body"]
    tag = {"urn": "u", "name": "net", "path": "tags", "registered": "a", "observed": "b"}
    for rows, wanted in (([tag], "issue 1: opened"), ([], "closed"), ([tag], "opened again")):
        said = pipeline(gitlab, folder, "drift-issue", drift_json(folder, ("pool", rows)))
        assert wanted in said.out, said.err
    assert gitlab.issues[1]["state"] == "opened"


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        ({"GITLAB_TOKEN": "wrong"}, 5, "the token is not valid"),
        ({"CI_PROJECT_ID": "8"}, 5, "there is no such repository"),
        ({"CI_MERGE_REQUEST_IID": "77"}, 5, "there is no such repository"),
        ({"GITLAB_TOKEN": ""}, 2, "there is no token"),
        ({"CI_SERVER_URL": "gitlab.example"}, 2, "this is no address of a forge"),
    ],
)
def test_what_goes_wrong_on_gitlab(
    gitlab: GitLabServer, folder: Folder, more: dict[str, str], code: int, told: str
) -> None:
    said = pipeline(gitlab, folder, "comment", "--body-file", write(folder, BODY), **more)
    assert said.code == code
    assert told in said.err
    assert "Traceback" not in said.err


def test_without_the_library_one_line_says_what_to_install(folder: Folder, github: GitHubServer) -> None:
    (folder.path / "github").mkdir()
    (folder.path / "github" / "__init__.py").write_text("raise ImportError('no github here')")
    said = actions(github, folder, "comment", "--body-file", write(folder, BODY), PYTHONPATH=str(folder.path))
    assert said.code == 2
    assert "the library for GitHub is not installed" in said.err
    assert "pip install 'PyGithub" in said.err


def test_stale_leaves_what_is_no_plan() -> None:
    assert stale("hello", "x") is None
    text = stale(composed(BODY, _footing(HEAD, BASE)), "x")
    assert text is not None
    assert stale(text, "y") is None


def _footing(head: str, base: str) -> Any:
    from orch.ci.comments import Footing

    return Footing(head, base)
