"""What commands hold that works in a Slurm job and not in a container: told with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from orch.spec.diagnostics import Diagnostic, Severity
from orch.spec.loader.document import Draft, Path_
from orch.spec.models import Task

Findings = Iterator[Diagnostic]

_ALONE = "write the program alone, started on each node; `ntasks_per_node`, `torchrun` or `mpirun` start more"
_OUTSIDE = "ask from outside the job: `orch ps`, `orch stop`, `orch fleet`"
_HINTS = {
    "srun": _ALONE,
    "module": "choose an `image` that holds what the modules would load",
    "#SBATCH": "write it as properties: `nodes`, `resources`, `max_duration`, …",
    "scontrol": "`scontrol show hostnames` is all that is there",
    "sbatch": "write a task of its own, started with `orch run`",
    "salloc": "write a task of its own, started with `orch run`",
    **dict.fromkeys(("squeue", "scancel", "sinfo", "sacct"), _OUTSIDE),
}
_SUMMARIES = {
    "module": "environment modules belong to the hosts of a cluster: most images have no `module`",
    "#SBATCH": "`#SBATCH` lines are comments here",
    "scontrol": "no Slurm is in the job's container: this `scontrol` does not work",
}
# Where a shell begins a command: a line, what joins or opens commands, words that take one, assignments.
_COMMAND = re.compile(
    r"(?:^|[;&|(]|\b(?:then|do|else|exec|time)\s)[ \t]*(?:[A-Za-z_]\w{0,99}=\S{0,200}[ \t]+)*"
    r"(?:(?P<word>srun|sbatch|salloc|squeue|scancel|sinfo|sacct)(?=\s|$)"
    r"|(?P<module>module)[ \t]+(?:load|add|use|purge|swap|unload|restore)\b"
    r"|(?P<scontrol>scontrol)(?=\s|$)(?![ \t]+show[ \t]+hostnames?\b)"
    r"|(?P<header>\#SBATCH)\b)",
    re.MULTILINE,
)


def commands_of_slurm(draft: Draft) -> Findings:
    """Each of its words once for each command that holds it."""
    task = cast(Task, draft.partial)
    places: list[Path_] = [("commands",)]
    places += [("groups", index, "commands") for index in range(len(task.groups))]
    for place in places:
        for index, text in draft.texts(place):
            for word in dict.fromkeys(_words(text)):
                summary = _SUMMARIES.get(word, f"no Slurm is in the job's container: `{word}` is not found")
                yield draft.diagnostic(
                    "ORCH164", (*place, index), summary, severity=Severity.WARNING, hint=_HINTS[word]
                )


def _words(text: str) -> Iterator[str]:
    for found in _COMMAND.finditer(text):
        yield next(word for word in found.groups() if word)
