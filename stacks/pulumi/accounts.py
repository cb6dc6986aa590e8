"""The account that a stack belongs to: recorded with it, and compared before its resources count as gone.

A cloud answers "not found" to the key of another account as it does for what was deleted. So whoever believes
such an answer first compares the account of the present credentials with that of the stack, which is a tag
and lies beside any state. An `up` records it under the engine's lock, before it creates anything.

A stack without a record (an older orch made it), or on a cloud that tells no account, is compared by what it
records: if all of it is gone at once, that is not believed without `--forget`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orch.components.accounts import Account
from orch.components.deployment import SHARED
from orch.components.marks.marked import Survey
from orch.components.registry.backends import backends_of, require_backend
from orch.components.volumes import STACK as VOLUME
from orch.spec.errors import OrchError
from orch.spec.models.backends import title
from orch.stacks.engine.process import Event
from orch.stacks.errors import OtherAccount
from orch.stacks.events.changes import gone
from orch.stacks.events.kinds import counted_kinds
from orch.stacks.events.notation import type_of
from orch.stacks.project.project import Project
from orch.stacks.pulumi.progress import Note
from orch.stacks.secrets.values import backends_with_secrets
from orch.stacks.stack.command import plain, set_tag
from orch.stacks.stack.locks import subject
from orch.stacks.stack.state import StackState
from orch.stacks.stack.tags import last_tags, read_tags

TAG = "orch:accounts"
FOREIGN, GONE = "ORCH459", "ORCH349"

FRESH_S = 60.0
"""How long an answer counts: a controller runs for days, and credentials may change meanwhile."""

_WAITING = (":index:Gang", ":index:Ready")
"""How the types of resources end that wait for others: nothing in a cloud stands for them."""


@dataclass(frozen=True)
class RecordedAccount:
    """The account that a stack has resources in, as its tag tells it."""

    id: str
    words: str


def recorded_accounts(tags: Mapping[str, str]) -> dict[str, RecordedAccount]:
    """Return the accounts of a stack by backend; {} for a tag that orch has not written."""
    with suppress(ValueError, TypeError, AttributeError, KeyError):
        entries = json.loads(tags.get(TAG, "{}")).items()
        return {str(name): RecordedAccount(str(own["id"]), str(own["words"])) for name, own in entries}
    return {}


def in_clouds(resources: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return what stands in clouds of the recorded resources: urn -> id by backend."""
    found: dict[str, dict[str, str]] = {}
    backends: dict[str, frozenset[str]] = {}
    for each in resources:
        kind = str(each["type"])
        if not each.get("custom") or not each.get("id") or kind.startswith("pulumi:"):
            continue
        if kind not in backends:
            backends[kind] = frozenset() if kind.endswith(_WAITING) else backends_of([kind])
        for name in backends[kind]:
            found.setdefault(name, {})[str(each["urn"])] = str(each["id"])
    return found


def present_account(project: Project, backend: str) -> Account | None:
    """Return the account of the present credentials, None if nobody logs in. Raises what asking raises."""
    kept = project.accounts.get(backend)
    if kept is None or time.monotonic() - kept[0] > FRESH_S:
        settings = backends_with_secrets(project, [backend])
        # A program of `pulumi` by hand asks inside the engine's event loop, where SDKs refuse to wait.
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(require_backend(backend).account, settings, project.session).result()
        kept = project.accounts[backend] = (time.monotonic(), found)
    return kept[1]


def _account_of(stack: StackState, backend: str) -> Account | None:
    """Return the account in which the resources of a stack are asked for. Raises what asking raises."""
    if not require_backend(backend).accounts_per_stack:
        return present_account(stack.project, backend)
    if backend not in stack.accounts:
        from orch.stacks.pulumi.orphans import snapshot_of

        snapshot = snapshot_of(stack.recorded, stack.project)
        stack.accounts[backend] = require_backend(backend).recorded_account(snapshot, stack.project.root)
    return stack.accounts[backend]


def require_own(stack: StackState) -> None:
    """Raise OtherAccount if the credentials lead to another account than the stack's.

    Asks nobody about a stack without a record. Raises what asking raises."""
    if stack.exists:
        _compare(stack, recorded_accounts(last_tags(stack)))


def leads_elsewhere(stack: StackState) -> bool:
    """Return whether the stack has an account of its own and the credentials lead to another one.

    Raises what asking raises.
    """
    if not any(require_backend(name).accounts_per_stack for name in recorded_accounts(last_tags(stack))):
        return False
    try:
        require_own(stack)
    except OtherAccount:
        return True
    return False


