"""What NVIDIA's DCGM tells: `dcgmi health -c -j` and `dcgmi diag -j`, in the shapes of DCGM 3 and 4. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orch.runner.health.findings import HealthReport, ReportBuilder
from orch.runner.health.readers.sections import MISSING, Section, items, mapping
from orch.runner.health.readers.xids import Action

# dcgm_errors.h, dcgmErrorSeverity_enum: what DCGM 4 says of each error.
_MONITOR, _ISOLATE, _TRIAGE, _CONFIG, _RESET = 1, 2, 4, 5, 6

_ABSENT = (
    "unable to establish a connection",
    "host engine is not running",
    "unable to connect",
    "not supported",
    "no supported gpus",
)


def read_watches(section: Section, *, linked: bool = True) -> HealthReport:
    """The health that DCGM's watches told.

    `linked`: NVLinks join the GPUs. DCGM calls those of cards without a bridge faults, up to 4.4 at least
    (https://github.com/NVIDIA/NVSentinel/pull/1481): without any that is up they are told as skipped.
    """
    notes = ReportBuilder()
    body = mapping(mapping(section.json()).get("body"))
    if not body:
        _skip("dcgm health", section, notes)
        return notes.report()
    notes.made("dcgm health")
    told = 0
    for group, entities in body.items():
        for number, entity in mapping(mapping(entities).get("children")).items():
            errors = mapping(mapping(mapping(entity).get("children")).get("Errors"))
            for system, error in mapping(errors.get("children")).items():
                if system.lower().startswith("nvlink") and not linked:
                    notes.skip("dcgm health: nvlink", "no NVLink is active: the GPUs may not be joined")
                    told += 1
                else:
                    told += _judge_watch(f"{group} {number}", system, mapping(error), notes)
    overall = str(mapping(body.get("Overall Health")).get("value", ""))
    if overall in ("Failure", "Warning") and not told:
        (notes.fail if overall == "Failure" else notes.warn)(
            "dcgm health", "node", f"DCGM says {overall.lower()} and tells no error"
        )
    return notes.report()


def _judge_watch(part: str, system: str, error: Any, notes: ReportBuilder) -> int:
    value = str(error.get("value", ""))
    if value not in ("Failure", "Warning"):
        return 0
    words = " ".join(_texts(error.get("overflow"))) or f"{value.lower()} without a reason"
    note = notes.fail if value == "Failure" else notes.warn
    note("dcgm health", part, f"{system.removesuffix(' system')}: {words}", action_of(words))
    return 1


def read_diagnostic(section: Section) -> HealthReport:
    """What a diagnostic came to."""
    notes = ReportBuilder()
    data = mapping(section.json())
    found = mapping(data.get("DCGM Diagnostic") or data.get("DCGM GPU Diagnostic"))
    categories = items(found.get("test_categories"))
    if not categories:
        if section.hung:
            notes.fail("dcgm diagnostic", "node", "the diagnostic was not done in time", "reboot")
        else:
            words = data.get("runtime_error") or found.get("runtime_error")
            _skip("dcgm diagnostic", section, notes, str(words) if words else "")
        return notes.report()
    notes.made("dcgm diagnostic")
    for category in categories:
        for test in items(mapping(category).get("tests")):
            name = str(mapping(test).get("name", "test"))
            for result in items(mapping(test).get("results")):
                _judge_result(name, mapping(result), notes)
    return notes.report()


def _judge_result(test: str, result: Any, notes: ReportBuilder) -> None:
    status = str(result.get("status", "")).lower()
    if "entity_id" in result:
        part = f"{result.get('entity_group', 'GPU')} {result['entity_id']}"
    else:
        ids = result.get("gpu_id", result.get("gpu_ids"))
        part = f"GPU {ids}" if ids not in (None, "") else "node"
    if status == "skip":
        notes.skip(f"dcgm diagnostic: {test}", " ".join(_warnings(result)) or "DCGM skipped it")
        return
    if status not in ("fail", "warn"):
        return
    warnings = [mapping(each) for each in items(result.get("warnings")) if isinstance(each, dict)]
    told = (each.get("error_severity") for each in warnings)
    severities = {each for each in told if isinstance(each, int)}
    words = " ".join(_warnings(result)) or "it tells no reason"
    action = action_of(words)
    if _RESET in severities:
        action = "reset"
    elif severities & {_ISOLATE, _TRIAGE}:
        action = "replace"
    elif severities and severities <= {_MONITOR, _CONFIG, 0}:
        # Nothing of the hardware: what is set wrongly, or is to be watched.
        notes.warn("dcgm diagnostic", part, f"{test}: {words}")
        return
    note = notes.fail if status == "fail" else notes.warn
    note("dcgm diagnostic", part, f"{test}: {words}", action)


def _warnings(result: Any) -> Iterable[str]:
    """The texts of a result: DCGM 4 has objects, DCGM 3 objects or texts, older ones a text."""
    told = result.get("warnings", result.get("warning"))
    for each in told if isinstance(told, list) else [told]:
        text = mapping(each).get("warning") if isinstance(each, dict) else each
        if isinstance(text, str) and text.strip():
            yield text.strip()


def _texts(value: Any) -> Iterable[str]:
    for each in items(value):
        text = mapping(each).get("value") if isinstance(each, dict) else each
        if isinstance(text, str):
            yield text.strip()


def action_of(words: str) -> Action:
    """What helps, in DCGM's own advice, which is part of its messages."""
    low = words.lower()
    if "reboot" in low or "restart the system" in low or "power cycle" in low:
        return "reboot"
    if "rma" in low.split() or "replace" in low or "field diagnostic" in low or "hardware vendor" in low:
        return "replace"
    return "reset" if "reset" in low or "drain" in low else "none"


def _skip(check: str, section: Section, notes: ReportBuilder, words: str = "") -> None:
    said = words or section.first_words
    if section.state == "missing" or section.code == MISSING:
        notes.skip(check, "DCGM is not installed")
    elif section.hung:
        notes.skip(check, "DCGM did not answer in time")
    elif any(each in said.lower() for each in _ABSENT):
        notes.skip(check, f"DCGM's host engine does not answer: {said}")
    else:
        notes.skip(check, f"dcgmi fails: {said or f'exit code {section.code}'}")
