"""`orch preview` of a folder, and of anything as a review: a plan for each stack, several at once.

A stack that has no plan is told in its place, and the others go on. Each stack is planned in a process of
its own, which ends with it: the SDKs of clouds, imported before, are shared, and no more than a few are
there at a time.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from orch.cli.context import project_at
from orch.cli.errors import UsageError, say, tell, written_trace
from orch.cli.output.findings import report
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from orch.review.model import Review, StackReview
    from orch.spec import Diagnostic, Document, Loaded
    from orch.stacks.project import Project
    from orch.stacks.pulumi.operation import Progress
    from orch.stacks.saved_plans.record import Commit, SavedPlan, StackPlan, Terms

SCHEMA = 1

MOST_AT_ONCE = 4
"""An engine and its providers take a few hundred MiB each."""

WORST = (
    ExitCode.INTERRUPTED,
    ExitCode.BUG,
    ExitCode.PROVISION,
    ExitCode.CONFLICT,
    ExitCode.CONFIG,
    ExitCode.POLICY,
    ExitCode.HOSTS,
    ExitCode.CHANGES,
)
"""Exit codes, the worst first: what could not be looked at, then what is wrong or refused, then what is to
do."""


@dataclass(frozen=True)
class Wanted:
    """How stacks are previewed. `saves`: a saved plan is made of them, which is valid for `expires_s`
    seconds, None: as long as the project says; `basis`: what they stand on is told; `terms` are the saved
    plan's. `findings`: the format of a report of all that is found, which goes into the file `findings_out`,
    or in place of the plan to stdout.
    """

    rehearse: bool = False
    accept_new_host_keys: bool = False
    verbose: bool = False
    saves: bool = False
    expires_s: int | None = None
    basis: bool = False
    terms: Terms | None = None
    findings: str | None = None
    findings_out: str | None = None
    owner: str | None = None


Form = Literal["markdown", "html", "json", "object", "plan"]


@dataclass(frozen=True)
class Output:
    """A form of the plans, and the file that gets it; None is stdout. `object` is JSON that is one object,
    also of a single file."""

    form: Form
    file: str | None = None


_ENDINGS: Mapping[str, Form] = {".md": "markdown", ".html": "html", ".htm": "html", ".json": "plan"}


def outputs_of(forms: Sequence[Form], files: Sequence[str]) -> list[Output]:
    """What is written where: with a form, the one file gets it; without, the ending of each file says what it
    gets. Raises BadParameter."""
    if forms:
        if len(files) > 1:
            raise typer.BadParameter(f"with --{forms[0]}, one file is written", param_hint="--out")
        return [Output(forms[0], files[0] if files else None)]
    unknown = [each for each in files if Path(each).suffix.lower() not in _ENDINGS]
    if unknown:
        raise typer.BadParameter(
            f"say what to write to {unknown[0]}: --markdown, --html or --json; or name it .md, .html, or "
            ".json for a saved plan",
            param_hint="--out",
        )
    return [Output(_ENDINGS[Path(each).suffix.lower()], each) for each in files]


def review_in(folder: str) -> tuple[Output, ...]:
    """The whole review in a folder, which is made."""
    with suppress(OSError):  # which the first file tells
        os.makedirs(folder, exist_ok=True)
    names: tuple[tuple[Form, str], ...] = (
        ("markdown", "comment.md"),
        ("html", "review.html"),
        ("object", "review.json"),
    )
    return tuple(Output(form, os.path.join(folder, name)) for form, name in names)


@dataclass(frozen=True)
class Job:
    """A stack to preview: a fleet or a volume of a document."""

    kind: str
    name: str
    document: Document

    @property
    def where(self) -> str:
        span = self.document.span()
        return f"{span.file}:{span.line}"


@dataclass(frozen=True)
class Previewed:
    """What became of a job: the review, what a terminal shows and is told, the JSON, the exit code, its part
    of a saved plan.

    `findings`: what reports of findings have, with the names of policies as codes.
    """

    review: StackReview
    data: dict[str, Any]
    code: ExitCode = ExitCode.OK
    shown: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    pending: bool = False
    saved: StackPlan | None = None
    findings: tuple[Diagnostic, ...] = ()


@dataclass
class _Notes:
    """A listener that keeps what is told beside the plan."""

    texts: list[str] = field(default_factory=list[str])

    def __call__(self, event: Progress) -> None:
        from orch.stacks.pulumi.operation import Note

        if isinstance(event, Note):
            self.texts.append(event.text)


def preview_all(
    target: str, wanted: Wanted, outputs: Sequence[Output], *, shown: bool, exit_code: bool
) -> ExitCode:
    """Preview all stacks of a file or folder and print or write them; the worst exit code of them. `shown`:
    as text for people, too.

    Raises ProjectError when it has neither a fleet nor a volume, UsageError for a file that cannot be
    written.
    """
    from orch.cli.diagnostics import read
    from orch.spec.diagnostics import render_human
    from orch.spec.models import Fleet, Volume
    from orch.stacks.errors import ProjectError

    project = project_at(None if target == "-" else target, rehearse=wanted.rehearse, owner=wanted.owner)
    loaded = read(target, backends=[each.type for each in project.backends])
    if loaded.diagnostics:
        tell(render_human(loaded.diagnostics))
    jobs = [
        Job("fleet" if isinstance(each.model, Fleet) else "volume", each.model.name, each)
        for each in loaded.documents
        if isinstance(each.model, Fleet | Volume)
    ]
    broken = list(_broken(loaded))
    if not jobs and not broken:
        raise ProjectError("there is no fleet in it", where=target, hint="a fleet begins with `type: fleet`")
    refuse_overwriting(
        loaded, [*(each.file for each in outputs), wanted.findings_out], project.root / "orch.yml"
    )
    jobs.sort(key=lambda each: (each.name, each.kind, each.where))
    if wanted.saves:
        wanted = replace(wanted, terms=_terms(project, wanted, jobs))
    done = [*broken, *_run(jobs, project, loaded, wanted)]
    code = worst(each.code for each in done)
    if code == ExitCode.INTERRUPTED:
        tell("interrupted")
        return code
    if code == ExitCode.OK and exit_code and any(each.pending for each in done):
        code = ExitCode.CHANGES
    if wanted.findings is not None:
        found = (*loaded.diagnostics, *(diagnostic for each in done for diagnostic in each.findings))
        give(report(wanted.findings, found), wanted.findings_out)
        shown = shown and wanted.findings_out is not None
    if shown:
        _print(done)
    elif wanted.findings is not None or any(each.form != "json" for each in outputs):
        _tell(done)
    if outputs:
        _write(Written(target, project, done, wanted), outputs, code)
    return code


def refuse_overwriting(loaded: Loaded, files: Sequence[str | None], *more: Path) -> None:
    """Raises UsageError for a file that two outputs would get, or that is one of those previewed: of the
    loaded ones, or `more`. No link is followed: it may be a stranger's, and is what would be replaced."""
    sources = [*more, *(each.file for each in loaded.documents)]
    read = {os.path.abspath(each) for each in (*sources, *(each.span.file for each in loaded.diagnostics))}
    written: set[str] = set()
    for file in (each for each in files if each is not None and not _is_stream(Path(each))):
        place = os.path.abspath(file)
        if place in read or place in written:
            raise UsageError(
                "this file is one of those that are previewed"
                if place in read
                else "two outputs go to this file",
                where=file,
                hint="name another file; nothing was written",
            )
        written.add(place)


