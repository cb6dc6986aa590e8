"""Programs and settings that a change brings: plans of a pull request wait with them for an approval.

Policy packs are programs, and a kubeconfig names some (`exec`). Settings of orch.yml decide where credentials
go and which states are read, whose ways to nodes are commands. Those that are as in a commit of Git were
reviewed before they were merged into it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orch.ci.workflows.gathering import repository_of
from orch.components.kubernetes.login import named_files
from orch.runner.upload.git import run_git
from orch.spec.diagnostics import Severity
from orch.spec.errors import ExitCode, OrchError
from orch.spec.findings import Finding
from orch.spec.loader.load import load_paths
from orch.spec.models.backends import OTHER_NAMES
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.models.project import ProjectSettings
from orch.stacks.project.project import Project

CODE = "ORCH471"
EVERY = ""
"""In place of a backend: what holds for every stack."""

_CLOUD = "type regions public_ips ssh_cidrs tags"
SETTINGS: Mapping[str, tuple[str, str]] = {
    EVERY: (
        "project projects.name state secrets_provider ledger defaults.fleet.ssh_config",
        # `policy_packs` are compared as programs, `backends` by the rows below.
        "policies policy_packs defaults.image defaults.fleet defaults.task profiles tags images "
        "nodes_for_runs saved_plan_duration_s all_backends projects.backends",
    ),
    "aws": (
        "creds endpoint_url",
        f"{_CLOUD} vpc_name vpc_ids default_vpcs subnet_ids security_group_ids iam_instance_profile kms_key "
        "os_images experimental_instance_types",
    ),
    "azure": (
        "creds tenant_id",
        f"{_CLOUD} subscription_id resource_group vpc_ids subnet_ids vm_managed_identity",
    ),
    "crusoe": ("creds", f"{_CLOUD} project_id"),
    "gcp": (
        "creds",
        f"{_CLOUD} project_id vpc_name extra_vpcs roce_vpcs vpc_project_id nat_check vm_service_account "
        "preview_features",
    ),
    "kubernetes": (
        "kubeconfig proxy_jump contexts.proxy_jump",
        "type contexts.name regions namespace rdma_resource rdma_networks gang queue start_limit_s "
        "service_account node_selector tolerations topology_labels",
    ),
    "lambda": ("creds", _CLOUD),
    "local": ("engine", "type node_image subnet cpus memory_mib gpus simulate_gpu"),
    "nebius": ("creds", f"{_CLOUD} projects fabrics"),
    "oci": ("creds", f"{_CLOUD} compartment_id"),
    "runpod": ("creds", f"{_CLOUD} community_cloud"),
    "ssh": ("user port identity_file proxy_jump known_hosts", "type connect_timeout_s parallel preflight"),
}
"""Properties of orch.yml and of its backends: those whose change needs an approval before a plan with rights
is made, since they select credentials, where these go, or commands; and those that only change the plan."""

_LATER = "the plan after the merge has it; it is shown before somebody approves it"


class Unreviewed(OrchError):
    """A program of this change would run, or nobody can tell whether it is one of this change."""

    exit_code = ExitCode.POLICY


@dataclass(frozen=True)
class Reviewed:
    """A project without the programs that differ from a commit. `packs`: policy packs that are left out;
    `kubeconfig`: the file that is a kubeconfig or named by one, None if all are as they were; `settings`: the
    changed ones that need an approval, by backend."""

    project: Project
    packs: tuple[str, ...]
    kubeconfig: str | None
    settings: Mapping[str, str]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return a plan's findings about the packs that did not judge it."""
        return tuple(
            Finding(
                CODE,
                "name",
                f"the policy pack {each} is changed here: it runs after an approval, and judged no plan yet",
                severity=Severity.WARNING,
            )
            for each in self.packs
        )

    def refusal(self, stack: str, backends: Iterable[str]) -> Unreviewed | None:
        """Return why a stack that may be on these backends has no plan; None if it has one."""
        places = (EVERY, *backends)
        if changed := next((self.settings[each] for each in places if each in self.settings), None):
            return Unreviewed(
                f"{stack} has no plan: {changed} is changed here",
                detail="it decides where credentials go, or which commands run",
                hint=_LATER,
                code=CODE,
            )
        if self.kubeconfig is not None and "kubernetes" in places:
            return Unreviewed(
                f"{stack} has no plan: the kubeconfig is changed here, and may name programs",
                where=self.kubeconfig,
                hint=_LATER,
                code=CODE,
            )
        return None


def reviewed(project: Project, base: str) -> Reviewed:
    """Return a project with those programs alone that are as in the commit `base`. Raises Unreviewed."""
    top = repository_of(project.root).resolve()
    commit, file = _commit(top, base), project.root / "orch.yml"
    now = _settings(file.read_text("utf-8") if file.is_file() else None)
    before = _settings(_text_at(top, file, commit)) if _differs(top, file, commit) else now
    known = before.policy_packs if before is not None else ()
    packs = tuple(
        each
        for each in project.policy_packs
        if each not in known or _differs(top, project.root / each, commit)
    )
    changed = next((each for each in kubernetes_files(project) if _differs(top, each, commit)), None)
    kept = tuple(each for each in project.policy_packs if each not in packs)
    return Reviewed(
        replace(project, policy_packs=kept),
        packs,
        None if changed is None else os.path.relpath(changed, project.root),
        {**_changed(now, before), **_changed_data(top, project, commit)},
    )


