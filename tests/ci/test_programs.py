"""What a pull request changes of programs and of orch.yml, and what of it no plan runs or follows."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from kit.support import Folder

from orch.ci.workflows.programs import EVERY, SETTINGS, reviewed
from orch.spec.models.backends import MODELS
from orch.spec.models.fields.base import Section
from orch.spec.models.project import ProjectSettings
from orch.stacks.project.project import find

pytestmark = pytest.mark.quick

KUBECONFIG = """
current-context: lab
contexts: [{name: infra, context: {cluster: lab, user: lab}}]
clusters: [{name: lab, cluster: {server: "https://lab", certificate-authority: pki/ca.crt}}]
users:
- name: lab
  user:
    client-certificate: pki/user.crt
    client-key: pki/user.key
    tokenFile: token
    exec:
      command: ./login.sh
      args: [helper.py, --config=conf/login.yml, "source tools/more.sh && go"]
      env: [{name: PYTHONPATH, value: tools/lib/}]
"""
NAMED = (
    *("pki/ca.crt", "pki/user.crt", "pki/user.key", "token", "login.sh", "helper.py", "conf/login.yml"),
    *("tools/more.sh", "tools/lib/module.py"),
)
CLUSTER = "backends: [{type: kubernetes, kubeconfig: {filename: infra/kube.yml}}]\n"
STATE = "project: demo\nstate: s3://acme/state\nsecrets_provider: awskms://alias/orch\n"


def committed(folder: Path, files: dict[str, str]) -> Callable[[], None]:
    """A repository with these files; a function that commits what changed in it."""

    def git(*words: str) -> None:
        who = ["-c", "user.name=ada", "-c", "user.email=ada@example.com"]
        subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)

    def commit() -> None:
        git("add", "--all", "--force")
        git("commit", "-qm", "change")

    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git("init", "-q", "-b", "main")
    commit()
    return commit


@pytest.mark.parametrize("name", NAMED)
def test_what_a_kubeconfig_names_is_a_part_of_it(tmp_path: Path, name: str) -> None:
    files = {f"infra/{each}": "as it was\n" for each in NAMED}
    commit = committed(tmp_path, {"orch.yml": CLUSTER, "infra/kube.yml": KUBECONFIG, **files})
    assert reviewed(find(tmp_path), "HEAD").kubeconfig is None
    (tmp_path / "infra/fleet.yml").write_text("type: fleet\nname: pool\nnodes: 1\n")
    commit()
    assert reviewed(find(tmp_path), "HEAD^1").kubeconfig is None
    (tmp_path / "infra" / name).write_text("touch PWNED\n")
    commit()
    held = reviewed(find(tmp_path), "HEAD^1")
    assert held.kubeconfig is not None
    assert f"infra/{name}".startswith(held.kubeconfig)
    assert held.refusal("the fleet pool", ["aws"]) is None
    refusal = held.refusal("the fleet pool", ["kubernetes"])
    assert refusal is not None
    assert (refusal.code, refusal.exit_code) == ("ORCH471", 4)


def test_a_link_counts_with_what_it_leads_to(tmp_path: Path) -> None:
    commit = committed(
        tmp_path,
        {"orch.yml": CLUSTER, "infra/kube.yml": KUBECONFIG, "shared/a.sh": "a\n", "shared/b.sh": "b\n"},
    )
    (tmp_path / "infra/login.sh").symlink_to("../shared/a.sh")
    commit()
    (tmp_path / "infra/login.sh").unlink()
    (tmp_path / "infra/login.sh").symlink_to("../shared/b.sh")
    commit()
    assert reviewed(find(tmp_path), "HEAD^1").kubeconfig == "infra/login.sh"
    (tmp_path / "shared/b.sh").write_text("touch PWNED\n")
    commit()
    assert reviewed(find(tmp_path), "HEAD^1").kubeconfig == "infra/login.sh"


def test_workflows_watch_what_a_kubeconfig_names(tmp_path: Path) -> None:
    files = {f"infra/{each}": "as it was\n" for each in NAMED}
    fleet = "type: fleet\nname: pool\nbackends: [kubernetes]\n"
    committed(tmp_path, {"orch.yml": CLUSTER, "infra/kube.yml": KUBECONFIG, "fleets/f.yml": fleet, **files})
    folder = Folder(tmp_path)
    watched = ("--by", "fleets/**", "--by", "*", "--by", "infra/kube.yml")
    said = folder.orch("ci", "watched", "fleets", *watched)
    assert (said.code, "infra/conf/login.yml" in said.err) == (3, True), said.err
    each = [word for name in NAMED for word in ("--by", f"infra/{name}")]
    assert folder.orch("ci", "watched", "fleets", *watched, *each).code == 0


def properties(model: type[Section], classified: set[str], prefix: str = "") -> Iterator[str]:
    """Each property of a model, or those of the sections in it that are classified one by one."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        below = any(each.startswith(f"{path}.") for each in classified) and path not in classified
        held = [each for each in sections(info.annotation) if below]
        yield from (one for each in held for one in properties(each, classified, f"{path}."))
        if not held:
            yield path


