"""Makes the record of a plan that `preview` has just made: digests of all that it depends on, no secret."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from orch.components.deployment import Deployment
from orch.runner.upload.git import run_git
from orch.spec.confidential import MASK, SECRET_NAME, hidden
from orch.stacks.events.changes import Change, PropertyDrift, summary
from orch.stacks.events.masking import HIDDEN, is_secret
from orch.stacks.events.notation import fold, name_of
from orch.stacks.plans.marks import read_marks, serial_of, shown_lineage
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.recorder import Recorder
from orch.stacks.plans.request import FleetRequest
from orch.stacks.plans.saved_plan import (
    Commit,
    Decisions,
    DriftRecord,
    HostKey,
    Operation,
    Price,
    PriceList,
    RecordedState,
    StackPlan,
    Terms,
)
from orch.stacks.project.lockfile import read_lock
from orch.stacks.project.project import Project, scope_of
from orch.stacks.record.volumes import stack_of
from orch.stacks.stack.state import StackExport, StackState
from orch.stacks.volumes.operations import VolumeOutcome


@dataclass(frozen=True)
class Origin:
    """Place at which a stack is described, `where` as file:line, `file` as path; and the terms of the
    plan."""

    where: str
    file: Path
    terms: Terms


def fleet_plan(
    project: Project, request: FleetRequest, plan: Plan, recorder: Recorder, origin: Origin
) -> StackPlan:
    """The record of a fleet's plan. Raises StackError."""
    stack, compiled, recorded = StackState(project, request.name), None, None
    if plan.prepared is not None:
        stack, compiled, recorded = plan.prepared.stack, plan.prepared.compiled, plan.prepared.recorded
    lineage = read_marks(stack).lineage
    states = {stack.name: state_of(stack, recorded)}
    if compiled is not None and compiled.shared is not None:
        shared = stack.sibling(compiled.shared.stack)
        states[shared.name] = state_of(shared, shared.recorded)
    backends = {each.backend for each in compiled.priced} if compiled else set[str]()
    return StackPlan(
        kind="fleet",
        name=request.name,
        where=origin.where,
        file=relative(project, origin.file),
        files=file_digests(project, request),
        lineage=shown_lineage(lineage),
        states=states,
        decisions=decisions_of(project, request, compiled),
        place=compiled.place if compiled else None,
        nodes=compiled.nodes if compiled else (),
        prices=price_lists(backends),
        priced=tuple(_prices(compiled)) if compiled else (),
        cost=plan.hourly,
        delta=plan.delta,
        unpriced=plan.unpriced,
        providers=recorder.providers,
        operations=operations_of(plan.changes, recorder, lineage or ""),
        drift=drift_of(plan.drift),
        problems=tuple(sorted({f"{each.node} ({each.code})" for each in plan.problems})),
        new_keys=tuple(
            HostKey(host=each.host, key=each.key, fingerprint=each.fingerprint, source=each.source)
            for each in plan.new_keys
        ),
        reasons=plan.reasons,
        summary=summary(plan.changes),
        pending=plan.pending or plan.unrecorded,
    ).sealed(origin.terms, lineage or "")


def volume_plan(
    project: Project, outcome: VolumeOutcome, recorder: Recorder, origin: Origin, *, scope: str | None = None
) -> StackPlan:
    """The record of a volume's plan; `scope`: that of an approved one. Raises StackError."""
    stack = stack_of(project, outcome.name)
    lineage = read_marks(stack).lineage
    before, after = outcome.was_monthly, outcome.monthly
    return StackPlan(
        kind="volume",
        name=outcome.name,
        where=origin.where,
        file=relative(project, origin.file),
        files=volume_files(project, origin),
        lineage=shown_lineage(lineage),
        states={stack.name: state_of(stack, stack.recorded)},
        decisions=Decisions(scope=scope or scope_of(project)),
        cost=after,
        delta=None if before is None or after is None else round(after - before, 6) + 0.0,
        per="month",
        providers=recorder.providers,
        operations=operations_of(outcome.changes, recorder, lineage or ""),
        drift=drift_of(outcome.drift),
        reasons=outcome.reasons,
        summary=summary(outcome.changes),
        pending=outcome.pending,
    ).sealed(origin.terms, lineage or "")


def decisions_of(project: Project, request: FleetRequest, compiled: Deployment | None) -> Decisions:
    """Return the decisions of a plan that nothing else records."""
    if compiled is None:
        return Decisions(scope=scope_of(project))
    pins = compiled.pins
    images = {key: pins[key] for key in sorted(compiled.locked) if key in pins}
    created = pins.get("created", "")
    decided = request.decided
    return Decisions(
        scope=pins.get("scope") or (decided.scope if decided else scope_of(project)),
        created=int(created) if created.isdigit() else None,
        images=images,
    )