def _terms(project: Project, wanted: Wanted, jobs: Sequence[Job]) -> Terms:
    from orch import __version__
    from orch.stacks.pulumi.install import require
    from orch.stacks.saved_plans.record import Terms

    made = datetime.now(timezone.utc).replace(microsecond=0)
    seconds = project.saved_plan_s if wanted.expires_s is None else wanted.expires_s
    try:
        expires = made + timedelta(seconds=seconds)
    except OverflowError as error:
        raise UsageError("a saved plan cannot be valid for that long", hint="write `3d`") from error
    return Terms(
        project=project.name,
        rehearsal=project.rehearsal,
        made=made,
        expires=expires,
        orch=__version__,
        engine=require().version,
        stacks=tuple(f"{each.kind} {each.name}" for each in jobs),
    )


@dataclass(frozen=True)
class Written:
    """What outputs are made of."""

    target: str
    project: Project
    done: Sequence[Previewed]
    wanted: Wanted


def _write(written: Written, outputs: Sequence[Output], code: ExitCode) -> None:
    from orch.review.html import html
    from orch.review.markdown import markdown

    wanted = written.wanted
    commit = _commit(written) if wanted.basis else None
    saved = _saved(written, wanted.terms, commit) if wanted.terms is not None else None
    file = next((each.file for each in outputs if each.form == "plan"), None)
    review = _review(written, commit, saved, file)
    for each in outputs:
        if each.form in ("json", "object"):
            text = _json(written.target, written.done, code, whole=each.form == "object")
        elif each.form == "plan":
            text = saved.text() if saved is not None else ""
        else:
            text = (markdown if each.form == "markdown" else html)(review)
        give(text, each.file)
    if saved is not None and saved.unplanned:
        names = ", ".join(each.title for each in saved.unplanned)
        tell(f"the saved plan cannot be applied: there is no plan of {names}")


