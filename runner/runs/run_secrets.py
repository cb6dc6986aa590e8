"""The secrets of a run: which it refers to, and what they are when its containers start.

The folder of a run keeps its variables and the log-in to its registry as they are written, with references.
Whoever starts its ranks fills them in, from what the project's store has then: the process that submitted the
run, or one that took over. The values go to the nodes as input, and lie in no file of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import RunFailed, RunnerError
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.ledger.run_folder import RunFolder, find_folder
from orch.runner.node.registry import RegistryLogin
from orch.runner.placement.rank_groups import rank_groups
from orch.runner.plan.run_names import RunName
from orch.spec.grammar.interpolate import fill_secrets, secret_names
from orch.spec.state import FleetState

if TYPE_CHECKING:
    from orch.runner.ledger.ledger import Ledger
    from orch.spec.models import Task

Secrets = Callable[[Collection[str]], Mapping[str, str]]
"""The values of secrets by name. Raises OrchError for one that is not set, or that cannot be decrypted."""


def no_store(names: Collection[str]) -> Mapping[str, str]:
    """The secrets of who has no store."""
    if missing := sorted(names):
        raise RunFailed(f"no store of secrets is open here, and the run needs {', '.join(missing)}")
    return {}


def names_in(task: Task, fleet: FleetState) -> frozenset[str]:
    """The secrets that a task on a fleet may refer to."""
    texts = [text for group in rank_groups(task) for text in group.env.values() if text is not None]
    texts += fleet.env.values()
    texts += [value for node in fleet.nodes for value in node.env.values()]
    if task.registry_auth is not None:
        texts += [task.registry_auth.username, task.registry_auth.password]
    return secret_names(*texts)


def filled_environments(folder: RunFolder, secrets: Secrets) -> tuple[dict[str, str], ...]:
    """The final environment of each rank. Raises RunFailed, and what `secrets` raises."""
    environments = folder.environments()
    values = _values([text for each in environments for text in each.values()], secrets)
    return tuple({name: fill_secrets(text, values) for name, text in each.items()} for each in environments)


def filled_login(folder: RunFolder, image: str, secrets: Secrets) -> RegistryLogin | None:
    """The log-in to the registry of the run's image; None for a run without one. Raises as above."""
    written = folder.registry_auth()
    if written is None:
        return None
    values = _values(written, secrets)
    username, password = (fill_secrets(text, values) for text in written)
    return RegistryLogin.of(image, username, password, shown=written[0])


def runs_that_need(dot: Path, ledger: Ledger, name: str) -> tuple[RunRow, ...]:
    """The active runs that have still to be given a secret: those whose commands have not begun, and those
    that may be tried again. Of runs that were submitted from elsewhere nothing is known here."""
    found: list[RunRow] = []
    arrays: dict[Path, bool] = {}
    for row in ledger.runs(active_only=True):
        try:
            retried = plan_of(row).retry is not None
            folder = find_folder(dot, RunName.from_ledger(row.name), row.id, row.array)
            if not folder.has_environments:
                if row.phase == "waiting" and folder.array is not None and folder.has_launch:
                    if folder.array not in arrays:
                        arrays[folder.array] = name in _names_in_launch(folder)
                    found += [row] if arrays[folder.array] else []
                continue
            texts = [text for each in folder.environments() for text in each.values()]
            texts += folder.registry_auth() or ()
        except RunnerError:  # another version's, or it has just ended
            continue
        if name in secret_names(*texts) and (retried or row.started_at is None):
            found.append(row)
    return tuple(found)


def _names_in_launch(folder: RunFolder) -> frozenset[str]:
    """The secrets that an attempt which has still to be made may refer to."""
    from orch.runner.launch.launch_record import LaunchRecord

    record = LaunchRecord.kept(folder)
    return names_in(record.task, record.fleet)


def _values(texts: Sequence[str], secrets: Secrets) -> Mapping[str, str]:
    names = secret_names(*texts)
    return secrets(names) if names else {}