def operations_of(changes: Iterable[Change], recorder: Recorder, key: str) -> tuple[Operation, ...]:
    return tuple(
        Operation(
            urn=each.urn,
            op=each.op,
            replaces=tuple(leaf.path for leaf in each.diff if leaf.replaces),
            properties=tuple(leaf.path for leaf in each.diff),
            inputs=recorder.digests(each.urn, key),
        )
        for each in changes
        if each.op != "same"
    )


def drift_of(drift: Iterable[PropertyDrift]) -> tuple[DriftRecord, ...]:
    return tuple(
        DriftRecord(
            urn=each.urn,
            path=each.path,
            registered=_shown(each.path, each.registered),
            observed=_shown(each.path, each.observed),
        )
        for each in drift
    )


def _shown(path: str, value: Any) -> str:
    if SECRET_NAME.search(path):
        return HIDDEN
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return hidden(text)


def _prices(compiled: Deployment) -> Iterable[Price]:
    for each in compiled.priced:
        yield Price(
            nodes=fold(sorted(each.nodes)),
            machine=each.machine,
            place=each.place,
            market=each.market,
            price=each.price if each.price is None or math.isfinite(each.price) else None,
        )


def price_lists(backends: Iterable[str]) -> dict[str, PriceList]:
    """The price lists of backends as they are read now."""
    from orch.catalog.load import catalog

    lists = catalog().lists
    return {
        each: PriceList(
            as_of=lists[each].as_of,
            digest=_sha256(
                "\n".join(
                    f"{offer.type.name} {offer.region} {offer.price} {offer.spot_price}"
                    for offer in lists[each].offers
                ).encode()
            )[:16],
        )
        for each in sorted(backends)
        if each in lists
    }


# Files


def file_digests(project: Project, request: FleetRequest) -> dict[str, str | None]:
    """Digests of the files that a fleet's plan depends on, relative to the project's root. Of orch.lock, the
    part of this fleet: others come and go."""
    lock = str(project.lock_file)
    found = _digests_of(project, [Path(each) for each in request.files(project) if each != lock])
    pins = read_lock(project.lock_file, request.name)
    if pins:
        found[f"orch.lock ({request.name})"] = _sha256(json.dumps(pins, sort_keys=True).encode())
    return found


def volume_files(project: Project, origin: Origin) -> dict[str, str | None]:
    """The same of a volume's plan."""
    return _digests_of(project, [origin.file, project.root / "orch.yml"])


def _digests_of(project: Project, files: Iterable[Path]) -> dict[str, str | None]:
    return {relative(project, each): _file_digest(each) for each in files}


def relative(project: Project, file: Path) -> str:
    """A file's path relative to the project's root, where it is in it."""
    path = file if file.is_absolute() else Path.cwd() / file
    return str(path.relative_to(project.root)) if path.is_relative_to(project.root) else str(path)


def _file_digest(file: Path) -> str | None:
    try:
        return _sha256(file.read_bytes())
    except OSError:
        return None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# States


def state_of(stack: StackState, recorded: StackExport | None) -> RecordedState:
    """Return the identity of a recorded state: each resource, without the ciphertext of secrets, which
    differs each time they are encrypted."""
    deployment = recorded or {}
    found: dict[str, list[Any]] = {}
    for each in deployment.get("resources") or ():
        found.setdefault(str(each["urn"]), []).append(_without_ciphertext(each))
    return RecordedState(
        serial=serial_of(stack),
        resources={
            urn: _sha256(json.dumps(each, sort_keys=True, default=str).encode())[:16]
            for urn, each in sorted(found.items())
        },
        pending=tuple(
            sorted(name_of(each["resource"]["urn"]) for each in deployment.get("pending_operations") or ())
        ),
    )


def _without_ciphertext(value: Any) -> Any:
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        if is_secret(mapping):
            return MASK
        return {key: _without_ciphertext(each) for key, each in mapping.items()}
    return (
        [_without_ciphertext(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value
    )


# Git


def commit_of(root: Path, files: Iterable[str]) -> Commit | None:
    """The commit that the files of a plan are of, relative to `root`; None without git or a commit."""
    try:
        head = run_git(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], root)
    except OSError:
        return None
    if head.returncode:
        return None
    base = None
    for branch in ("refs/remotes/origin/HEAD", "refs/remotes/origin/main", "refs/remotes/origin/master"):
        done = run_git(["merge-base", "HEAD", branch], root)
        if not done.returncode:
            base = done.stdout.strip()
            break
    listed = list(files)
    status = run_git(["status", "--porcelain", "--", *listed], root) if listed else None
    dirty = status is not None and bool(status.returncode or status.stdout.strip())
    return Commit(commit=head.stdout.strip(), base=base, dirty=dirty)
