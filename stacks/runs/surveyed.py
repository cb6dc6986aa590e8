"""Where `orch gc` looks: every backend on which the project may have made something."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from orch.components.marks.marked import Survey
from orch.components.marks.orphans import StackSnapshot
from orch.components.registry.backends import backends_of, require_backend
from orch.spec.errors import OrchError
from orch.spec.models import Fleet, Volume
from orch.spec.models.backends import effective, provisioned
from orch.spec.models.backends.base import BackendSettings
from orch.spec.suggest import few
from orch.stacks.errors import ProjectError
from orch.stacks.project.project import Project
from orch.stacks.record.fleets import described_fleets, documents_of
from orch.stacks.secrets.values import backends_with_secrets


@dataclass(frozen=True)
class Surveyed:
    """Result of looking at all backends of a project. `backends`: those that were looked at."""

    survey: Survey
    backends: tuple[str, ...]


def survey_all(project: Project, state: StackSnapshot) -> Surveyed:
    """Look on all backends that orch.yml, the state, a fleet's or volume's file, or credentials in the
    environment name. `state`: the resources of all stacks.

    What could not be looked at is in the survey: a backend that does not answer, and files that nobody can
    read. Raises NoSuchSecret, StackError.
    """
    found = Survey()
    regions: dict[str, set[str]] = {}
    names = {each.type for each in project.backends}
    for backend, own in _described(project):
        names.add(backend)
        regions.setdefault(backend, set()).update(own)
    names |= set(_with_credentials(project))
    if broken := described_fleets(project.root)[1]:
        error = ProjectError(
            "files have errors, so their backends are not known",
            where=str(project.root),
            detail=few([str(each.relative_to(project.root)) for each in broken], 5),
            hint="`orch validate .` shows the errors",
        )
        found = replace(found, unseen=(error,))
    stated = backends_of(each.type for each in state.recorded)
    backends = tuple(sorted((names | stated) & set(provisioned())))
    for name in backends:
        try:
            entry = require_backend(name).entry(backends_with_secrets(project, [name]))
            # What the state alone names is looked at where the state has it.
            settings = (_with_regions(entry, regions.get(name, set())),) if name in names else ()
            one = replace(state, settings=settings)
            found = found.joined(require_backend(name).survey(project.name, one))
        except OrchError as error:
            found = replace(found, unseen=(*found.unseen, error))
    return Surveyed(found, backends)


def _described(project: Project) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The backends of fleets and volumes that files describe, with the regions that they name."""
    configured = tuple(each.type for each in project.backends)
    for _, fleet in documents_of(project.root, Fleet, "fleet"):
        written = effective(fleet.written_backends, configured) if fleet.ssh_config is None else ()
        for name in written:
            yield name, tuple(fleet.regions or ()) if len(written) == 1 else ()
    for _, volume in documents_of(project.root, Volume, "volume"):
        yield volume.backend, (volume.region,) if volume.region else ()


def _with_credentials(project: Project) -> Iterator[str]:
    """The backends whose credentials the environment has; in a rehearsal the accounts that have something."""
    for name in provisioned():
        try:
            keys = require_backend(name).key_variables
        except OrchError:  # another package's: whoever uses that backend is told
            continue
        if project.may_hold_more(name) if project.rehearsal else any(map(os.environ.get, keys)):
            yield name


def _with_regions(entry: BackendSettings, regions: set[str]) -> BackendSettings:
    """The settings with further regions; those that name none are of all."""
    own = getattr(entry, "regions", None)
    return entry.model_copy(update={"regions": tuple(sorted({*own, *regions}))}) if own else entry
