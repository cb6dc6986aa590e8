"""Moves the state of a project to another place: all of its stacks, or none.

The stacks stay where they were, leased to the move: whoever has the old `orch.yml` is told where they went.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from orch.runner.ledger.ledger import open_ledger
from orch.spec.errors import OrchError
from orch.spec.grammar.values import Problem, check_name, shown
from orch.spec.suggest import counted
from orch.stacks.errors import Conflict, ProjectError
from orch.stacks.project.passphrase import is_given, is_unfinished
from orch.stacks.project.project import Project
from orch.stacks.project.roots import MOVED
from orch.stacks.project.settings_file import change_settings
from orch.stacks.pulumi import accounts
from orch.stacks.pulumi.leasing import release, take
from orch.stacks.pulumi.progress import Activity, Listener
from orch.stacks.pulumi.recovery import recover, when_free
from orch.stacks.record.change_log import Journal, undertaken
from orch.stacks.record.evacuated import avoid, evacuated_zones
from orch.stacks.stack.leases import FOR_GOOD_S, HELD, lease_of, refuse_leased
from orch.stacks.stack.locks import subject
from orch.stacks.stack.state import HOLD, StackState, settings_file, stacks
from orch.stacks.states.holding import Hold, forget_former_move, state_held
from orch.stacks.states.sealing import new_seal, read_clear, require_equal, resources_of, write_sealed

VERB = "state move"
OCCUPIED = "ORCH424"

_URL = re.compile(r"(?:s3|gs|azblob|file|https?|postgres)://\S")
"""How the places begin where the engine keeps states. Source: Pulumi's documentation, "Managing state"."""


@dataclass(frozen=True)
class MovingStack:
    """A stack that moves, and of how many resources it is."""

    name: str
    resources: int

    @property
    def words(self) -> str:
        return f"{subject(self.name)}: {counted(self.resources, 'resource')}"


@dataclass(frozen=True)
class Move:
    """A move of a project's state. `target` is the project as it then is."""

    source: Project
    target: Project
    stacks: tuple[MovingStack, ...]


def plan_move(project: Project, url: str, provider: str | None) -> Move:
    """Plan a move of the state to a URL. Changes nothing.

    `provider`: what encrypts the secrets there; None keeps what does. Raises ProjectError (no place or the
    same, or no key for it), Conflict (ORCH424: other stacks of this project are there; somebody has a lease).
    """
    if not _URL.match(url):
        raise ProjectError(
            f"{shown(url)} is no place of a state",
            hint="write s3://BUCKET, gs://BUCKET, azblob://CONTAINER or file:///FOLDER",
            code="ORCH301",
        )
    url = _absolute(project, url)
    if _place(url) == _place(project.state_url):
        raise ProjectError("the state is there already", where=url, code="ORCH301")
    _require_name(project)
    if is_unfinished(project):
        raise Conflict(
            "a rotation of the passphrase is not finished: some stacks may have the former one",
            where=str(project.passphrase_file),
            hint="`orch rotate passphrase` finishes it; then move the state",
            code=HELD,
        )
    kept = provider if provider is not None else project.secrets_provider
    if not url.startswith("file://") and kept is None and not is_given():
        raise ProjectError(
            "a state outside this machine needs a key for its secrets",
            where=url,
            hint="add `--secrets-provider`, as awskms://alias/NAME, or set PULUMI_CONFIG_PASSPHRASE",
            code="ORCH301",
        )
    source = replace(project, owner=f"{MOVED}{url}")
    target = replace(project, state_url=url, secrets_provider=kept)
    target.prepare()
    refuse_leased(StackState(source, HOLD))
    moving: list[MovingStack] = []
    # What an interrupted move has written may be written again, and nothing else.
    there = set() if _goes_on(source, target) else set(stacks(target))
    for name in stacks(source):
        stack = StackState(source, name)
        refuse_leased(stack)
        moving.append(MovingStack(name, len(stack.resources)))
    if there:
        raise _occupied(target, sorted(there))
    return Move(source, target, tuple(moving))


def _require_name(project: Project) -> None:
    """Raises ProjectError where `orch.yml` cannot have the project's name, which is its folder's."""
    try:
        check_name(project.name)
    except Problem as problem:
        raise ProjectError(
            f"the project is called {project.name}, as its folder was: orch.yml takes no such name",
            where=str(project.root),
            detail=problem.summary,
            hint="all that is recorded has this name: bring the fleets up in a project of another name, and "
            "remove them here",
            code="ORCH301",
        ) from problem


