"""The workflows that `orch ci init github` writes, run by act on this machine, against a server that speaks
GitHub's API.

What is no step of ours is a stub, and these are all: `actions/setup-python` (the Python of the tests is on
PATH), `actions/upload-artifact` and `actions/download-artifact` (a folder holds what they carry).
`actions/checkout` is act's own: it copies the repository; a stub gets another commit into a folder. Fleets
are of the backend `local`, so no job logs in to a cloud. act knows no `queue` of `concurrency` and runs one
job at a time: the line is taken out for it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.forges.forges import BOT, GitHubServer
from kit.forges.gotools import tool
from kit.support import Folder, Said, containers, fleet_yaml

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("engine"), pytest.mark.timeout(1200)]

STUBS = {
    "actions/setup-python": "true",
    "actions/checkout": """
        mkdir -p "$FILES"
        git -C "$STUB_REPOSITORY" archive "$REF" | tar -x -C "$FILES"
    """,
    # One folder is its files, several paths are themselves: as the real one does it.
    "actions/upload-artifact": """
        to="$STUB_ARTIFACTS/$NAME"
        mkdir -p "$to"
        if [ -d "$FILES" ]; then cp -r "$FILES/." "$to"; else cp -r $FILES "$to"; fi
    """,
    "actions/download-artifact": 'mkdir -p "$FILES" && cp -r "$STUB_ARTIFACTS/$NAME/." "$FILES"',
}
INPUTS = ("name", "path", "ref", "persist-credentials", "python-version", "run-id", "github-token")


class Repository:
    """A repository whose pull request is number 5, on a server, with a state that all jobs share."""

    def __init__(self, path: Path, server: GitHubServer, *flags: str) -> None:
        self.path, self.server = path / "repository", server
        self.stubs, self.artifacts = path / "stubs", path / "artifacts"
        self.path.mkdir()
        self.artifacts.mkdir()
        self.folder = Folder(self.path)
        (path / "state").mkdir(mode=0o700)
        (self.path / "orch.yml").write_text(f"project: demo\nstate: file://{path}/state\n")
        (self.path / "infra").mkdir()
        self.git("init", "-q", "-b", "main")
        self.write_fleet(1)
        said = self.folder.orch("ci", "init", "github", "--repo", server.repo, *flags)
        assert said.code == 0, said.err
        for file in self.path.glob(".github/workflows/*.yml"):
            file.write_text(file.read_text().replace("      queue: max\n", ""))
        # The orch of the tests is on PATH, and pip would put the wheel in its place.
        action = self.path / ".github/actions/orch/action.yml"
        action.write_text(re.sub(r"python -m pip install .*\\\n.*\n", "true\n", action.read_text()))
        branches = ["main"]
        server.environments = {
            "production": (True, branches),
            "production-plan": (False, branches),
            "production-nightly": (False, branches),
        }
        self.flags = [*self.stub_flags()]
        self.head = self.commit()

    def write_fleet(self, nodes: int) -> None:
        (self.path / "infra" / "pool.yml").write_text(fleet_yaml("pool", nodes))

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=ada", "-c", "user.email=ada@example.com")
        done = subprocess.run(
            ["git", *who, *words], cwd=self.path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "-qm", "change")
        return self.git("rev-parse", "HEAD")

    def stub_flags(self) -> Iterator[str]:
        """Each action from elsewhere, at the commit that workflows pin, as the stub in its place."""
        files = [*self.path.glob(".github/**/*.yml")]
        steps = [step for file in files for step in _steps(yaml.safe_load(file.read_text()))]
        for used in sorted({step["uses"] for step in steps if "uses" in step}):
            name = used.partition("@")[0]
            if used.startswith("./"):
                continue
            stub = self.stubs / name
            stub.mkdir(parents=True, exist_ok=True)
            run = {
                "shell": "bash",
                "run": STUBS[name],
                "env": {
                    "NAME": "${{ inputs.name }}",
                    "FILES": "${{ inputs.path }}",
                    "REF": "${{ inputs.ref }}",
                },
            }
            data = {
                "name": name,
                "description": "stub",
                "inputs": {each: {"required": False} for each in INPUTS},
                "runs": {"using": "composite", "steps": [run]},
            }
            (stub / "action.yml").write_text(yaml.safe_dump(data))
            yield from ("--local-repository", f"{used}={stub}")

    def act(self, event: str, workflow: str, job: str, data: dict[str, Any]) -> tuple[int, str]:
        """Run a job as GitHub would for this event; the exit code, and what act says."""
        file = self.artifacts.with_name("event.json")
        file.write_text(json.dumps(data))
        environment = {
            "GITHUB_API_URL": self.server.url,
            "GITHUB_REPOSITORY": self.server.repo,
            "STUB_ARTIFACTS": str(self.artifacts),
            "STUB_REPOSITORY": str(self.path),
            "PULUMI_CONFIG_PASSPHRASE": "passphrase",
        }
        words = [str(tool("act")), event, "-W", f".github/workflows/{workflow}.yml", "-j", job]
        words += ["-e", str(file), "-P", "ubuntu-latest=-self-hosted", *self.flags]
        words += ["-s", "GITHUB_TOKEN=workflow", "-s", "PULUMI_CONFIG_PASSPHRASE=passphrase"]
        words += ["--action-cache-path", str(self.artifacts.with_name("act"))]
        words += [word for each in environment.items() for word in ("--env", "=".join(each))]
        done = subprocess.run(
            words,
            cwd=self.path,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        return done.returncode, done.stdout + done.stderr

    def pull_request(self, action: str, *, fork: str | None = None, job: str = "preview") -> tuple[int, str]:
        """A job of `orch preview` for pull request 5."""
        self.server.add_pull(5, self.head, fork=fork)
        repo = {"full_name": fork or self.server.repo}
        pull = {
            "number": 5,
            "head": {"sha": self.head, "ref": "change", "repo": repo},
            "base": {"sha": "b" * 40, "ref": "main", "repo": {"full_name": self.server.repo}},
        }
        return self.act("pull_request", "orch-preview", job, {"action": action, "pull_request": pull})


def _steps(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "runs" in data:
        yield from data["runs"]["steps"]
    for job in data.get("jobs", {}).values():
        yield from job["steps"]


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    with GitHubServer().running() as server:
        assert isinstance(server, GitHubServer)
        yield Repository(tmp_path, server)


def mine(repository: Repository) -> dict[str, Any]:
    """The one comment of workflows."""
    (found,) = (each for each in repository.server.comments[5] if each["user"]["login"] == BOT)
    return found


def test_a_pull_request_has_one_comment_and_a_check_from_its_first_commit_to_its_last(
    repository: Repository,
) -> None:
    server = repository.server
    for number in range(250):
        server.add_comment(5, "ada", f"comment {number}")

    code, out = repository.pull_request("opened")
    assert code == 0, out
    first = mine(repository)
    assert server.comments[5].index(first) == 250  # on the third page
    assert first["body"].startswith("<!-- orch:plan v1 project=demo path=infra -->\n")
    assert f"<!-- orch:commit head={repository.head} base={'b' * 40} -->" in first["body"]
    assert "to create" in first["body"]
    (check,) = server.checks.values()
    assert (check["name"], check["conclusion"]) == ("orch plan infra", "success")
    assert check["head_sha"] == repository.head
    (review,) = repository.artifacts.glob("orch-review-*")  # act knows no `strategy.job-index`
    assert {each.name for each in review.iterdir()} == {"comment.md", "review.html", "review.json"}

    repository.write_fleet(3)
    repository.head = repository.commit()
    server.calls.clear()
    code, out = repository.pull_request("synchronize")
    assert code == 0, out
    assert mine(repository)["id"] == first["id"]
    # Struck out at first, then the new plan in its place, then its check.
    assert [each.method for each in server.writes()] == ["PATCH", "PATCH", "POST"]
    assert "### ~~" in server.writes()[0].data["body"]
    assert "~~" not in first["body"]
    assert f"head={repository.head}" in first["body"]

    for number in range(400):
        text = f"type: fleet\nname: pool-{number}\nnodes: many\nplacment: {'x' * 150}\n"
        (repository.path / "infra" / f"broken-{number}.yml").write_text(text)
    repository.head = repository.commit()
    code, out = repository.pull_request("synchronize")
    assert code != 0
    assert "Body is too long" not in out
    body = mine(repository)["body"]
    assert 30_000 < len(body.encode()) <= 60_000
    assert "Do not approve" in "\n".join(body.splitlines()[:10])
    last = [*server.checks.values()][-1]
    assert (last["conclusion"], last["head_sha"]) == ("failure", repository.head)
    assert len(last["output"]["annotations"]) >= 400
    assert len(server.comments[5]) == 251


def test_files_of_a_fork_are_read_without_rights_and_posted_by_another_job(repository: Repository) -> None:
    server = repository.server
    (repository.path / "infra" / "pool.yml").write_text(
        fleet_yaml("pool", 2).replace("placement", "placment") + "tags: {a: '${{ env.HOME }}'}\n"
    )
    repository.head = repository.commit()
    code, out = repository.pull_request("opened", fork="mallory/cluster", job="fork")
    assert code != 0, out
    assert server.calls == []
    run = {
        "id": 9,
        "event": "pull_request",
        "head_sha": repository.head,
        "head_repository": {"full_name": "mallory/cluster"},
    }
    code, out = repository.act("workflow_run", "orch-fork", "post", {"workflow_run": run})
    assert code == 0, out
    body = mine(repository)["body"]
    assert "files of a fork, read as data" in body
    assert "placment" in body
    (check,) = server.checks.values()
    assert (check["conclusion"], check["head_sha"]) == ("failure", repository.head)
    code, out = repository.pull_request("opened", fork="mallory/cluster")
    assert "[orch preview/changes]" in out
    assert "[orch preview/preview infra]" not in out
    assert len(server.comments[5]) == 1


def test_drift_opens_an_issue_and_its_end_closes_it(repository: Repository) -> None:
    server = repository.server
    secret = {"PULUMI_CONFIG_PASSPHRASE": "passphrase"}
    said = repository.folder.orch("up", "infra/pool.yml", "--yes", env=secret)
    assert said.code == 0, said.err
    try:
        (node,) = containers(repository.folder, "pool")
        data = {"ref": "refs/heads/main", "repository": {"full_name": server.repo}}
        code, out = repository.act("workflow_dispatch", "orch-drift", "drift", data)
        assert code == 0, out
        assert server.issues == {}
        subprocess.run(["docker", "kill", node], check=True, capture_output=True)
        code, out = repository.act("workflow_dispatch", "orch-drift", "drift", data)
        assert code == 0, out
        (issue,) = server.issues.values()
        assert (issue["title"], issue["state"]) == ("Drift: fleet pool", "open")
        assert repository.folder.orch("up", "infra/pool.yml", "--yes", env=secret).code == 0
        code, out = repository.act("workflow_dispatch", "orch-drift", "drift", data)
        assert code == 0, out
        assert issue["state"] == "closed"
    finally:
        said = repository.folder.orch("down", "pool", "--yes", env=secret)
    assert said.code == 0, said.err


def test_a_merge_strikes_out_open_plans_and_its_own_is_applied_exactly(repository: Repository) -> None:
    server = repository.server
    code, out = repository.pull_request("opened")
    assert code == 0, out
    data = {"ref": "refs/heads/main", "repository": {"full_name": server.repo}}
    code, out = repository.act("push", "orch-apply", "stale", data)
    assert code == 0, out
    assert "### ~~" in mine(repository)["body"]
    assert [each["conclusion"] for each in server.checks.values()] == ["success", "action_required"]
    secret = {"PULUMI_CONFIG_PASSPHRASE": "passphrase"}
    try:
        code, out = repository.act("push", "orch-apply", "apply", data)
        assert code == 0, out
        (plan,) = repository.artifacts.glob("orch-plan-*")
        assert {each.name for each in plan.iterdir()} == {"plan.json", "orch-review"}
        said = repository.folder.orch("fleet", "ids", "pool", env=secret)
        assert len(said.out.split()) == 1, said.err
        code, out = repository.act("push", "orch-apply", "apply", data)
        assert code == 0, out
    finally:
        said = repository.folder.orch("down", "pool", "--yes", env=secret)
    assert said.code == 0, said.err


@pytest.fixture
def before_merge(tmp_path: Path) -> Iterator[Repository]:
    with GitHubServer().running() as server:
        assert isinstance(server, GitHubServer)
        yield Repository(tmp_path, server, "--apply-before-merge")


def test_a_comment_applies_a_pull_request_which_keeps_others_off_until_it_is_merged(
    before_merge: Repository,
) -> None:
    repository, server = before_merge, before_merge.server
    server.add_pull(5, repository.head)
    server.pulls[5]["merge_commit_sha"] = repository.head
    secret = {"PULUMI_CONFIG_PASSPHRASE": "passphrase"}

    def commented(login: str) -> tuple[int, str]:
        issue = {"number": 5, "pull_request": {"url": server.pulls[5]["url"]}}
        comment = {"body": "/orch apply", "user": {"login": login}}
        data = {"action": "created", "issue": issue, "comment": comment}
        return repository.act("issue_comment", "orch-before-merge", "apply", data)

    def orch(*words: str) -> Said:
        return repository.folder.orch(*words, env=secret)

    code, out = commented("mallory")
    assert code != 0
    assert "mallory may not have it applied" in out
    assert server.comments == {}
    try:
        code, out = commented("ada")
        assert code == 0, out
        assert "### ✅ applied: orch plan of demo infra" in mine(repository)["body"]
        assert len(orch("fleet", "ids", "pool").out.split()) == 1
        assert "leased to PR #5, since " in orch("lease", "show", "infra").out
        said = orch("down", "pool", "--yes", "--owner", "PR #6")
        assert (said.code, "leased to PR #5" in said.err) == (9, True)
        server.merge(5, repository.head)
        data = {"ref": "refs/heads/main", "repository": {"full_name": server.repo}}
        code, out = repository.act("push", "orch-apply", "apply", data)
        assert code == 0, out
        assert orch("lease", "show", "infra").out == "fleet pool: no lease\n"
    finally:
        said = orch("down", "pool", "--yes")
    assert said.code == 0, said.err