def drop_record(stack: StackState, listener: Callable[[Any], object]) -> None:
    """Remove a stack whose account is gone for good. Asks and deletes nothing in the present one, which may
    be a copy of it. Raises StackError."""
    plain(stack, ["stack", "rm", "--force", "--yes"])
    shutil.rmtree(stack.project.dot / "work" / stack.name, ignore_errors=True)
    listener(Note(f"dropped from the record: the {subject(stack.name)}; nothing was deleted"))


def require_own_if_told(stack: StackState) -> None:
    """Do the same before work that needs no cloud: without credentials nothing is compared."""
    try:
        require_own(stack)
    except OtherAccount:
        raise
    except OrchError:
        return


def require_planned(stack: StackState, backend: str, planned: Account | None) -> None:
    """Raise OtherAccount if a plan is for another account than the one that has the stack.

    `planned`: as the plan tells it, None if the backend has one account for a project. Raises what asking
    raises."""
    if planned is None or not stack.exists:
        return
    before = recorded_accounts(last_tags(stack)).get(backend)
    if before is None and (own := _account_of(stack, backend)) is not None and own.id is not None:
        before = RecordedAccount(own.id, own.words)
    empty = _is_empty(stack)
    if before is not None and not planned.has(before.id) and not (empty and stack.project.forget):
        raise _foreign(stack, backend, before, planned, empty=empty)


def is_unsure(stack: StackState) -> bool:
    """Return whether an account has still to be confirmed by what is there."""
    names = in_clouds(stack.resources).keys() - stack.confirmed
    return not stack.project.forget and any(_account_of(stack, name) is not None for name in sorted(names))


def refuse_gone(stack: StackState, lost: Collection[str]) -> None:
    """Confirm the accounts where something of a stack was found.

    Raise OtherAccount if all that the stack records there is among the `lost` urns."""
    if (error := _doubt(stack, lost, in_clouds(stack.resources))) is not None:
        raise error


def doubt_of(stack: StackState, events: Sequence[Event]) -> OtherAccount | None:
    """Return why nobody may believe what a preview of a stack has found; None if something is there."""
    try:
        return _doubt(stack, gone(events), in_clouds(stack.resources)) if stack.exists else None
    except OrchError:
        return None  # without an answer, whoever changes the stack is told


def require_surveyed(stack: StackState, survey: Survey) -> None:
    """Raise OtherAccount if a look at a stack's clouds listed nothing of what the stack records there, and no
    record tells whether this is its account. What existed before orch bears no mark, and is never listed."""
    listed = {each.id for each in survey.resources}
    standing = in_clouds(each for each in stack.resources if not each.get("external"))
    # A look at a cluster lists empty namespaces alone.
    standing = {name: own for name, own in standing.items() if not require_backend(name).accounts_per_stack}
    lost = {urn for urns in standing.values() for urn, own in urns.items() if own not in listed}
    if not survey.unseen and (error := _doubt(stack, lost, standing)) is not None:
        raise error


def asked(project: Project, backends: Iterable[str]) -> dict[str, Account]:
    """Return the accounts of those backends that somebody logs in to. Raises what asking raises."""
    found = {name: present_account(project, name) for name in sorted(backends)}
    return {name: own for name, own in found.items() if own is not None}


def record(stack: StackState, present: Mapping[str, Account]) -> None:
    """Record the accounts of backends on which something is about to be created, as they were `asked`.

    The caller holds the stack, and has read its tags since; a program asks no cloud, for some SDKs refuse
    that there. Entries of backends on which nothing is recorded any more are dropped. Raises OtherAccount,
    StackError."""
    known = recorded_accounts(last_tags(stack))
    standing = in_clouds(stack.resources)
    accounts = {name: own for name, own in known.items() if name in standing or name in present}
    empty = _is_empty(stack)
    for name, own in present.items():
        if own.id is None:
            continue
        before = known.get(name)
        if before is not None and own.has(before.id):
            accounts[name] = RecordedAccount(own.completed(before.id), before.words)
            continue
        if before is not None and not (empty and stack.project.forget):
            raise _foreign(stack, name, before, own, empty=empty)
        accounts[name] = RecordedAccount(own.id, own.words)
    write(stack, accounts, known)
    stack.confirmed |= present.keys()


