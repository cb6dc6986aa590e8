"""`orch ci init`: its files pass actionlint and the schemas of GitHub and GitLab, and keep their promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.forges.gotools import tool
from kit.support import Folder, Said

QUEUE = 'unexpected key "queue" for "concurrency" section'
"""actionlint 1.7.12 is older than `queue` of May 2026 (rhysd/actionlint#657); the values are tested here."""

AWS = "project: demo\nstate: s3://bucket/demo\nsecrets_provider: awskms://alias/orch?region=us-east-1\n"
GCP = "project: demo\nstate: gs://bucket\nsecrets_provider: gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k\n"
SHARED = "project: demo\nstate: file:///srv/orch\nledger: postgresql://orch@db/orch\n"
FLEET = "type: fleet\nname: {name}\nnodes: 2\nbackends: [{backend}]\nresources: {{gpu: H100:8}}\n"


def repository(path: Path, settings: str, fleets: dict[str, str], origin: str | None) -> Folder:
    """A Git repository with a project at its root; `fleets`: path of a file -> backend."""
    (path / "orch.yml").write_text(settings)
    for number, (file, backend) in enumerate(fleets.items()):
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).write_text(FLEET.format(name=f"pool{number}", backend=backend))
    subprocess.run(["git", "init", "-q", "-b", "main", str(path)], check=True)
    if origin is not None:
        subprocess.run(["git", "-C", str(path), "remote", "add", "origin", origin], check=True)
    return Folder(path)


CASES: dict[str, tuple[str, dict[str, str]]] = {
    "aws": (AWS, {"infra/a.yml": "aws"}),
    "gcp": (GCP, {"fleets/a.yml": "gcp", "fleets/b.yml": "gcp"}),
    "both": (AWS, {"a.yml": "aws", "more/deep/b.yml": "gcp"}),
    "local": (SHARED, {"lab/a.yml": "local"}),
}


def written(folder: Folder, *words: str) -> Said:
    said = folder.orch("ci", "init", *words)
    assert said.code == 0, said.err
    return said


def workflows(folder: Folder) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    files = sorted((folder.path / ".github/workflows").glob("*.yml"))
    return {each.stem: yaml.safe_load(each.read_text()) for each in files}


@pytest.mark.parametrize("case", CASES)
def test_workflows_of_github_pass_actionlint_and_the_schema(tmp_path: Path, case: str) -> None:
    settings, fleets = CASES[case]
    folder = repository(tmp_path, settings, fleets, "git@github.com:acme/cluster.git")
    written(folder, "github")
    assert linted(tmp_path) == ""
    files = sorted(tmp_path.glob(".github/workflows/*.yml"))
    assert [each.name for each in files] == [
        f"orch-{each}.yml" for each in ("apply", "drift", "fork", "nightly", "preview")
    ]
    valid("vendor.github-workflows", *files)
    valid("vendor.github-actions", tmp_path / ".github/actions/orch/action.yml")