def _commit(written: Written) -> Commit | None:
    from orch.stacks.saved_plans.fingerprint import commit_of

    done, root = written.done, written.project.root
    files = {file for each in done if each.saved is not None for file in each.saved.files if " (" not in file}
    files |= {os.path.relpath(each.review.where.partition(":")[0], root) for each in done}
    return commit_of(root, sorted(file for file in files if not file.startswith(("..", "/"))))


def _saved(written: Written, terms: Terms, commit: Commit | None) -> SavedPlan:
    from orch.stacks.saved_plans.record import SavedPlan, Unplanned

    return SavedPlan(
        path=os.path.relpath(written.target),
        terms=terms,
        git=commit,
        stacks=tuple(each.saved for each in written.done if each.saved is not None),
        unplanned=tuple(
            Unplanned(
                title=each.review.title,
                where=each.review.where,
                summary=each.review.failure.summary if each.review.failure else "it has no plan",
            )
            for each in written.done
            if each.saved is None
        ),
    )


def worst(codes: Iterator[ExitCode]) -> ExitCode:
    found = set(codes)
    return next((each for each in WORST if each in found), ExitCode.OK)


def _review(written: Written, commit: Commit | None, saved: SavedPlan | None, file: str | None) -> Review:
    from orch.review.model import Basis, Review, worst_first
    from orch.stacks.saved_plans.record import stamp

    target, root = written.target, written.project.root
    path = os.path.relpath(target, root) if target != "-" else "-"
    stacks = worst_first([each.review for each in written.done])
    basis = Basis(
        commit=commit.commit if commit else "",
        base=(commit.base or "") if commit else "",
        dirty=commit.dirty if commit else False,
        plan=saved.id if saved else "",
        valid_until=stamp(saved.terms.expires) if saved else "",
    )
    command = f"orch up --plan {file}" if saved and file else f"orch up {path}"
    return Review(written.project.name, path, stacks, command, basis)


