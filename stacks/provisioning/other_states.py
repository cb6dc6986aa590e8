"""Whether a fleet or volume that this state does not know is in its cloud already, made by another state.

A clone whose `orch.yml` names another state plans a whole fleet, which then costs twice. Who plans a fleet
for the first time looks for its nodes by their marks; once it is recorded, nobody looks any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from orch.components.cloud.backend import CloudBackend
from orch.components.lifetime import words as moment_words
from orch.components.marks.marked import MarkedResource, Survey, machine_name, stack_of
from orch.components.marks.orphans import StackSnapshot
from orch.components.registry.backends import backend
from orch.components.registry.planning import require_backend
from orch.spec.diagnostics import Severity
from orch.spec.errors import ExitCode, OrchError
from orch.spec.findings import Finding
from orch.spec.models import Fleet, Volume
from orch.spec.models.backends import effective, provisioned
from orch.spec.models.backends.base import CloudSettings
from orch.spec.suggest import counted, few
from orch.stacks.errors import Conflict
from orch.stacks.project.project import Project, scope_of
from orch.stacks.pulumi.progress import Activity, Listener
from orch.stacks.secrets.values import backends_with_secrets
from orch.stacks.stack.state import StackState

CODE = "ORCH434"


def survey_of_fleet(project: Project, fleet: Fleet) -> Survey:
    """Find the resources with marks of the project on the clouds and in the regions of a fleet.

    Raises the error of a cloud if nothing of it could be read.
    """
    configured = tuple(each.type for each in project.backends)
    names = [
        name
        for name in (effective(fleet.written_backends, configured) if fleet.ssh_config is None else ())
        if isinstance(backend(name), CloudBackend) and project.may_hold_more(name)
    ]
    return _surveyed(project, names, fleet.regions)


def _surveyed(project: Project, names: Sequence[str], regions: Sequence[str]) -> Survey:
    if not names:
        return Survey()
    settings = backends_with_secrets(project, names)
    entries = [backend(name).entry(settings) for name in names]
    if len(entries) == 1 and regions and hasattr(entries[0], "regions"):
        entries = [entries[0].model_copy(update={"regions": tuple(regions)})]
    state, found = StackSnapshot((), (), tuple(entries), project.session), Survey()
    for name in names:
        try:
            found = found.joined(require_backend(name).survey(project.name, state))
        except OrchError as error:
            found = replace(found, unseen=(*found.unseen, error))
    return found


def other_fleets(stack: StackState, fleet: Fleet, listener: Listener) -> tuple[Finding, ...]:
    """Return a first plan's findings about nodes of the fleet that exist already; none for a fleet in the
    state, for which no cloud is asked. A cloud that does not answer is a note."""
    if _is_known(stack):
        return ()
    title = f"fleet {fleet.name}"
    found = _looked(lambda: survey_of_fleet(stack.project, fleet), title, listener)
    nodes = [each for each in found.resources if is_node(each, fleet.name)]
    findings = [_finding(stack.project, fleet, nodes)] if nodes else []
    return (*findings, *_unseen(found, title))


def other_volumes(stack: StackState, volume: Volume, listener: Listener) -> tuple[Finding, ...]:
    """The same of a volume that orch would make. A claim of a cluster has its name once."""
    project, name = stack.project, volume.backend
    named = volume.volume_id is not None or volume.claim_name is not None
    if named or name not in provisioned() or not issubclass(backend(name).settings, CloudSettings):
        return ()
    if _is_known(stack):
        return ()
    names, regions = ([name] if project.may_hold_more(name) else []), [volume.region] if volume.region else []
    title = f"volume {volume.name}"
    found = _looked(lambda: _surveyed(project, names, regions), title, listener)
    disks = [each for each in found.resources if each.holds_data and stack_of(each.mark) == stack.name]
    findings: list[Finding] = []
    if disks:
        own = scope_of(project) in {each.mark.rpartition("/")[2] for each in disks}
        summary = (
            f"the {title} is there, and its state here does not record it"
            if own
            else f"another state of the project {project.name} has made a {title}"
        )
        detail = few([f"{each.kind} {each.id} at {each.backend} {each.region}".strip() for each in disks])
        hint = "name that one by `volume_id`, or join the state that has it: `orch init --state URL`"
        findings = [Finding(CODE, "name", summary, detail, hint, Severity.WARNING)]
    return (*findings, *_unseen(found, title))


def _is_known(stack: StackState) -> bool:
    """Return whether a state has a resource of a stack; a lease or a saved plan makes an empty one."""
    recorded = stack.recorded or {}
    return bool(recorded.get("resources") or recorded.get("pending_operations"))


def _looked(look: Callable[[], Survey], title: str, listener: Listener) -> Survey:
    listener(Activity(f"looking whether another state has made the {title}"))
    try:
        return look()
    except OrchError as error:
        return Survey(unseen=(error,))


def _unseen(found: Survey, title: str) -> Iterator[Finding]:
    """Yield a note for each part of a survey that failed."""
    summary = f"whether another state has made the {title} is not known"
    # Without credentials of a backend nothing is made there: planning says what to set.
    lacking = [each for each in found.unseen if each.exit_code == ExitCode.CONFIG]
    for each in lacking:
        yield Finding(each.code or CODE, "name", summary, each.summary, severity=Severity.NOTE)
    if silent := [each for each in found.unseen if each not in lacking]:
        detail = "; ".join(each.summary for each in silent)
        hint = "have the cloud answer; if you are sure that there is none, add `--make-another`"
        yield Finding(CODE, "name", summary, detail, hint, Severity.NOTE)


def is_node(resource: MarkedResource, fleet: str) -> bool:
    """Return True if a found resource is a node of a fleet. Names in clouds without labels have more."""
    known = backend(resource.backend)
    if resource.type and isinstance(known, CloudBackend) and resource.type != known.node_type:
        return False
    name = machine_name(resource)
    return stack_of(resource.mark) == fleet and bool(name) and not str(name).endswith("-bastion")


def refuse_other_fleets(findings: Sequence[Finding], *, asked: bool = False) -> None:
    """Raises Conflict (ORCH434) when nodes of the fleet, or the volume, are there already, and when nobody
    knows, unless somebody who saw that was `asked`."""
    for each in findings:
        found = each.severity is Severity.WARNING
        if each.code == CODE and (found or not asked):
            more = "; to have both, add `--make-another`" if found else ""
            raise Conflict(each.summary, detail=each.detail, hint=f"{each.hint}{more}", code=CODE)


def _finding(project: Project, fleet: Fleet, nodes: Sequence[MarkedResource]) -> Finding:
    scopes = sorted({each.mark.rpartition("/")[2] for each in nodes})
    own = scope_of(project) in scopes
    places = sorted({f"{each.backend} {each.region}".strip() for each in nodes})
    facts = [f"{counted(len(nodes), 'node')} at {', '.join(places)}"]
    prices = [each.hourly for each in nodes if each.hourly is not None]
    facts += [f"${sum(prices):.2f} an hour"] if prices else []
    since = [each.created.timestamp() for each in nodes if each.created is not None]
    facts += [f"since {moment_words(min(since))}"] if since else []
    facts.append(f"mark {', '.join(sorted({each.mark for each in nodes}))}")
    facts += [f"of the state {url}" for url in _known_states(project, scopes)]
    if own:
        summary = f"nodes of the fleet {fleet.name} are there, and its state here does not record them"
        hint = "its state was lost: `orch state import` of the file rebuilds it, and makes nothing"
    else:
        summary = f"another state of the project {project.name} has made a fleet {fleet.name}"
        hint = (
            "where it is the same fleet, join that state: `orch init --state URL`, or rebuild one that was "
            "lost: `orch state import` of the file; else give this project another `project` in orch.yml"
        )
    return Finding(CODE, "name", summary, "; ".join(facts), hint, Severity.WARNING)


def _known_states(project: Project, scopes: Sequence[str]) -> list[str]:
    """The state of the folder itself, where its marks are among those: orch.yml names another one by now."""
    own = f"file://{project.root / '.orch' / 'state'}"
    return [own] if own != project.state_url and scope_of(replace(project, state_url=own)) in scopes else []