@pytest.mark.parametrize("case", CASES)
def test_the_pipeline_of_gitlab_passes_the_schema(tmp_path: Path, case: str) -> None:
    settings, fleets = CASES[case]
    folder = repository(tmp_path, settings, fleets, "https://gitlab.example.com/group/sub/cluster.git")
    written(folder, "gitlab")
    files = (tmp_path / ".gitlab/orch.gitlab-ci.yml", tmp_path / ".gitlab-ci.yml")
    valid("vendor.gitlab-ci", *files, transform="gitlab-ci")
    jobs = yaml.load(files[0].read_text(), _Loader)
    assert jobs["orch-nightly"]["extends"] == ".orch-writes"
    for name, job in jobs.items():
        for base in [job.get("extends")] if isinstance(job, dict) and "extends" in job else []:
            assert base in jobs, f"{name} extends {base}"
        for need in job.get("needs", []) if isinstance(job, dict) else []:
            assert need in jobs
    assert jobs[".orch-writes"]["interruptible"] is False
    assert "id_tokens" not in jobs[".orch-fork"]
    assert (jobs["orch-nightly"]["variables"]["ORCH_DEPLOYS"], jobs[".orch-apply"]["variables"]) == (
        "production-nightly",
        {"ORCH_DEPLOYS": "production", "ORCH_REVIEWED": "--reviewed"},
    )
    assert "orch gc --yes" not in jobs["orch-nightly"]["script"]
    for name in (".orch-preview", ".orch-plan"):
        assert jobs[name]["artifacts"]["expire_in"] == "7 days"
    login = jobs[".orch-login"]
    text = "\n".join(map(str, [*login["before_script"], *login.get("after_script", [])]))
    assert "CI_PROJECT_DIR" not in text
    for cloud in ("aws", "gcp"):
        if f'"$ORCH_TOKENS/{cloud}"' in text:
            assert f'> "$ORCH_TOKENS/{cloud}")' in text
            assert 'mkdir -m 0700 "$ORCH_TOKENS"' in login["before_script"]
            assert login["after_script"] == ['rm -rf "$ORCH_TOKENS"']
    assert jobs[".orch-fork"]["extends"] == ".orch"
    texts = [each.read_text() for each in (tmp_path / ".gitlab/orch").iterdir() if each.suffix != ".whl"]
    assert any("gitlab.example.com" in each for each in texts) is (case != "local")


def test_the_schema_finds_what_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yml"
    bad.write_text("job:\n  script: [1, 2]\n  when: sometimes\n")
    with pytest.raises(AssertionError):
        valid("vendor.gitlab-ci", bad, transform="gitlab-ci")
    folder = repository(tmp_path, AWS, {"infra/a.yml": "aws"}, "https://github.com/acme/cluster")
    written(folder, "github")
    file = tmp_path / ".github/workflows/orch-preview.yml"
    file.write_text(file.read_text().replace("github.event.pull_request.number", "github.evnt.number"))
    assert "evnt" in linted(tmp_path)


def test_each_job_has_the_rights_it_needs_and_no_more(tmp_path: Path) -> None:
    folder = repository(tmp_path, AWS, CASES["both"][1], "https://github.com/acme/cluster")
    written(folder, "github")
    found = workflows(folder)
    rights = {
        f"{name.removeprefix('orch-')}/{job}": set(each["permissions"].items())
        for name, workflow in found.items()
        for job, each in workflow["jobs"].items()
    }
    assert all(workflow["permissions"] == {} for workflow in found.values())
    reads, identity, looks = ("contents", "read"), ("id-token", "write"), ("actions", "read")
    posts = {("pull-requests", "write"), ("checks", "write")}
    assert rights == {
        "preview/changes": {reads},
        "preview/preview": {reads, identity, *posts},
        "preview/plans": set(),
        "preview/fork": {reads},
        "fork/post": {reads, ("actions", "read"), *posts},
        "apply/stale": {reads, *posts},
        "apply/plan": {reads, identity, looks},
        "apply/apply": {reads, identity, looks, ("pull-requests", "write")},
        "drift/drift": {reads, identity, looks, ("issues", "write")},
        "nightly/nightly": {reads, identity, looks},
    }
    apply = found["orch-apply"]["jobs"]["apply"]
    assert (apply["environment"], apply["needs"]) == ("production", "plan")
    texts = {each.name: each.read_text() for each in (tmp_path / ".github/workflows").iterdir()}
    fork = texts["orch-preview.yml"].partition("\n  fork:\n")[2]
    assert not re.search(
        r"secrets\.|GITHUB_TOKEN|github\.token|_ROLE",
        fork
        + texts["orch-fork.yml"]
        .replace("GITHUB_TOKEN: ${{ github.token }}", "")
        .replace("github-token: ${{ github.token }}", ""),
    )
    roles = {name: set(re.findall(r"ORCH_AWS_(\w+)_ROLE", text)) for name, text in texts.items()}
    assert roles == {
        "orch-preview.yml": {"PREVIEW"},
        "orch-fork.yml": set(),
        "orch-apply.yml": {"PLAN", "APPLY"},
        "orch-drift.yml": {"PLAN"},
        "orch-nightly.yml": {"APPLY"},
    }