def _json(target: str, done: Sequence[Previewed], code: ExitCode, *, whole: bool = False) -> str:
    """One object for a folder, or with `whole`; for a file one for each of its stacks, as without `--out`."""
    if not whole and not os.path.isdir(target):
        return "".join(json.dumps(each.data, indent=2, ensure_ascii=False) + "\n" for each in done)
    data = {
        "schema": SCHEMA,
        "path": target,
        "stacks": [
            {
                "where": each.review.where,
                "verdict": each.review.verdict,
                "exit_code": int(each.code),
                **each.data,
            }
            for each in done
        ],
        "exit_code": int(code),
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def give(text: str, out: str | None) -> None:
    """Print a text, or write it to a file that has all of it or stays as it was. Raises UsageError."""
    if out is None:
        print(text, end="")
        return
    data = text.encode("utf-8", "backslashreplace")  # a file's name may have bytes that are no UTF-8
    try:
        if _is_stream(Path(out)):
            Path(out).write_bytes(data)
        else:
            _replace(Path(out), data)
    except OSError as error:
        raise UsageError(
            "the file cannot be written",
            where=out,
            detail=error.strerror or str(error),
            hint="name a file in a folder that you may write to",
        ) from error
    tell(f"written: {out}")


def _is_stream(path: Path) -> bool:
    """Whether it is a pipe, a device or a name of one, such as /dev/stdout. Any other link may be a
    stranger's, who chose where it leads: it is replaced."""
    if os.path.islink(path):
        return str(path.parent) in ("/dev", "/dev/fd") or path.is_relative_to("/proc")
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _replace(path: Path, data: bytes) -> None:
    """Write a file that has all of it or stays as it was. Raises OSError."""
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def _print(done: Sequence[Previewed]) -> None:
    for each in done:
        for line in each.shown:
            say(line)
        for line in each.told:
            tell(line)


def _tell(done: Sequence[Previewed]) -> None:
    for each in done:
        for line in each.told:
            tell(line)


def _broken(loaded: Loaded) -> Iterator[Previewed]:
    """A failure for each file with errors; its valid documents are previewed all the same."""
    from orch.review.assess import failed_review
    from orch.spec import InvalidConfiguration, Severity

    of_file: dict[str, list[Diagnostic]] = {}
    for each in loaded.diagnostics:
        of_file.setdefault(each.span.file, []).append(each)
    for file, diagnostics in of_file.items():
        first = next((each for each in diagnostics if each.severity is Severity.ERROR), None)
        if first is None:
            continue
        review = failed_review("file", file, f"{file}:{first.span.line}", InvalidConfiguration(diagnostics))
        data = {"schema": SCHEMA, "file": file, "diagnostics": [each.as_dict() for each in diagnostics]}
        yield Previewed(review, data, ExitCode.CONFIG)


# Processes


def _run(jobs: Sequence[Job], project: Project, loaded: Loaded, wanted: Wanted) -> list[Previewed]:
    """The jobs in their order, a few at a time. One that ends without an answer is a failure."""
    at_once = min(len(jobs), os.cpu_count() or 1, MOST_AT_ONCE)
    if at_once < 2 or sys.platform != "linux":
        return [_previewed(job, project, loaded, wanted) for job in jobs]
    _import_before(jobs, project)
    context = multiprocessing.get_context("fork")
    done: dict[int, Previewed] = {}
    running: dict[Connection, tuple[int, Any]] = {}
    waiting = list(enumerate(jobs))
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                at, job = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(theirs, job, project, loaded, wanted))
                process.start()
                theirs.close()
                running[ours] = (at, process)
            for each in wait(list(running)):
                at, process = running.pop(each)  # type: ignore[arg-type]
                try:
                    done[at] = each.recv()  # type: ignore[union-attr]
                except EOFError:
                    process.join()
                    done[at] = _ended(jobs[at], process.exitcode)
                each.close()  # type: ignore[union-attr]
                process.join()
                tell(f"planned {len(done)} of {len(jobs)}: {jobs[at].kind} {jobs[at].name}")
    finally:
        for ours, (_, process) in running.items():
            ours.close()
            process.terminate()
        for _, process in running.values():
            process.join()
        signal.signal(signal.SIGTERM, before)
    return [done[at] for at in sorted(done)]


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _import_before(jobs: Sequence[Job], project: Project) -> None:
    """Import what the processes need, once for all of them."""
    import orch.stacks.operations
    import orch.stacks.volumes.operations  # noqa: F401
    from orch.components.registry import backend
    from orch.spec.models import Fleet
    from orch.spec.models.backends import effective

    settings = tuple(each.type for each in project.backends)
    fleets = [job.document.model for job in jobs if isinstance(job.document.model, Fleet)]
    names = {
        "ssh" if fleet.ssh_config is not None else name
        for fleet in fleets
        for name in (effective(fleet.written_backends, settings) or ("",))[:1]
    }
    for name in sorted(names - {""}):
        # One that cannot be imported is told where its fleet is planned.
        with suppress(OrchError, ImportError):
            backend(name).module("resources")


