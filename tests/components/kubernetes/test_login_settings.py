"""A kubeconfig that is not there, and contexts that it does not have, are told at their place in orch.yml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from orch.components.kubernetes.backend import KubernetesBackend
from orch.components.kubernetes.login import require_contexts
from orch.components.request import PlanRequest, PriorState
from orch.runner.kubernetes.errors import BadKubeconfig
from orch.spec.findings import PlanErrors
from orch.spec.loader.load import InvalidConfiguration, load_paths
from orch.spec.models import Fleet
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.models.project import ProjectSettings

Told = list[tuple[str, int, int, str, str | None]]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], KubernetesSettings]:
    """The settings of an orch.yml of this text; `kube.yml` beside it has the contexts `eks` and `gke`."""
    monkeypatch.chdir(tmp_path)
    contexts = [{"name": each, "context": {"cluster": "c", "user": "u"}} for each in ("gke", "eks")]
    (tmp_path / "kube.yml").write_text(yaml.safe_dump({"current-context": "eks", "contexts": contexts}))

    def made(text: str) -> KubernetesSettings:
        (tmp_path / "orch.yml").write_text(text)
        ((_, project),) = load_paths([tmp_path / "orch.yml"]).require().of(ProjectSettings)
        (found,) = (each for each in project.configured if isinstance(each, KubernetesSettings))
        return found

    return made


def told(entry: KubernetesSettings, root: Path, *contexts: str | None) -> Told:
    with pytest.raises(InvalidConfiguration) as caught:
        require_contexts(entry, root, contexts)
    assert int(caught.value.exit_code) == 3
    assert {each.code for each in caught.value.diagnostics} == {"ORCH460"}
    return [
        (each.span.file, each.span.line, each.span.column, each.summary, each.hint)
        for each in caught.value.diagnostics
    ]


TEXT = """\
backends:
  - type: local
  - type: kubernetes
    kubeconfig: {filename: kube.yml}
    contexts: [eks, prod, {name: gk}]
"""


def test_each_unknown_context_is_told_at_its_element(
    settings: Callable[[str], KubernetesSettings], tmp_path: Path
) -> None:
    assert told(settings(TEXT), tmp_path, "eks", "prod", "gk") == [
        ("orch.yml", 5, 21, "the kubeconfig has no context prod", "it has eks, gke"),
        ("orch.yml", 5, 27, "the kubeconfig has no context gk", "did you mean 'gke'? (it has eks, gke)"),
    ]


def test_contexts_where_the_fleet_does_not_go_are_not_looked_for(
    settings: Callable[[str], KubernetesSettings], tmp_path: Path
) -> None:
    require_contexts(settings(TEXT), tmp_path, ["eks", None])


def test_a_context_that_is_a_region_is_told_there(
    settings: Callable[[str], KubernetesSettings], tmp_path: Path
) -> None:
    text = "backends:\n  - type: kubernetes\n    kubeconfig: {filename: kube.yml}\n    regions: [x]\n"
    ((file, line, column, summary, _),) = told(settings(text), tmp_path, "x")
    assert (file, line, column, summary) == ("orch.yml", 4, 15, "the kubeconfig has no context x")


def test_backends_of_one_of_several_projects_are_found(
    settings: Callable[[str], KubernetesSettings], tmp_path: Path
) -> None:
    text = """\
project: second
projects:
  - name: first
    backends: [{type: local}]
  - name: second
    backends:
      - type: kubernetes
        kubeconfig: {filename: kube.yml}
        contexts: [nope]
"""
    ((file, line, column, *_),) = told(settings(text), tmp_path, "nope")
    assert (file, line, column) == ("orch.yml", 9, 20)


def test_a_kubeconfig_that_is_not_there_is_told_alone(
    settings: Callable[[str], KubernetesSettings], tmp_path: Path
) -> None:
    ((file, line, column, summary, _),) = told(settings(TEXT.replace("kube.yml", "no.yml")), tmp_path, "prod")
    assert (file, line, column) == ("orch.yml", 4, 28)
    assert summary == f"there is no kubeconfig {tmp_path / 'no.yml'}"


def test_settings_without_a_file_are_told_at_the_fleet(tmp_path: Path) -> None:
    text = "contexts: [{name: eks, context: {}}]"
    entry = KubernetesSettings.model_validate(
        {"type": "kubernetes", "kubeconfig": {"data": text}, "contexts": ["x"]}
    )
    with pytest.raises(PlanErrors) as caught:
        require_contexts(entry, tmp_path, ["x"])
    assert [(each.code, each.path) for each in caught.value.findings] == [("ORCH460", "backends")]


def test_a_kubeconfig_that_does_not_read_is_told_there(
    settings: Callable[[str], KubernetesSettings], tmp_path: Path
) -> None:
    entry = settings(TEXT)
    (tmp_path / "kube.yml").write_text("a: [")
    with pytest.raises(BadKubeconfig) as caught:
        require_contexts(entry, tmp_path, ["prod"])
    assert str(caught.value.where).startswith(str(tmp_path / "kube.yml"))


def test_without_a_kubeconfig_of_ones_own_logging_in_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    entry = KubernetesSettings.model_validate({"type": "kubernetes", "contexts": ["x"]})
    require_contexts(entry, tmp_path, ["x"])


def test_a_plan_looks_for_its_contexts_and_a_rehearsal_does_not(
    settings: Callable[[str], KubernetesSettings], tmp_path: Path
) -> None:
    configured: tuple[BackendSettings, ...] = (settings(TEXT),)
    fleet = Fleet.model_validate({"type": "fleet", "backends": ["kubernetes"], "name": "ab", "nodes": "0..2"})
    request = PlanRequest(fleet, configured, PriorState(), "s", root=tmp_path, folder=tmp_path)
    with pytest.raises(InvalidConfiguration):
        KubernetesBackend().candidates(request)
    rehearsed = PlanRequest(
        fleet,
        configured,
        PriorState(),
        "s",
        root=tmp_path,
        folder=tmp_path,
        session=lambda name: "/kubeconfig",
    )
    assert [each.context for each in KubernetesBackend().candidates(rehearsed)] == ["eks", "prod", "gk"]