def sections(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [each for part in get_args(annotation) for each in sections(part)]


def test_each_property_of_orch_yml_is_classified() -> None:
    assert set(SETTINGS) == {EVERY, *MODELS}
    for name, model in {EVERY: ProjectSettings, **MODELS}.items():
        approved, free = (words.split() for words in SETTINGS[name])
        assert not set(approved) & set(free), name
        classified = {*approved, *free}
        # `ssh_config` of `defaults.fleet` is told apart from what else that has.
        found = {*properties(model, classified), *({"defaults.fleet.ssh_config"} & classified)}
        assert found == classified, name


@pytest.mark.parametrize(
    ("before", "after", "held"),
    [
        ("project: demo\n", "project: demo\nstate: file:///srv/evil\n", {EVERY: "state"}),
        (STATE, STATE.replace("acme", "evil"), {EVERY: "state"}),
        (STATE, STATE.replace("alias/orch", "alias/evil"), {EVERY: "secrets_provider"}),
        (STATE, f"{STATE}ledger: postgresql://evil/orch\n", {EVERY: "ledger"}),
        (STATE, STATE.replace("demo", "other"), {EVERY: "project"}),
        (
            "",
            "defaults: {fleet: {ssh_config: {hosts: [a], proxy_jump: {hostname: evil}}}}\n",
            {EVERY: "defaults.fleet.ssh_config"},
        ),
        (
            "backends: [{type: aws}]\n",
            "backends: [{type: aws, endpoint_url: 'https://evil'}]\n",
            {"aws": "endpoint_url"},
        ),
        (
            "",
            "backends: [{type: aws, creds: {type: default, profile: evil}}]\n",
            {"aws": "creds"},
        ),
        (
            "backends: [{type: kubernetes, contexts: [a]}]\n",
            "backends: [{type: kubernetes, contexts: [a, {name: b, proxy_jump: {hostname: evil}}]}]\n",
            {"kubernetes": "contexts.proxy_jump"},
        ),
        (
            "",
            "backends: [{type: kubernetes, kubeconfig: {data: 'users: []'}}]\n",
            {"kubernetes": "kubeconfig"},
        ),
        (
            "backends: [{type: runpod, creds: {type: api_key, api_key: a}}]\n",
            "tags: {team: ml}\n",
            {"runpod": "creds"},
        ),
        ("", "backends: [{type: aws, regions: [us-east-1]}]\ntags: {team: ml}\n", {}),
        ("backends: [{type: kubernetes, contexts: [a]}]\n", "backends: [{type: kubernetes}]\n", {}),
        (STATE, f"{STATE}defaults: {{fleet: {{nodes: 2}}}}\npolicies: {{missing-tags: disabled}}\n", {}),
    ],
)
def test_settings_that_a_change_brings_wait_for_an_approval(
    tmp_path: Path, before: str, after: str, held: dict[str, str]
) -> None:
    committed(tmp_path, {"orch.yml": before or "tags: {}\n"})
    (tmp_path / "orch.yml").write_text(after)
    found = reviewed(find(tmp_path), "HEAD").settings
    assert set(found) == set(held)
    assert [f"`{name}`" in found[each] for each, name in held.items()] == [True] * len(held)


def test_an_orch_yml_of_the_change_alone_selects_nothing(tmp_path: Path) -> None:
    commit = committed(tmp_path, {"orch.yml": STATE, "fleets/f.yml": "type: fleet\nname: pool\n"})
    (tmp_path / "fleets/orch.yml").write_text(STATE.replace("acme", "evil"))
    commit()
    assert EVERY in reviewed(find(tmp_path / "fleets"), "HEAD^1").settings


@pytest.mark.parametrize("name", [".orch/ledger.db", ".orch/state/.pulumi/stacks/x/pool.json", "runs.db"])
def test_a_state_or_ledger_that_the_change_brings_is_not_read(tmp_path: Path, name: str) -> None:
    commit = committed(tmp_path, {"orch.yml": "ledger: sqlite:///runs.db\n"})
    assert reviewed(find(tmp_path), "HEAD").settings == {}
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("{}")
    commit()
    assert reviewed(find(tmp_path), "HEAD^1").settings == {EVERY: name.partition("/")[0]}


def test_a_pack_that_the_base_does_not_list_judges_no_plan(tmp_path: Path) -> None:
    committed(tmp_path, {"orch.yml": "tags: {}\n", "tools/PulumiPolicy.yaml": "runtime: python\n"})
    (tmp_path / "orch.yml").write_text("policy_packs: [tools]\n")
    assert reviewed(find(tmp_path), "HEAD").packs == ("tools",)


def test_no_plan_follows_a_state_that_the_change_selects(tmp_path: Path) -> None:
    """Also not for the names of secrets, and for fleets that no file describes."""
    project, other = tmp_path / "project", tmp_path / "other"
    volume = "type: volume\nname: data\nbackend: local\nsize: 1GB\n"
    fleet = 'type: fleet\nname: pool\nnodes: 1\nenv: {TOKEN: "${{ secrets.TOKEN }}"}\n'
    committed(project, {"orch.yml": "project: demo\n", "f.yml": fleet, "v.yml": volume})
    (project / "orch.yml").write_text(f"project: demo\nstate: file://{other}\n")
    said = Folder(project).orch("preview", ".", "--base", "HEAD", "--json")
    assert said.code == 0, said.err
    stacks = said.json["stacks"]
    assert [each["exit_code"] for each in stacks] == [0, 0]
    assert "`state` of orch.yml is changed here" in said.out
    assert not other.exists()


def test_no_volume_of_a_changed_kubeconfig_has_a_plan(tmp_path: Path) -> None:
    volume = "type: volume\nname: data\nbackend: kubernetes\nsize: 1GB\n"
    committed(tmp_path, {"orch.yml": CLUSTER, "infra/kube.yml": KUBECONFIG, "v.yml": volume})
    script = tmp_path / "infra/login.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
    script.chmod(0o755)
    said = Folder(tmp_path).orch("preview", "v.yml", "--base", "HEAD")
    assert (said.code, "ORCH471" in said.out + said.err) == (0, True), said.err
    assert not (tmp_path / "PWNED").exists()
