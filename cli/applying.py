"""`orch apply FILE`: each document of a file as its type wants it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orch.cli.outcome import UsageError
from orch.spec import load_paths
from orch.spec.models import Fleet, Task
from orch.stacks.errors import ProjectError

if TYPE_CHECKING:
    from collections.abc import Sequence


def apply(
    file: str,
    *,
    yes: bool,
    name: str | None,
    env: Sequence[str],
    detach: bool,
    fleet: str | None,
    rehearse: bool,
) -> None:
    """Raises UsageError for options of runs when there is none to run, and what `up` and `run` raise."""
    from orch.cli import fleets, run

    if file == "-":
        raise UsageError(
            "`apply` reads its file more than once", hint="`orch up -` or `orch run -` read stdin"
        )
    environ = {**os.environ, **run.given_variables(env)}
    models = [document.model for document in load_paths([file], environ=environ).require().documents]
    has_fleets = any(isinstance(model, Fleet) for model in models)
    has_tasks = any(isinstance(model, Task) for model in models)
    if not has_fleets and not has_tasks:
        raise ProjectError("there is neither a fleet nor a task in it", where=file)
    if not has_tasks and (name is not None or env or detach or fleet is not None):
        raise UsageError(
            "there is no task in it that --name, --env, --detach and --fleet could be for", where=file
        )
    if has_fleets:
        fleets.up(
            file,
            yes=yes,
            as_json=False,
            accept_drift=False,
            accept_host_keys=(),
            rehearse=rehearse,
            mixed=True,
        )
    if has_tasks:
        run.start(file, name=name, env=env, detach=detach, fleet=fleet, rehearse=rehearse, mixed=True)
