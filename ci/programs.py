"""Programs that a change brings: a plan of a pull request leaves them out until somebody has approved it.

Policy packs are programs, and a kubeconfig names some (`exec`). Those that are as in a commit of Git were
reviewed before they were merged into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from orch.ci.gathering import repository_of
from orch.runner.upload.git import run_git
from orch.spec.diagnostics import Severity
from orch.spec.errors import ExitCode, OrchError
from orch.spec.findings import Finding
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.stacks.project.project import Project

CODE = "ORCH471"


class Unreviewed(OrchError):
    """A program of this change would run, or nobody can tell whether it is one of this change."""

    exit_code = ExitCode.POLICY


@dataclass(frozen=True)
class Reviewed:
    """A project without the programs that differ from a commit. `packs`: policy packs that are left out;
    `kubeconfig`: the file that names programs, None where it is as it was."""

    project: Project
    packs: tuple[str, ...]
    kubeconfig: str | None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a plan says of the packs that did not judge it."""
        return tuple(
            Finding(
                CODE,
                "name",
                f"the policy pack {each} is changed here: it runs after an approval, and judged no plan yet",
                severity=Severity.WARNING,
            )
            for each in self.packs
        )

    def refusal(self, stack: str) -> Unreviewed:
        """Why a stack of Kubernetes has no plan."""
        return Unreviewed(
            f"{stack} has no plan: the kubeconfig is changed here, and may name programs",
            where=self.kubeconfig,
            hint="the plan after the merge has it; it is shown before somebody approves it",
            code=CODE,
        )


def reviewed(project: Project, base: str) -> Reviewed:
    """A project with those programs alone that are as in the commit `base`. Raises Unreviewed."""
    top = repository_of(project.root).resolve()
    packs = tuple(each for each in project.policy_packs if _differs(top, project.root / each, base))
    files = (
        file for each in project.backends if isinstance(each, KubernetesSettings) for file in _files(each)
    )
    changed = next(
        (file for file in files if _differs(top, project.root / Path(file).expanduser(), base)), None
    )
    kept = tuple(each for each in project.policy_packs if each not in packs)
    return Reviewed(replace(project, policy_packs=kept), packs, changed)


def _files(settings: KubernetesSettings) -> Iterator[str]:
    given = settings.kubeconfig
    if given is not None:
        yield given.filename or "orch.yml"


def _differs(top: Path, path: Path, base: str) -> bool:
    """Whether a file or folder of the repository differs from a commit; never one outside of it."""
    real = path.expanduser().resolve()
    if not real.is_relative_to(top):
        return False
    name = real.relative_to(top).as_posix()
    known = run_git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}"], top)
    if known.returncode:
        raise Unreviewed(
            "there is no such commit to compare programs with",
            where=base,
            hint="fetch it: actions/checkout with `fetch-depth: 2` has the first parent of a merge",
            code=CODE,
        )
    differs = run_git(["diff", "--quiet", known.stdout.strip(), "--", f":(literal){name}"], top)
    others = run_git(["ls-files", "--others", "--", f":(literal){name}"], top)
    return bool(differs.returncode or others.returncode or others.stdout.strip())