def _absolute(project: Project, url: str) -> str:
    if url.startswith("file://") and not url.startswith("file:///"):
        return f"file://{(project.root / url.removeprefix('file://')).resolve()}"
    return (
        url.rstrip("/") if not url.startswith("file:///") else f"file://{Path(url.removeprefix('file://'))}"
    )


def _place(url: str) -> str:
    """Return the place of a state, with links resolved."""
    return os.path.realpath(url.removeprefix("file://")) if url.startswith("file://") else url


def _goes_on(source: Project, target: Project) -> bool:
    """Return True if this move was started before, and not finished."""
    with closing(open_ledger(source.ledger_url)) as ledger:
        unfinished = ledger.changes.listed(source.name, unfinished=True)
    return any((each.verb, each.subject) == (VERB, _words(source, target)) for each in unfinished)


def _words(source: Project, target: Project) -> str:
    return f"{source.name} to {target.state_url}"


def _occupied(target: Project, names: Iterable[str]) -> Conflict:
    return Conflict(
        f"that state has other stacks of the project {target.name}: {', '.join(map(subject, names))}",
        where=target.state_url,
        hint="another project, or another clone of this one, is there: give this one another `project`, "
        "or join it by `orch init --state`; copies that a move from there left are yours to put away first",
        code=OCCUPIED,
    )


def move(plan: Move, listener: Listener) -> Project:
    """Move the state, and write the new place into `orch.yml`; the project as it then is.

    Nothing is changed where a stack cannot be copied. The same call goes on with one that was killed. Raises
    Leased, StackLocked, StackError, ProjectError.
    """
    source, target = plan.source, plan.target
    taken: list[StackState] = []
    with (
        undertaken(source, VERB, _words(source, target), holds=("state",)) as journal,
        state_held(source, listener) as hold,
    ):
        forget_former_move(target, listener)
        try:
            names = _copy_all(plan, taken, journal, hold, listener)
            for name in names:
                journal.step("", f"key of {name}", partial(_take_key, source, target, name))
            settings: dict[str, str | None] = {"project": target.name, "state": target.state_url}
            if target.secrets_provider is not None:
                settings["secrets_provider"] = target.secrets_provider
            hold.keep_for_good()
            moved, _ = change_settings(source.root, settings)
        except OrchError:
            for stack in taken:
                if lease_of(stack) is not None:
                    for step in ("lease", "copy", "key of"):
                        journal.undo("", f"{step} {stack.name}", lambda: None)
                    release(stack, source.owner, listener)
            raise
        shutil.rmtree(_staging(target), ignore_errors=True)
        journal.result = f"{counted(len(names), 'stack')} moved"
    return moved


def _copy_all(
    plan: Move, taken: list[StackState], journal: Journal, hold: Hold, listener: Listener
) -> tuple[str, ...]:
    """Lease and copy all stacks, also those that appear meanwhile, until none is left; their names. `taken`
    gets each stack before it is leased."""
    source, target = plan.source, plan.target
    copied: list[str] = []
    while left := [name for name in stacks(source) if name not in copied]:
        for name in left:
            hold.extend()
            stack = StackState(source, name)
            taken.append(stack)
            journal.step("", f"lease {name}", partial(_lease, stack, listener))
            listener(Activity(f"copying the {subject(name)}"))
            journal.step("", f"copy {name}", partial(_copy, stack, target))
            copied.append(name)
    return tuple(copied)


def _lease(stack: StackState, listener: Listener) -> None:
    when_free(stack, listener, partial(recover, stack, listener))
    take(stack, stack.project.owner, FOR_GOOD_S, listener)


def _staged(target: Project) -> Project:
    """The target with settings of its own: those of the source's stacks stay until all are copied."""
    staged = replace(target, root=_staging(target))
    staged.prepare()
    if target.passphrase_file.exists() and not staged.passphrase_file.exists():
        staged.passphrase_file.write_bytes(target.passphrase_file.read_bytes())
        staged.passphrase_file.chmod(0o600)
    return staged


def _staging(target: Project) -> Path:
    return target.dot / "moving"


def _copy(stack: StackState, target: Project) -> str:
    staged = _staged(target)
    clear = read_clear(stack)
    copied, seal = StackState(staged, stack.name), new_seal(staged, stack.name)
    write_sealed(copied, clear, seal)
    require_equal(copied, clear, seal)
    for zone in sorted(evacuated_zones(stack)):
        avoid(copied, zone)
    accounts.copy(stack, copied)
    return counted(len(resources_of(clear)), "resource")


def _take_key(source: Project, target: Project, name: str) -> None:
    made = settings_file(_staged(target), name)
    if made.exists():
        made.replace(settings_file(source, name))
