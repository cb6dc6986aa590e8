"""What plans say of a fleet's `init`: its scripts, its pin, and what becomes of steps on nodes that run.

Machines of clouds run the steps when they boot; hosts and local nodes are sent them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orch.runner.preparation.init_steps import Step, mark_of
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.suggest import counted

PIN = "boot.init"
"""The pin of what nodes were given: it differs when a step does, and tells nothing of it."""


def scripts(fleet: Fleet, folder: Path) -> dict[str, str]:
    """The text of `init[].file`, by path. Raises PlanErrors."""
    texts: dict[str, str] = {}
    missing: list[Finding] = []
    for index, step in enumerate(fleet.init):
        if step.file is None:
            continue
        path = folder / Path(step.file).expanduser()
        try:
            texts[step.file] = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            summary = f"the script {step.file} cannot be read"
            missing.append(Finding("ORCH129", f"init[{index}].file", summary, detail=str(error)))
    if missing:
        raise PlanErrors(missing)
    return texts


def pinned(steps: Sequence[Step]) -> dict[str, str]:
    return {PIN: short(mark_of(steps))} if steps else {}


def short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def reasons(steps: Sequence[Step], before: Mapping[str, str], running: int, noun: str) -> Iterator[str]:
    """What a plan says of steps that nodes are sent. `running`: how many of them run; `before`: the pins that
    they were planned with."""
    if steps:
        names = ", ".join(step.name for step in steps)
        yield f"init: {counted(len(steps), 'step')} on each {noun}, once, before it takes jobs ({names})"
    if not running or before.get(PIN) == pinned(steps).get(PIN):
        return
    if not steps:
        yield f"`init` is gone: what its steps did on the {counted(running, noun)} stays"
        return
    yield f"`init` changes: its new or changed steps run on the {counted(running, noun)} that are there"
    if any(step.when == "create" for step in steps):
        yield f"those `when: create` run on a new {noun} only"
