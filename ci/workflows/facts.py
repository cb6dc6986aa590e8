"""What the workflows of a project must know of it, and where their files lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Forge = Literal["github", "gitlab"]

KEPT_DAYS = 7
"""How long a forge keeps a saved plan and a review: a plan is valid for a day, unless orch.yml says more."""

OF_PREVIEWS = "ORCH_PREVIEW_"
"""How variables begin that jobs of pull requests get in place of those that write or decrypt."""


@dataclass(frozen=True)
class PipelineFacts:
    """Facts about a project that its workflows need. Paths are from the root of the repository.

    `folders` have fleets or volumes; `watched` are patterns of files whose change plans again; `clouds` are
    those that jobs log in to, for fleets, state or secrets. `repo` is OWNER/NAME or GROUP/PROJECT. `secrets`
    are names of variables; `previews`: those of jobs of pull requests, each with where its value is. `files`
    lie beside the workflows, the wheel among them; `then` is what pip installs after the requirements.
    `notes` are for people.
    """

    forge: Forge
    project: str
    repo: str
    host: str
    branch: str
    environment: str
    runner: str
    root: str
    state: str
    secrets_provider: str
    folders: tuple[str, ...]
    watched: tuple[str, ...]
    clouds: tuple[str, ...]
    secrets: tuple[str, ...]
    previews: Mapping[str, str]
    requirements: str
    files: Mapping[str, bytes] = field(repr=False)
    then: str = ""
    before_merge: bool = False
    nightly_gc: bool = False
    notes: tuple[str, ...] = ()

    @property
    def nightly(self) -> str:
        return f"{self.environment}-nightly"

    @property
    def planning(self) -> str:
        return f"{self.environment}-plan"

    @property
    def suffix(self) -> str:
        """Suffix of file names: several projects of one repository have workflows of their own."""
        return suffix(self.root)

    @property
    def beside(self) -> str:
        """The folder with what is no workflow."""
        return beside(self.forge, self.root)

    @property
    def globs(self) -> tuple[str, ...]:
        """`watched` as `git diff` and GitLab's `changes` read it."""
        if self.forge == "github":
            return tuple(f":(glob){each}" for each in self.watched)
        return tuple(f"{each}/*" if each.endswith("**") else each for each in self.watched)

    def values(self) -> dict[str, object]:
        return {
            "runner": self.runner,
            "branch": self.branch,
            "environment": self.environment,
            "planning": self.planning,
            "nightly": self.nightly,
            "root": self.root,
            "suffix": self.suffix,
            "title": "" if self.root == "." else f" ({self.root})",
            "folders": self.folders,
            "clouds": self.clouds,
            "secrets": self.secrets,
            "previews": tuple(self.previews.items()),
            "watched": self.watched,
            "globs": self.globs,
            "beside": self.beside,
            "then": self.then,
            "before_merge": self.before_merge,
            "nightly_gc": self.nightly_gc,
            "days": str(KEPT_DAYS),
        }


def suffix(root: str) -> str:
    return "" if root == "." else "-" + root.replace("/", "-")


def beside(forge: Forge, root: str) -> str:
    return f".{forge}/orch{suffix(root)}"
