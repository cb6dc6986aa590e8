"""Environments and programs: what workflows look at before they use rights, or run what a change brings."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orch.ci.forge import NotAllowed
from orch.ci.protection import Environment, of_github, of_gitlab, require_protected
from orch.ci.workflows.programs import Unreviewed, reviewed
from orch.stacks.project.project import find

pytestmark = pytest.mark.quick

REVIEWERS = {"type": "required_reviewers", "reviewers": [{"type": "User", "reviewer": {"login": "ada"}}]}
CUSTOM = {"protected_branches": False, "custom_branch_policies": True}
PROTECTED = {"protected_branches": True, "custom_branch_policies": False}


def told(rules: list[dict[str, Any]], policy: dict[str, bool] | None) -> dict[str, Any]:
    return {"name": "production", "protection_rules": rules, "deployment_branch_policy": policy}


@pytest.mark.parametrize(
    ("answer", "allowed", "missing"),
    [
        (None, [], "there is no such environment"),
        (told([], None), [], "each branch may deploy to it; nobody has to approve a deployment"),
        (told([REVIEWERS], None), [], "each branch may deploy to it"),
        (told([{**REVIEWERS, "reviewers": []}], CUSTOM), ["main"], "nobody has to approve a deployment"),
        (told([REVIEWERS], CUSTOM), ["main", "feature/*"], "others may deploy to it: feature/*"),
        (told([REVIEWERS], CUSTOM), [], "main may not deploy to it"),
        (told([REVIEWERS], CUSTOM), ["main"], None),
        (told([REVIEWERS], CUSTOM), ["main", ("tag", "main")], "others may deploy to it: tag main"),
        (told([REVIEWERS], CUSTOM), [("branch", "main")], None),
        (told([REVIEWERS], PROTECTED), [], None),
    ],
)
def test_an_environment_of_github_is_protected_or_nothing_is_done(
    answer: dict[str, Any] | None, allowed: list[str | tuple[str, str]], missing: str | None
) -> None:
    policies = [("branch", one) if isinstance(one, str) else one for one in allowed]
    listed = {"branch_policies": [{"type": kind, "name": name} for kind, name in policies]}
    found = of_github("production", answer, listed, "main")
    if missing is None:
        require_protected(found, "main", reviewed=True, where="acme/cluster")
        return
    with pytest.raises(NotAllowed) as refused:
        require_protected(found, "main", reviewed=True, where="acme/cluster")
    assert missing in (refused.value.detail or "")
    assert refused.value.exit_code == 4


def token(**claims: str) -> str:
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{part}.c2ln"


def test_an_environment_of_gitlab_is_protected_or_nothing_is_done() -> None:
    good = {
        "environment": "production",
        "environment_protected": "true",
        "ref": "main",
        "ref_type": "branch",
        "ref_protected": "true",
    }
    assert of_gitlab("production", token(**good)) == Environment("production", True, True, ("main",))
    for change in (
        {"environment_protected": "false"},
        {"ref_protected": "false"},
        {"environment": "other"},
        {"ref": "feature"},
        {"ref_type": "tag"},
    ):
        with pytest.raises(NotAllowed):
            require_protected(
                of_gitlab("production", token(**{**good, **change})), "main", reviewed=True, where="g/p"
            )
    for text in ("", "a.b", "a.b.c"):
        with pytest.raises(NotAllowed, match="nothing tells"):
            of_gitlab("production", text)


def test_programs_that_a_change_brings_wait_for_an_approval(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=ada", "-c", "user.email=ada@example.com"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    cluster = "backends: [{type: kubernetes, kubeconfig: {filename: kube.yml}}]\n"
    write("orch.yml", f"project: demo\npolicy_packs: [packs/old, packs/other]\n{cluster}")
    for name in ("packs/old/PulumiPolicy.yaml", "packs/other/PulumiPolicy.yaml", "kube.yml"):
        write(name, "a: b\n")
    git("init", "-q", "-b", "main")
    git("add", "--all")
    git("commit", "-qm", "base")
    same = reviewed(find(tmp_path), "HEAD")
    assert (same.packs, same.kubeconfig) == ((), None)
    assert same.project.policy_packs == ("packs/old", "packs/other")
    write("packs/old/__main__.py", "import os\n")
    changed = reviewed(find(tmp_path), "HEAD")
    assert (changed.packs, changed.kubeconfig) == (("packs/old",), None)
    assert changed.project.policy_packs == ("packs/other",)
    assert [each.code for each in changed.findings] == ["ORCH471"]
    write("kube.yml", "users: [{user: {exec: {command: sh}}}]\n")
    git("add", "--all")
    git("commit", "-qm", "change")
    assert reviewed(find(tmp_path), "HEAD^1").kubeconfig == "kube.yml"
    assert reviewed(find(tmp_path), "HEAD").packs == ()
    with pytest.raises(Unreviewed, match="no such commit"):
        reviewed(find(tmp_path), "--output=x")