def test_a_comment_of_who_may_write_applies_before_the_merge_and_the_merge_releases_the_lease(
    tmp_path: Path,
) -> None:
    folder = repository(tmp_path, AWS, CASES["both"][1], "https://github.com/acme/cluster")
    written(folder, "github", "--apply-before-merge")
    assert linted(tmp_path) == ""
    files = sorted(tmp_path.glob(".github/workflows/*.yml"))
    valid("vendor.github-workflows", *files)
    found = workflows(folder)
    workflow = found["orch-before-merge"]
    assert workflow[True] == {"issue_comment": {"types": ["created"]}}
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    asked = jobs["asked"]
    assert asked["if"] == "github.event.issue.pull_request && github.event.comment.body == '/orch apply'"
    assert "--by" in asked["steps"][-1]["run"]
    assert (jobs["plan"]["needs"], jobs["apply"]["needs"]) == ("asked", ["asked", "plan"])
    assert jobs["apply"]["environment"] == "production"
    assert jobs["apply"]["concurrency"] == found["orch-apply"]["jobs"]["apply"]["concurrency"]
    reads, identity = ("contents", "read"), ("id-token", "write")
    assert {name: set(job["permissions"].items()) for name, job in jobs.items()} == {
        "asked": {reads, ("pull-requests", "read")},
        "plan": {reads, identity, ("actions", "read")},
        "apply": {reads, identity, ("actions", "read"), ("pull-requests", "write")},
    }
    for name in ("plan", "apply"):
        steps = jobs[name]["steps"]
        # Actions come from the default branch, before anything of the pull request is there.
        uses = [step.get("uses", step.get("name", "")).partition("@")[0] for step in steps[:4]]
        assert uses == ["actions/checkout", "./.github/actions/orch", "Protected", "actions/checkout"]
        assert "ref" not in steps[0]["with"]
        assert steps[3]["with"]["path"] == "pull"
        runs = [step for step in steps[3:] if "run" in step]
        assert {step["working-directory"] for step in runs} == {"pull"}
        assert not [step for step in steps if "${{" in step.get("run", "")]
    merged = found["orch-apply"]["jobs"]["apply"]["steps"]
    names = [step.get("name") for step in merged]
    assert names.index("Apply") < names.index("Release") < names.index("Tell")
    assert all('--owner "$OWNER"' in merged[names.index(each)]["run"] for each in ("Apply", "Release"))
    said = folder.orch("ci", "init", "gitlab", "--apply-before-merge")
    assert (said.code, "no comment starts a job" in said.err) == (2, True)


