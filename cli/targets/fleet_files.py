"""What FILE or NAME of a verb on fleets stands for: a file with its documents, or what is up under a name."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orch.cli.context import project_at
from orch.cli.diagnostics import load
from orch.cli.errors import tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from orch.components.request import Approvals
    from orch.spec.loader.load import Document
    from orch.spec.models import Fleet, Volume
    from orch.stacks.plans.request import FleetRequest
    from orch.stacks.project.project import Project


@dataclass(frozen=True)
class FleetFile:
    """A file with fleets, and how a verb reads it.

    `launch`: document types that the verb acts on, whose missing variables are errors. `mixed`: the caller
    acts on the file's other documents, so no note tells that they are left out. `environ`: variables for the
    file, by default this process's own. `owner`: who changes its stacks. `forget`: see `cli.options.Forget`.
    """

    file: str
    launch: Sequence[str] = ()
    rehearse: bool = False
    mixed: bool = False
    environ: Mapping[str, str] | None = None
    owner: str | None = None
    profile: str | None = None
    forget: bool = False
    _read: list[tuple[Project, tuple[Document, ...]]] = field(
        default_factory=list["tuple[Project, tuple[Document, ...]]"], init=False, repr=False, compare=False
    )

    def read(self) -> tuple[Project, tuple[Document, ...]]:
        """The documents of the file, read once, with the project it belongs to.

        Raises ProjectError when it has neither a fleet nor a volume.
        """
        from orch.spec.models import Fleet, Volume
        from orch.stacks.errors import ProjectError

        if self._read:
            return self._read[0]
        path = None if self.file == "-" else self.file
        project = project_at(path, rehearse=self.rehearse, owner=self.owner, forget=self.forget)
        backends = [each.type for each in project.backends]
        documents = load(
            self.file, launch=self.launch, environ=self.environ, backends=backends, profile=self.profile
        )
        # The project's own file lies in its folder; nobody starts it.
        own = [document for document in documents if document.kind != "project"]
        others = sum(not isinstance(document.model, (Fleet, Volume)) for document in own)
        if others and not self.mixed:
            tell(f"note: {others} of {len(own)} documents are no fleets; start tasks with `orch run`")
        if others == len(own):
            raise ProjectError(
                "there is no fleet in it", where=self.file, hint="a fleet begins with `type: fleet`"
            )
        self._read.append((project, documents))
        return project, documents

    def fleets(self) -> Iterator[tuple[Project, Document, Fleet]]:
        """The fleets of the file, with the project it belongs to. Raises as `read`."""
        from orch.spec.models import Fleet

        project, documents = self.read()
        for document in documents:
            if isinstance(document.model, Fleet):
                yield project, document, document.model

    def volumes(self) -> Iterator[tuple[Project, Document, Volume]]:
        """The volumes of the file, with the project it belongs to. Raises as `read`."""
        from orch.spec.models import Volume

        project, documents = self.read()
        for document in documents:
            if isinstance(document.model, Volume):
                yield project, document, document.model

    def read_again(self, name: str) -> tuple[Project, Document, Fleet]:
        """The fleet of this name as the file and `orch.yml` describe it now.

        Raises ProjectError when the file no longer has it.
        """
        from orch.stacks.errors import ProjectError

        for project, document, fleet in replace(self, mixed=True).fleets():
            if fleet.name == name:
                return project, document, fleet
        raise ProjectError(
            f"the file no longer describes the fleet {name}",
            where=self.file,
            hint="run the same command again",
        )

    def request(self, document: Document, fleet: Fleet, approvals: Approvals) -> FleetRequest:
        """Return the request to the stack of one of the file's fleets."""
        from orch.stacks.plans.request import FleetRequest

        path = document.file.absolute() if self.file != "-" else None
        return FleetRequest(fleet, document.directory.absolute(), approvals, path)


def is_file(target: str) -> bool:
    """Return True if FILE|NAME is a file."""
    return os.path.exists(target) or "/" in target or target.endswith((".yml", ".yaml")) or target == "-"


def fleets_at(target: str, *, rehearse: bool, forget: bool = False) -> list[tuple[Project, str]]:
    """A file's fleets, or the one fleet of a name in the project here."""
    if is_file(target):
        return fleets_of(FleetFile(target, rehearse=rehearse, forget=forget))
    return [(project_at(rehearse=rehearse, forget=forget), target)]


def stacks_of(target: str, *, rehearse: bool, owner: str | None = None) -> list[tuple[Project, str]]:
    """The stacks of a file's fleets and volumes, or the one stack of a name in the project here."""
    from orch.stacks.record.volumes import stack_of

    if not is_file(target):
        return [(project_at(rehearse=rehearse, owner=owner), target)]
    source = FleetFile(target, rehearse=rehearse, owner=owner)
    volumes = [(project, stack_of(project, volume.name).name) for project, _, volume in source.volumes()]
    return [*volumes, *fleets_of(source)]


def fleets_of(source: FleetFile) -> list[tuple[Project, str]]:
    """The fleets of a file by name, each with its project, in the order of the file."""
    return [(project, fleet.name) for project, _, fleet in source.fleets()]
