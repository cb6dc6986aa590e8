"""`orch apply FILE`: `up` for the volumes and fleets of a file, `run` for its tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from orch.cli.context import project_at
from orch.cli.diagnostics import secrets_near, settings_near
from orch.cli.errors import UsageError, tell
from orch.cli.fleets.bring_up import UpMeans, bring_up
from orch.cli.options import (
    Detach,
    File,
    NewRunName,
    OnFleet,
    Profile,
    Rehearse,
    TraceOption,
    Variables,
    Yes,
    with_records,
)
from orch.cli.output.tracing import traced
from orch.cli.runs import run
from orch.cli.runs.submission import at_its_property, is_run, task_of_document
from orch.cli.targets.fleet_files import FleetFile
from orch.spec.suggest import few

if TYPE_CHECKING:
    from orch.spec.loader.load import Document


@dataclass(frozen=True)
class ApplyOptions:
    """The command line of `orch apply`."""

    file: File
    yes: Yes = False
    name: NewRunName = None
    env: Variables = None
    profile: Profile = None
    detach: Detach = False
    fleet: OnFleet = None
    rehearse: Rehearse = False
    trace: TraceOption = False


@traced
@with_records
def apply(options: ApplyOptions) -> None:
    """Bring up the fleets of a file, then run its tasks: `up` and `run` in one, as dstack users type it."""
    from orch.components.request import NO_CONSENT
    from orch.spec.models import Fleet, Volume

    file, rehearse, profile = options.file, options.rehearse, options.profile
    if file == "-":
        raise UsageError(
            "`apply` reads its file more than once", hint="`orch up -` or `orch run -` read stdin"
        )
    # Every mistake in the file is reported before anything is created.
    environ = {**os.environ, **run.variables_of(options.env or ())}
    documents = _documents(options, environ)
    if any(isinstance(each.model, Fleet | Volume) for each in documents):
        source = FleetFile(file, ("fleet", "volume"), rehearse, mixed=True, environ=environ, profile=profile)
        bring_up(source, NO_CONSENT, UpMeans(options.yes))
    if any(map(is_run, documents)):
        run_options = run.RunOptions(
            file,
            name=options.name,
            env=options.env,
            detach=options.detach,
            fleet=options.fleet,
            rehearse=rehearse,
            profile=profile,
            yes=options.yes,
        )
        run.start(run_options, mixed=True)


def _documents(options: ApplyOptions, environ: Mapping[str, str]) -> tuple[Document, ...]:
    """Return the documents of a file after all checks that need no node.

    Raises InvalidConfiguration, ProjectError, UsageError, BadRunName, BadTask, NoSuchFleet.
    """
    from orch.runner.plan.run_names import RunName
    from orch.runner.runs.lifecycle import check_task
    from orch.spec.document.draft import RUNS
    from orch.spec.loader.load import load_paths
    from orch.spec.models import Fleet, Volume
    from orch.stacks.errors import ProjectError
    from orch.stacks.record.fleets import require_up
    from orch.stacks.stack.state import StackState

    file, name, fleet = options.file, options.name, options.fleet
    if name is not None:
        RunName.parse(name)
    loaded = load_paths(
        [file],
        environ=environ,
        launch=("fleet", *RUNS, "volume"),
        common=settings_near(profile=options.profile),
        secrets=partial(secrets_near, file),
    )
    documents = loaded.require().documents
    fleets = [each.model.name for each in documents if isinstance(each.model, Fleet)]
    tasks = [each for each in documents if is_run(each)]
    if not tasks and not any(isinstance(each.model, Fleet | Volume) for each in documents):
        raise ProjectError("there is neither a fleet nor a task nor a volume in it", where=file)
    of_tasks = (name, options.env or None, options.detach or None, fleet, options.profile)
    if not tasks and any(each is not None for each in of_tasks):
        raise UsageError(
            "there is no task in it that --name, --env, --profile, --detach and --fleet could be for",
            where=file,
        )
    if fleet is not None and fleet not in fleets:
        require_up(StackState(project_at(file, rehearse=options.rehearse), fleet))
    for document in tasks:
        with at_its_property(document):
            check_task(task_of_document(document)[0], document.directory, environ)
    if other_kinds := [each.kind for each in documents if each.kind not in ("fleet", *RUNS, "volume")]:
        left_out = few(dict.fromkeys(other_kinds))
        tell(f"note: only volumes, fleets, tasks and dev environments are applied; left out: {left_out}")
    return documents