def test_what_branch_protection_requires_comes_in_each_pull_request(tmp_path: Path) -> None:
    settings = f"{AWS}policy_packs: [packs/gpu]\n"
    folder = repository(tmp_path, settings, {"more/deep/b.yml": "aws"}, "https://github.com/acme/cluster")
    with (tmp_path / "more/deep/b.yml").open("a") as file:
        file.write("init: [{file: ../../shared/init.sh}]\n")
    for name in ("shared/init.sh", "packs/gpu/PulumiPolicy.yaml", "packs/gpu/__main__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("runtime: python\n")
    written(folder, "github")
    preview = workflows(folder)["orch-preview"]
    # Of all, whatever files they change; also of one that gets another base.
    assert preview[True] == {"pull_request": {"types": ["opened", "synchronize", "reopened", "edited"]}}
    job = preview["jobs"]["plans"]
    assert (job["name"], job["needs"], job["if"]) == (
        "orch plans",
        ["changes", "preview", "fork"],
        "always()",
    )
    assert "the check `orch plans`" in (tmp_path / ".github/orch/SETUP.md").read_text()
    assert "--check 'orch plans'" in (tmp_path / ".github/workflows/orch-apply.yml").read_text()
    results = ("success", "skipped", "failure", "cancelled")

    def passes(changes: str, any_: str, preview_: str, fork: str) -> bool:
        values = {"CHANGES": changes, "ANY": any_, "PREVIEW": preview_, "FORK": fork}
        script = ["bash", "-ec", job["steps"][0]["run"]]
        return subprocess.run(script, env=values, check=False, capture_output=True).returncode == 0

    green = {
        (changes, any_, preview_, fork)
        for changes in results
        for any_ in ("true", "false", "")
        for preview_ in results
        for fork in results
        if passes(changes, any_, preview_, fork)
    }
    assert green == {
        ("success", "false", "skipped", "skipped"),
        ("success", "true", "success", "skipped"),
        ("success", "true", "skipped", "success"),
    }

    look = preview["jobs"]["changes"]["steps"][1]["run"]
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.com"]

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    def looked() -> str:
        out = tmp_path.with_name("out")
        out.write_text("")
        subprocess.run(
            ["bash", "-ec", look], cwd=tmp_path, env={**os.environ, "GITHUB_OUTPUT": str(out)}, check=True
        )
        return out.read_text()

    git("add", "--all")
    git("commit", "-qm", "first")
    assert looked() == "any=true\n"  # no merge: nobody knows
    for name, wanted in (
        ("elsewhere/README.md", "any=false\n"),
        ("more/deep/c.yml", "any=true\n"),
        ("more/deep/scripts/setup.sh", "any=true\n"),
        ("orch.yml", "any=true\n"),
        ("shared/init.sh", "any=true\n"),
        ("packs/gpu/__main__.py", "any=true\n"),
        (".github/orch/requirements.txt", "any=true\n"),
    ):
        git("switch", "-qc", "change")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a: b\n")
        git("add", "--all")
        git("commit", "-qm", name)
        git("switch", "-q", "main")
        git("merge", "-q", "--no-ff", "-m", "merge", "change")
        git("branch", "-qd", "change")
        assert looked() == wanted


def test_an_apply_is_never_cancelled_and_a_plan_of_an_older_commit_is(tmp_path: Path) -> None:
    folder = repository(tmp_path, AWS, CASES["both"][1], "https://github.com/acme/cluster")
    written(folder, "github")
    found = workflows(folder)
    assert all("concurrency" not in workflow for workflow in found.values())
    writes = [found["orch-apply"]["jobs"]["apply"], found["orch-nightly"]["jobs"]["nightly"]]
    for job in writes:
        assert job["concurrency"]["queue"] == "max"
        assert job["concurrency"]["cancel-in-progress"] is False
    assert writes[0]["concurrency"]["group"] == "orch-apply-${{ matrix.folder }}"
    preview = found["orch-preview"]["jobs"]["preview"]["concurrency"]
    assert preview["cancel-in-progress"] is True
    assert "queue" not in preview
    others = [
        job.get("concurrency", {})
        for workflow in found.values()
        for job in workflow["jobs"].values()
        if job not in writes
    ]
    assert {each.get("queue", "single") for each in others} == {"single"}


def test_all_actions_are_pinned_and_no_expression_is_within_a_script(tmp_path: Path) -> None:
    folder = repository(tmp_path, AWS, CASES["both"][1], "https://github.com/acme/cluster")
    written(folder, "github")
    action = yaml.safe_load((tmp_path / ".github/actions/orch/action.yml").read_text())
    steps = [
        step
        for workflow in workflows(folder).values()
        for job in workflow["jobs"].values()
        for step in job["steps"]
    ] + action["runs"]["steps"]
    used = {step["uses"] for step in steps if "uses" in step}
    assert len(used) == 7
    for each in used - {"./.github/actions/orch"}:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", each)
    assert not [step for step in steps if "${{" in step.get("run", "")]


def test_trust_policies_name_exactly_the_subjects_of_the_jobs(tmp_path: Path) -> None:
    folder = repository(tmp_path, AWS, CASES["both"][1], "https://github.com/acme/cluster")
    written(folder, "github", "--environment", "gpu", "--branch", "trunk")

    def trusts(role: str) -> tuple[Any, Any]:
        policy = json.loads((tmp_path / f".github/orch/aws-{role}-trust.json").read_text())
        (statement,) = policy["Statement"]
        assert statement["Action"] == "sts:AssumeRoleWithWebIdentity"
        assert set(statement["Condition"]) == {"StringEquals"}
        equal = statement["Condition"]["StringEquals"]
        issuer = "token.actions.githubusercontent.com"
        assert equal[f"{issuer}:aud"] == "sts.amazonaws.com"
        return equal[f"{issuer}:sub"], equal.get(f"{issuer}:job_workflow_ref")

    def files(*names: str) -> list[str]:
        return [f"acme/cluster/.github/workflows/orch-{each}.yml@refs/heads/trunk" for each in names]

    assert trusts("preview") == (["repo:acme/cluster:pull_request"], None)
    assert trusts("plan") == (["repo:acme/cluster:environment:gpu-plan"], files("apply", "drift"))
    environments = ["repo:acme/cluster:environment:gpu", "repo:acme/cluster:environment:gpu-nightly"]
    assert trusts("apply") == (environments, files("apply", "nightly"))
    script = (tmp_path / ".github/orch/gcp-trust.sh").read_text()
    (mapping,) = re.findall(r"--attribute-mapping (.*) \\", script)
    mapping = mapping.replace("'\"'\"'", "'")
    for role, subjects, workflows_ in (
        ("plan", ["repo:acme/cluster:environment:gpu-plan"], files("apply", "drift")),
        ("apply", environments, files("apply", "nightly")),
    ):
        assert (
            f"assertion.sub in {subjects} && assertion.job_workflow_ref in {workflows_} ? '{role}'" in mapping
        )
    assert mapping.endswith(" : 'none''")
    assert "--attribute-condition 'assertion.repository == '\"'\"'acme/cluster'\"'\"''" in script
    done = subprocess.run(["bash", "-n", tmp_path / ".github/orch/gcp-trust.sh"], check=False)
    assert done.returncode == 0


def test_changed_files_stay_without_force(tmp_path: Path) -> None:
    folder = repository(tmp_path, AWS, {"infra/a.yml": "aws"}, "https://github.com/acme/cluster")
    assert "written: .github/workflows/orch-apply.yml" in written(folder, "github").out
    assert "there already: .github/workflows/orch-apply.yml" in written(folder, "github").out
    file = tmp_path / ".github/workflows/orch-apply.yml"
    file.write_text(file.read_text() + "# mine\n")
    (tmp_path / ".github/workflows/orch-drift.yml").unlink()
    said = folder.orch("ci", "init", "github")
    assert said.code == 9
    assert ".github/workflows/orch-apply.yml" in said.err
    assert "# mine" in file.read_text()
    assert not (tmp_path / ".github/workflows/orch-drift.yml").exists()
    written(folder, "github", "--force")
    assert "# mine" not in file.read_text()
    outside = tmp_path.with_name("outside.yml")
    outside.write_text("theirs")
    file.unlink()
    file.symlink_to(outside)
    assert folder.orch("ci", "init", "github", "--force").code == 3
    assert outside.read_text() == "theirs"


def test_gitlab_s_own_file_is_left_alone(tmp_path: Path) -> None:
    folder = repository(tmp_path, AWS, {"infra/a.yml": "aws"}, "git@gitlab.com:group/cluster.git")
    (tmp_path / ".gitlab-ci.yml").write_text("test:\n  script: [make]\n")
    said = written(folder, "gitlab")
    assert "there must be: `- local: .gitlab/orch.gitlab-ci.yml`" in said.out
    assert (tmp_path / ".gitlab-ci.yml").read_text() == "test:\n  script: [make]\n"


def test_two_projects_of_a_repository_have_workflows_of_their_own(tmp_path: Path) -> None:
    folder = repository(tmp_path, AWS, {"infra/a.yml": "aws"}, "https://github.com/acme/cluster")
    (tmp_path / "lab" / "fleets").mkdir(parents=True)
    (tmp_path / "lab" / "orch.yml").write_text(SHARED.replace("demo", "lab"))
    (tmp_path / "lab/fleets/b.yml").write_text(FLEET.format(name="pool", backend="local"))
    written(folder, "github")
    written(folder, "github", "--path", "lab", "--runner", "self-hosted")
    found = workflows(folder)
    assert len(found) == 10
    assert found["orch-preview"]["jobs"]["preview"]["strategy"]["matrix"] == {"folder": ["infra"]}
    lab = found["orch-preview-lab"]
    assert lab["jobs"]["preview"]["strategy"]["matrix"] == {"folder": ["lab/fleets"]}
    assert lab["jobs"]["preview"]["runs-on"] == "self-hosted"
    assert found["orch-fork-lab"][True]["workflow_run"]["workflows"] == [lab["name"]]
    assert linted(tmp_path) == ""


@pytest.mark.parametrize(
    ("settings", "origin", "words", "told"),
    [
        (
            "project: demo\n",
            "https://github.com/a/b",
            (),
            "is on this machine alone",
        ),
        (AWS, None, (), "which repository is it?"),
        (AWS, "https://github.com/a/b", ("--branch", "a b"), "`a b` cannot stand in a workflow"),
        (AWS, "https://github.com/a/b", ("--runner", "${{ x }}"), "cannot stand in a workflow"),
        (AWS, "https://github.com/a/b", ("--environment", "-f"), "`-f` cannot stand in a workflow"),
        (AWS, "https://github.com/a/b", ("--repo", "a"), "this is no repository"),
        (AWS, "https://github.com/a/b", ("--folder", "/tmp"), "it is outside the repository"),
    ],
)
def test_what_cannot_be_written_is_told(
    tmp_path: Path, settings: str, origin: str | None, words: tuple[str, ...], told: str
) -> None:
    folder = repository(tmp_path, settings, {"infra/a.yml": "aws"}, origin)
    said = folder.orch("ci", "init", "github", *words)
    assert (said.code, said.out) == (3, "")
    assert told in said.err
    assert not (tmp_path / ".github").exists()


def test_without_git_or_fleets(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "orch.yml").write_text(AWS)
    assert "this is no Git repository" in folder.orch("ci", "init", "github").err
    repository(tmp_path, AWS, {}, "https://github.com/a/b")
    assert "there is no fleet in this project" in folder.orch("ci", "init", "github").err
    said = folder.orch("ci", "init", "github", "--path", "nowhere")
    assert (said.code, said.err.splitlines()[0]) == (2, "error: there is no folder nowhere")


def linted(path: Path) -> str:
    """What actionlint says of a repository."""
    words = [tool("actionlint"), "-no-color", "-ignore", QUEUE]
    done = subprocess.run(words, cwd=path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (done.stdout == ""), done.stderr
    return done.stdout


def valid(schema: str, *files: Path, transform: str | None = None) -> None:
    """By the published schema, as check-jsonschema ships it."""
    words = ["--builtin-schema", schema, *(["--data-transform", transform] if transform else [])]
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *words, *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class _Loader(yaml.SafeLoader):
    """YAML with GitLab's `!reference`."""


_Loader.add_constructor("!reference", lambda loader, node: loader.construct_sequence(node))  # type: ignore[arg-type]


def test_roles_that_plan_write_nothing_and_that_of_pull_requests_decrypts_nothing(tmp_path: Path) -> None:
    folder = repository(tmp_path, AWS, CASES["both"][1], "https://github.com/acme/cluster")
    written(folder, "github")

    def actions(role: str) -> set[str]:
        policy = json.loads((tmp_path / f".github/orch/aws-{role}-policy.json").read_text())
        found: set[str] = set()
        for each in policy["Statement"]:
            actions_ = each["Action"]
            found |= {actions_} if isinstance(actions_, str) else set(actions_)
        return found

    preview, plan = actions("preview"), actions("plan")
    assert plan - preview == {"kms:Decrypt"}
    writes = re.compile(r":(?!Get|List|Describe|Decrypt)")
    assert [each for each in plan if writes.search(each)] == []
    text = (tmp_path / ".github/workflows/orch-preview.yml").read_text()
    assert 'orch preview "$FOLDER" --keyless --base HEAD^1' in text
    assert "s3:PutObject" not in (tmp_path / ".github/orch/SETUP.md").read_text()


def test_jobs_of_pull_requests_get_no_secret_that_writes_or_decrypts(tmp_path: Path) -> None:
    settings = (
        "project: demo\nstate: azblob://c\nledger: postgresql://db/orch\nsecrets_provider: passphrase\n"
    )
    folder = repository(tmp_path, settings, {"lab/a.yml": "aws"}, "https://github.com/acme/cluster")
    env = {"PULUMI_CONFIG_PASSPHRASE": "p"}
    said = folder.orch("ci", "init", "github", env=env)
    assert said.code == 0, said.err
    found = workflows(folder)
    own = next(
        step["env"]
        for step in found["orch-preview"]["jobs"]["preview"]["steps"]
        if step.get("id") == "preview"
    )
    assert own == {
        "PULUMI_CONFIG_PASSPHRASE": "",
        "AZURE_STORAGE_ACCOUNT": "${{ secrets.AZURE_STORAGE_ACCOUNT }}",
        "AZURE_STORAGE_SAS_TOKEN": "${{ secrets.ORCH_PREVIEW_AZURE_STORAGE_SAS_TOKEN }}",
        "PGUSER": "${{ secrets.ORCH_PREVIEW_PGUSER }}",
        "PGPASSWORD": "${{ secrets.ORCH_PREVIEW_PGPASSWORD }}",
    }
    assert "Secret of each of the three environments, not of the repository: `PGPASSWORD`" in said.out


def test_environments_are_looked_at_before_a_role_is_assumed(tmp_path: Path) -> None:
    folder = repository(tmp_path, AWS, CASES["both"][1], "https://github.com/acme/cluster")
    written(folder, "github", "--apply-before-merge", "--nightly-gc")
    jobs = {
        f"{name}/{job}": each
        for name, workflow in workflows(folder).items()
        for job, each in workflow["jobs"].items()
        if "environment" in each
    }
    assert {name: each["environment"] for name, each in jobs.items()} == {
        "orch-apply/plan": "production-plan",
        "orch-apply/apply": "production",
        "orch-before-merge/plan": "production-plan",
        "orch-before-merge/apply": "production",
        "orch-drift/drift": "production-plan",
        "orch-nightly/nightly": "production-nightly",
    }
    for name, each in jobs.items():
        words = [str(step.get("uses") or step.get("run")) for step in each["steps"]]
        look = next(at for at, text in enumerate(words) if text.startswith("orch ci environment "))
        login = next(at for at, text in enumerate(words) if text.startswith("aws-actions/"))
        assert look < login, name
        reviewed = " --reviewed" if each["environment"] == "production" else ""
        assert words[look] == f"orch ci environment {each['environment']} --branch main{reviewed}"
    nightly = workflows(folder)["orch-nightly"]["jobs"]["nightly"]["steps"]
    assert nightly[-1]["run"] == "orch gc --yes"
    written(folder, "github", "--apply-before-merge", "--force")
    nightly = workflows(folder)["orch-nightly"]["jobs"]["nightly"]["steps"]
    assert nightly[-1]["run"] == "orch reconcile --json"
    kept = [
        step["with"]["retention-days"]
        for workflow in workflows(folder).values()
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/upload-artifact")
    ]
    assert set(kept) == {7}
    assert len(kept) == 4


def test_a_runner_of_ones_own_has_a_warning(tmp_path: Path) -> None:
    folder = repository(tmp_path, AWS, CASES["aws"][1], "https://github.com/acme/cluster")
    assert "in a public repository that is anybody with a fork" not in written(folder, "github").out
    said = written(folder, "github", "--runner", "gpu-box", "--force")
    assert "in a public repository that is anybody with a fork" in said.out


def test_a_file_that_no_workflow_watches_fails_the_check(tmp_path: Path) -> None:
    folder = repository(tmp_path, AWS, {"infra/a.yml": "aws"}, "https://github.com/acme/cluster")
    watched = ("ci", "watched", "infra", "--by", "infra/**", "--by", "*")
    assert folder.orch(*watched).code == 0
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/setup.sh").write_text("echo hi\n")
    with (tmp_path / "infra/a.yml").open("a") as file:
        file.write("init: [{file: ../shared/setup.sh}]\n")
    said = folder.orch(*watched)
    assert (said.code, "shared/setup.sh" in said.err) == (3, True), said.err
    assert folder.orch(*watched, "--by", "shared/setup.sh").code == 0