def kubernetes_files(project: Project) -> Iterator[Path]:
    """The kubeconfigs of a project, and the files and folders that they name."""
    settings = [each for each in project.backends if isinstance(each, KubernetesSettings)]
    return named_files(settings, project.root)


def _settings(text: str | None) -> ProjectSettings | None:
    """The settings that an orch.yml of this text has, the defaults without one; None if it cannot be read."""
    if text is None:
        return ProjectSettings.model_validate({})
    with TemporaryDirectory() as folder:
        file = Path(folder) / "orch.yml"
        file.write_text(text, "utf-8", errors="surrogateescape")
        loaded = load_paths([file])
    models = [model for _, model in loaded.of(ProjectSettings)]
    return models[0] if models and not loaded.failed else None


def _text_at(top: Path, file: Path, commit: str) -> str | None:
    """The text of a file in a commit, of a link its target; None if it was not there."""
    shown = run_git(["show", f"{commit}:{os.path.relpath(file.parent.resolve() / file.name, top)}"], top)
    return None if shown.returncode else shown.stdout


def _changed(now: ProjectSettings | None, before: ProjectSettings | None) -> dict[str, str]:
    """The changed settings that need an approval, by backend, each as messages name it."""
    if now is None or before is None:
        return {EVERY: "orch.yml"}
    found: dict[str, str] = {}
    for name in SETTINGS[EVERY][0].split():
        if _values([now], name) != _values([before], name):
            found.setdefault(EVERY, f"`{name}` of orch.yml")
    of_now, of_before = _by_type(now.configured), _by_type(before.configured)
    for kind in {**of_now, **of_before}:
        entries, former = of_now.get(kind, []), of_before.get(kind, [])
        model = type((entries or former)[0])
        for name in SETTINGS[kind][0].split() if kind in SETTINGS else model.model_fields:
            default = _default(model, name)
            if (_values(entries, name) or default) != (_values(former, name) or default):
                found.setdefault(kind, f"`{name}` of the backend {kind} in orch.yml")
    return found


def _changed_data(top: Path, project: Project, commit: str) -> dict[str, str]:
    """A state or ledger that lies in the repository and that the change brings."""
    for place in (project.root / ".orch", project.local_state, project.local_ledger):
        if place is not None and any(_differs_tracked(top, name, commit) for name in _names(top, place)):
            return {EVERY: os.path.relpath(place, project.root)}
    return {}


def _by_type(entries: Iterable[BackendSettings]) -> dict[str, list[BackendSettings]]:
    found: dict[str, list[BackendSettings]] = {}
    for each in entries:
        kind = str(each.type)
        found.setdefault(OTHER_NAMES.get(kind, kind), []).append(each)
    return found


def _values(sections: Sequence[Any], name: str) -> list[object]:
    """The values of a property, `a.b` for one of the sections that `a` holds."""
    first, _, rest = name.partition(".")
    held: list[Any] = [getattr(each, first) for each in sections]
    if not rest:
        return held
    inner = [one for each in held for one in (each if isinstance(each, tuple) else (each,))]
    return [each for each in _values([each for each in inner if each is not None], rest) if each is not None]


def _default(model: type[BackendSettings], name: str) -> list[object]:
    """The values of a property of a backend that orch.yml does not have."""
    info = model.model_fields[name.partition(".")[0]]
    return [] if "." in name else [info.get_default(call_default_factory=True)]


def _commit(top: Path, base: str) -> str:
    known = run_git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}"], top)
    if known.returncode:
        raise Unreviewed(
            "there is no such commit to compare programs with",
            where=base,
            hint="fetch it: actions/checkout with `fetch-depth: 2` has the first parent of a merge",
            code=CODE,
        )
    return known.stdout.strip()


def _differs(top: Path, path: Path, commit: str) -> bool:
    """Return True if a file or folder of the repository, or a target of links in it, differs from a commit.
    Paths outside the repository never differ."""
    own = tuple(_names(top, path))
    links = (each for each in path.rglob("*") if each.is_symlink()) if own and path.is_dir() else ()
    for name in dict.fromkeys((*own, *(name for each in links for name in _names(top, each)))):
        others = run_git(["ls-files", "--others", "--", f":(literal){name}"], top)
        if _differs_tracked(top, name, commit) or others.returncode or others.stdout.strip():
            return True
    return False


def _differs_tracked(top: Path, name: str, commit: str) -> bool:
    return run_git(["diff", "--quiet", commit, "--", f":(literal){name}"], top).returncode != 0


def _names(top: Path, path: Path) -> Iterator[str]:
    """The names in the repository of a path, and of what it leads to if it is a link."""
    written = path.expanduser()
    for each in (Path(os.path.normpath(written.absolute())), written.resolve()):
        if each.is_relative_to(top):
            yield each.relative_to(top).as_posix()