def write(
    stack: StackState, accounts: Mapping[str, RecordedAccount], known: Mapping[str, RecordedAccount]
) -> None:
    """Write the accounts of a stack where they are not the `known` ones. Raises StackError."""
    if accounts != known:
        told = {name: {"id": own.id, "words": own.words} for name, own in sorted(accounts.items())}
        set_tag(stack, TAG, json.dumps(told))


def give_up(stack: StackState) -> None:
    """Drop the accounts of a stack of which this call has left nothing: any account may have it next. One
    that cannot be dropped stays."""
    with suppress(OrchError):
        if _is_empty(stack):
            write(stack, {}, recorded_accounts(read_tags(stack)))


def copy(source: StackState, target: StackState) -> None:
    """Record with the copy of a stack which accounts it belongs to. Raises StackError."""
    write(target, recorded_accounts(read_tags(source)), {})


def _compare(stack: StackState, known: Mapping[str, RecordedAccount]) -> None:
    """Raise OtherAccount if the record of a stack names another account than the present one.

    Where nothing of its backends is recorded, as after a killed first `up`, all entries count, unless the
    user says to forget them."""
    if not known:
        return
    types = [str(each["type"]) for each in stack.resources]
    begun = (stack.recorded or {}).get("pending_operations") or ()
    used = backends_of([*types, *(str(each["resource"]["type"]) for each in begun)])
    empty = _is_empty(stack)
    for name, own in known.items():
        if (used and name not in used) or (empty and stack.project.forget):
            continue
        present = _account_of(stack, name)
        if present is None or present.id is None:
            continue  # one that tells no account any more is compared by what is there
        if not present.has(own.id):
            raise _foreign(stack, name, own, present, empty=empty)
        stack.confirmed.add(name)


def _is_empty(stack: StackState) -> bool:
    """Return True if nothing of a stack is recorded in any cloud, and no creation there is pending."""
    return not (stack.recorded or {}).get("pending_operations") and not in_clouds(stack.resources)


def _doubt(
    stack: StackState, lost: Collection[str], standing: Mapping[str, Mapping[str, str]]
) -> OtherAccount | None:
    """Confirm the accounts where something of what is `standing` there was found; return the error where all
    of it is gone."""
    if stack.project.forget:
        return None
    for name, urns in standing.items():
        if name in stack.confirmed:
            continue
        if urns.keys() <= set(lost):
            present = _account_of(stack, name)
            if present is not None:
                return _all_gone(stack, name, present, [type_of(urn) for urn in urns])
        stack.confirmed.add(name)
    return None


def _foreign(
    stack: StackState, backend: str, own: RecordedAccount, present: Account, *, empty: bool
) -> OtherAccount:
    name, volume, which, leave = stack.name, stack.name.partition(VOLUME)[2], own.id, ""
    if empty and "." not in name:
        leave = f"; nothing of it is recorded there: `orch down {name} --forget` gives it up"
    elif require_backend(backend).accounts_per_stack:
        forget = f"orch volume delete {volume} --forget" if volume else f"orch down {name} --force"
        which, leave = own.words, f"; if that is gone for good, `{forget}` drops the record"
    return OtherAccount(
        f"the {subject(stack.name)} belongs to {own.words}, and the credentials lead to {present.words}",
        detail=f"its account is {own.id}, the present one {present.id}, selected by {present.selected_by}; "
        "nothing was changed",
        hint=f"select the credentials of {which} in place of {present.selected_by}, and run the same "
        f"command again{leave}",
        code=FOREIGN,
    )


def _all_gone(stack: StackState, backend: str, present: Account, types: Sequence[str]) -> OtherAccount:
    name, volume = stack.name, stack.name.partition(VOLUME)[2]
    fleet = "FLEET" if name.startswith(SHARED) else name
    forget = f"orch volume delete {volume} --forget" if volume else f"orch refresh {fleet} --forget"
    why = "the account of the stack is not recorded"
    if present.id is None:
        why = f"{title(backend)} has no call that tells its account"
    return OtherAccount(
        f"all that the {subject(name)} records on {title(backend)} is gone at once; a key of another account "
        "finds the same",
        detail=f"gone: {counted_kinds(types)}; the credentials lead to {present.words}, selected by "
        f"{present.selected_by}; {why}; nothing was changed",
        hint=f"use a key of the account that has them; if they were deleted there, `{forget}` drops them "
        "from the record",
        code=GONE,
    )