def _child(answer: Connection, job: Job, project: Project, loaded: Loaded, wanted: Wanted) -> None:
    """Preview one stack in a process of its own. Ctrl-C is the parent's, who passes it on as SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    code = ExitCode.OK
    try:
        if wanted.rehearse:
            # Its account has an open database, which no two processes may share.
            from orch.rehearsal.project import rehearse
            from orch.stacks.project import find

            project = rehearse(find(project.root)).project
        answer.send(_previewed(job, project, loaded, wanted))
    except (KeyboardInterrupt, OSError):  # the parent was stopped, and waits for no answer
        code = ExitCode.INTERRUPTED
    sys.stderr.flush()
    os._exit(code)


def _ended(job: Job, code: int | None) -> Previewed:
    from orch.stacks.errors import StackError

    error = StackError(
        f"the process that planned the {job.kind} {job.name} ended ({code})",
        hint="run it alone; the system's log may tell what ended it",
        code="ORCH346",
    )
    return _failed(job, error)


# One stack


def _previewed(job: Job, project: Project, loaded: Loaded, wanted: Wanted) -> Previewed:
    """One stack: no error of it reaches the others."""
    from orch.cli.output.redaction import mask

    try:
        result = (_fleet if job.kind == "fleet" else _volume)(job, project, loaded, wanted)
    except OrchError as error:
        result = _failed(job, error)
    except KeyboardInterrupt:
        result = replace(_failed(job, OrchError("interrupted")), code=ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - a bug with one stack is told in its place
        bug = OrchError(
            f"this is a bug in orch: {type(error).__name__}: {error}",
            hint=f"the full trace is in {written_trace()}; please report it with that file",
        )
        result = _failed(job, bug)
    return _cleaned(result, mask())


def _fleet(job: Job, project: Project, loaded: Loaded, wanted: Wanted) -> Previewed:
    from orch.cli.output.plan import (
        cost_line,
        counts,
        key_lines,
        plan_json,
        plan_lines,
        reason_lines,
        run_lines,
        warning_lines,
    )
    from orch.cli.output.review import judged_with_runs, on_nodes_that_go
    from orch.components.request import Approvals
    from orch.policies.settings import finding_of
    from orch.review.assess import FleetSubject, fleet_review
    from orch.review.model import PolicyResult
    from orch.spec.diagnostics import render_human
    from orch.spec.findings import PlanError
    from orch.spec.models import Fleet
    from orch.stacks import operations
    from orch.stacks.request import FleetRequest
    from orch.stacks.saved_plans.fingerprint import Origin, fleet_plan
    from orch.stacks.saved_plans.marks import serial_of
    from orch.stacks.saved_plans.recorder import Recorder

    document, fleet, notes = job.document, job.document.model, _Notes()
    if not isinstance(fleet, Fleet):
        raise TypeError(f"{job.name} is no fleet")
    warnings = document.effective()
    file = document.file.absolute() if document.file.name != "<stdin>" else None
    approvals = Approvals(unseen="all" if wanted.accept_new_host_keys else "none")
    request = FleetRequest(fleet, document.directory.absolute(), approvals, file)
    terms = wanted.terms
    recorder = Recorder() if terms is not None else None
    try:
        plan = operations.preview(project, request, notes, recorder=recorder)
    except PlanError as error:
        raise error.placed(document) from error
    saved = None
    if recorder is not None and terms is not None:
        origin = Origin(job.where, document.file.absolute(), terms)
        saved = fleet_plan(project, request, plan, recorder, origin)
    occupants = on_nodes_that_go(project, plan, notes)
    plan = judged_with_runs(plan, project, request, occupants)
    found = [*warnings, *(each.placed(document) for each in plan.findings)]
    violated = [finding_of(each).placed(document) for each in plan.policies]
    named = zip(violated, (each.rule.name for each in plan.policies), strict=True)
    data = plan_json(plan, document, occupants)
    prepared = plan.prepared
    review = fleet_review(
        FleetSubject(
            plan,
            fleet,
            job.where,
            prepared.compiled if prepared else None,
            prepared.stack.nodes if prepared else (),
            occupants,
            [*_warnings_of(document, loaded), *found],
            [PolicyResult.of(each) for each in data["policies"]],
            _prices({each.backend for each in prepared.compiled.priced} if prepared else set()),
        )
    )
    if wanted.basis and prepared is not None:
        review = replace(review, serial=saved.serial if saved else serial_of(prepared.stack))
    shown = [*found, *violated]
    told = [*notes.texts, *([render_human(shown)] if shown else []), *warning_lines(plan.warnings)]
    refused = any(each.refuses for each in plan.policies)
    return Previewed(
        review,
        data,
        ExitCode.POLICY if refused else ExitCode.HOSTS if plan.problems else ExitCode.OK,
        (
            *plan_lines(plan, colour=False, verbose=wanted.verbose),
            *key_lines(plan.new_keys),
            *reason_lines(plan, colour=False, verbose=wanted.verbose),
            f"plan: {counts(plan.changes, moves=plan.headline.moves)}; {cost_line(plan)}",
            *run_lines(occupants),
        ),
        (*told, *(each.text() for each in plan.problems)),
        plan.pending,
        saved,
        (*found, *(replace(each, code=name) for each, name in named)),
    )


def _volume(job: Job, project: Project, loaded: Loaded, wanted: Wanted) -> Previewed:
    from orch.cli.output.volumes import outcome_json, outcome_lines
    from orch.review.assess import volume_review
    from orch.spec.diagnostics import render_human
    from orch.spec.findings import PlanError
    from orch.spec.models import Volume
    from orch.stacks.saved_plans.fingerprint import Origin, volume_plan
    from orch.stacks.saved_plans.marks import serial_of
    from orch.stacks.saved_plans.recorder import Recorder
    from orch.stacks.volumes.operations import preview_volume
    from orch.stacks.volumes.state import stack_of

    document, volume, notes = job.document, job.document.model, _Notes()
    if not isinstance(volume, Volume):
        raise TypeError(f"{job.name} is no volume")
    warnings = document.effective()
    terms = wanted.terms
    recorder = Recorder() if terms is not None else None
    try:
        outcome = preview_volume(project, volume, notes, recorder=recorder)
    except PlanError as error:
        raise error.placed(document) from error
    saved = None
    if recorder is not None and terms is not None:
        origin = Origin(job.where, document.file.absolute(), terms)
        saved = volume_plan(project, outcome, recorder, origin)
    found = [*warnings, *(each.placed(document) for each in outcome.findings)]
    review = volume_review(outcome, job.where, [*_warnings_of(document, loaded), *found])
    if wanted.basis:
        review = replace(review, serial=saved.serial if saved else serial_of(stack_of(project, volume.name)))
    told = (*notes.texts, *([render_human(found)] if found else []))
    shown = tuple(outcome_lines(outcome, verbose=wanted.verbose))
    return Previewed(
        review, outcome_json(outcome), ExitCode.OK, shown, told, outcome.pending, saved, tuple(found)
    )


def _failed(job: Job, error: OrchError) -> Previewed:
    from orch.cli.output.plan import refused_json
    from orch.review.assess import failed_review
    from orch.spec import InvalidConfiguration

    problems = getattr(error, "problems", ())
    data = refused_json(job.name, error, problems)
    if isinstance(error, InvalidConfiguration):
        data["diagnostics"] = [each.as_dict() for each in error.diagnostics]
    if job.kind == "volume":
        data = {"schema": SCHEMA, "volume": job.name, "summary": None, "diagnostics": data["diagnostics"]}
    review = failed_review(job.kind, job.name, job.where, error)
    shown = (f"{job.kind} {job.name}", "plan: none, see the message")
    found = (
        error.diagnostics
        if isinstance(error, InvalidConfiguration)
        else (
            job.document.diagnostic(
                error.code or "ORCH346", "", error.summary, detail=error.detail, hint=error.hint
            ),
        )
    )
    return Previewed(review, data, ExitCode(error.exit_code), shown, (error.text(),), findings=tuple(found))


def _warnings_of(document: Document, loaded: Loaded) -> list[Diagnostic]:
    """Warnings of the file that are about this document."""
    span = document.draft.node.span
    return [
        each
        for each in loaded.diagnostics
        if each.span.file == span.file and span.line <= each.span.line <= span.end_line
    ]


def _prices(backends: set[str]) -> str:
    """Which price lists the prices are from, and of when."""
    from orch.catalog.load import catalog

    lists = [catalog().lists[each] for each in sorted(backends) if each in catalog().lists]
    return ", ".join(
        f"list of {each.backend}, {each.as_of}{' (fetched to this machine)' if each.refreshed else ''}"
        for each in lists
    )


def _cleaned(value: Any, mask: Callable[[str], str]) -> Any:
    """The same with all text masked, however deep it is. A saved plan has been made without secrets; its
    words for people are masked."""
    from orch.stacks.saved_plans.record import StackPlan

    if isinstance(value, Enum):
        return value
    if isinstance(value, StackPlan):
        return value.model_copy(update={"reasons": tuple(map(mask, value.reasons))})
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {_cleaned(key, mask): _cleaned(item, mask) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_cleaned(item, mask) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{each.name: _cleaned(getattr(value, each.name), mask) for each in fields(value)}
        )
    return value
