"""`orch apply FILE`: `up` for the volumes and fleets of a file, `run` for its tasks."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from orch.cli.context import Detach, File, OnFleet, Profile, Rehearse, TraceOption, Variables, Yes, project_at
from orch.cli.diagnostics import secrets_near, settings_near
from orch.cli.errors import UsageError, tell
from orch.cli.fleets.targets import FleetFile
from orch.cli.fleets.up import UpMeans, bring_up
from orch.cli.output.tracing import traced
from orch.cli.runs import run
from orch.cli.runs.submission import at_its_property, is_run, task_of_document
from orch.spec.suggest import few


@traced
def apply(
    file: File,
    *,
    yes: Yes = False,
    name: Annotated[str | None, typer.Option("--name", "-n", help="The run's name.")] = None,
    env: Variables = None,
    profile: Profile = None,
    detach: Detach = False,
    fleet: OnFleet = None,
    rehearse: Rehearse = False,
    trace: TraceOption = False,
) -> None:
    """Bring up the fleets of a file, then run its tasks: `up` and `run` in one, as dstack users type it."""
    from orch.components.request import NO_CONSENT
    from orch.runner.ledger.run_names import RunName
    from orch.runner.runs.lifecycle import check_task
    from orch.spec.loader.document import RUNS
    from orch.spec.loader.load import load_paths
    from orch.spec.models import Fleet, Volume
    from orch.stacks.errors import ProjectError
    from orch.stacks.record.fleets import require_up
    from orch.stacks.stack.state import StackState

    del trace  # `traced` has seen to it
    env = env or []
    if file == "-":
        raise UsageError(
            "`apply` reads its file more than once", hint="`orch up -` or `orch run -` read stdin"
        )
    # Every mistake in the file is reported before anything is created.
    environ = {**os.environ, **run.variables_of(env)}
    if name is not None:
        name = RunName.parse(name)
    settings = settings_near(profile=profile)
    loaded = load_paths(
        [file],
        environ=environ,
        launch=("fleet", *RUNS, "volume"),
        common=settings,
        secrets=partial(secrets_near, file),
    )
    documents = loaded.require().documents
    models = [document.model for document in documents]
    fleets = [model.name for model in models if isinstance(model, Fleet)]
    has_fleets = bool(fleets) or any(isinstance(model, Volume) for model in models)
    has_tasks = any(map(is_run, documents))
    if not has_fleets and not has_tasks:
        raise ProjectError("there is neither a fleet nor a task nor a volume in it", where=file)
    if not has_tasks and (name is not None or env or detach or fleet is not None or profile is not None):
        raise UsageError(
            "there is no task in it that --name, --env, --profile, --detach and --fleet could be for",
            where=file,
        )
    if fleet is not None and fleet not in fleets:
        require_up(StackState(project_at(file, rehearse=rehearse), fleet))
    for document in documents:
        if is_run(document):
            with at_its_property(document):
                check_task(task_of_document(document)[0], document.directory, environ)
    if other_kinds := [each.kind for each in documents if each.kind not in ("fleet", *RUNS, "volume")]:
        left_out = few(dict.fromkeys(other_kinds))
        tell(f"note: only volumes, fleets, tasks and dev environments are applied; left out: {left_out}")
    if has_fleets:
        source = FleetFile(file, ("fleet", "volume"), rehearse, mixed=True, environ=environ, profile=profile)
        bring_up(source, NO_CONSENT, UpMeans(yes))
    if has_tasks:
        run.start(
            file,
            name=name,
            env=env,
            detach=detach,
            fleet=fleet,
            rehearse=rehearse,
            mixed=True,
            profile=profile,
            yes=yes,
        )
