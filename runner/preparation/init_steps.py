"""Steps of a fleet's `init`: scripts that a node runs once, and again when they or their variables change.

A machine of a cloud has them in its user data and runs them when it boots. A node that is there already, a
host or a container, is sent them: `preparation`. A step leaves a mark when it has run, and what failed lies
in `failed`, which keeps jobs out (`node_api/first_boot.py`) and for which whoever brings the node up looks.
Pure.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from orch.runner.node_api.commands import NODE_HOME, Command, as_root
from orch.runner.preparation.mounts import mount_script, unmount
from orch.templates import render

if TYPE_CHECKING:
    from orch.spec.models import Fleet
    from orch.spec.models.blocks import InitStep

INIT = f"{NODE_HOME}/init"
FAILED, AT_IT = 40, 41
"""Exit codes of a preparation."""

MOUNTS = "mounts"
"""The name of the step that mounts shared file systems."""

# How long they may take to be mounted together.
MOUNT_S = 600
# How long another `up` on the same host is waited for, and how much of what a step said is told.
WAIT_S = 30
LAST_LINES = 15
# A step that does not end when its time is over is killed after so many seconds (`init-steps.sh.j2`).
KILL_S = 10


@dataclass(frozen=True)
class Step:
    """A script of `init`.

    `mark` names the file that says it has run on a machine of a cloud; it differs when the script does. Those
    of nodes that are sent steps: `sent_marks`.
    """

    name: str
    file: str
    content: str
    when: str
    timeout_s: int
    user: str
    env: Mapping[str, str]

    @property
    def mark(self) -> str:
        if self.when == "create":
            return f"{self.file}.done"
        text = repr((self.content, sorted(self.env.items()), self.user))
        return f"{self.file}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def exports(self) -> str:
        """Its variables as a shell sets them."""
        return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.env.items())

    @property
    def key(self) -> str:
        """What it is called where it is recorded: in the order in which steps run."""
        return f"{self.file} {self.name}"

    @property
    def record(self) -> str:
        """All of it, to be recorded. It may hold secrets."""
        return json.dumps(asdict(self), sort_keys=True)


def steps(fleet: Fleet, scripts: Mapping[str, str]) -> tuple[Step, ...]:
    """What prepares a node of the fleet: its mounts, then the steps of `init`.

    `scripts`: the text of `init[].file` by path.
    """
    mounts = mount_steps(fleet)
    return (*mounts, *(_step(index, step, scripts) for index, step in enumerate(fleet.init, len(mounts))))


def mount_steps(fleet: Fleet) -> tuple[Step, ...]:
    """The one step that mounts the fleet's shared file systems, where it has any."""
    if not fleet.mounts:
        return ()
    script = mount_script(fleet.mounts)
    return (Step(MOUNTS, "00", script, when="change", timeout_s=MOUNT_S, user="root", env={}),)


def recorded(records: Mapping[str, str] | None) -> tuple[Step, ...]:
    """The steps of these records by `key`, in their order."""
    in_order = sorted((records or {}).items(), key=lambda item: int(item[0].partition(" ")[0]))
    return tuple(Step(**json.loads(text)) for _, text in in_order)


def mark_of(steps: Sequence[Step]) -> str:
    """What differs when a step does."""
    return repr([(step.mark, step.when) for step in steps])


def sent_marks(steps: Sequence[Step]) -> dict[str, str]:
    """By `file`, the marks of steps that a node is sent: of what a step does and for whom, not of its place.

    So a step that comes before others changes nothing of them; of equal steps each has its own.
    """
    marks: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for step in steps:
        text = repr((step.content, sorted(step.env.items()), step.user, step.when))
        mark = hashlib.sha256(text.encode()).hexdigest()[:12]
        marks[step.file] = f"ran/{mark}.{seen[mark]}"
        seen[mark] += 1
    return marks


def preparation(fleet_mark: str, steps: Sequence[Step], *, new: bool) -> str:
    """The script that runs the steps on a node that is there. It prints why one failed, and its last words.

    `fleet_mark`: of the stack, for several fleets may be on one host, each with steps of its own. `new`: the
    node becomes one of the fleet; on others those `when: create` are taken as done.
    """
    return render(
        "host-init.sh.j2",
        init=f"{INIT}/{fleet_mark}",
        own=f"/run/orch-init-{fleet_mark}",
        steps=steps,
        marks=sent_marks(steps),
        unmount=None if any(step.name == MOUNTS for step in steps) else unmount(fleet_mark),
        new=new,
        failed=FAILED,
        busy=AT_IT,
        wait_s=WAIT_S,
        lines=LAST_LINES,
    )


def prepare(fleet_mark: str, steps: Sequence[Step], *, new: bool) -> Command:
    """Runs the steps on a node. They travel as input: a command line is for everybody to see."""
    folder = f"{INIT}/{fleet_mark}"
    script = f'umask 077 && mkdir -p {folder} && f=$(mktemp {folder}/run.$$.XXXXXX) && cat >"$f"'
    return Command(
        as_root(f'{script} && exec bash "$f" </dev/null'),
        "run the steps of `init`",
        stdin=preparation(fleet_mark, steps, new=new).encode(),
        timeout_s=longest_s(steps),
    )


def look(fleet_mark: str) -> str:
    """Shell text that says why a node is kept out by steps of this stack; nothing where it is not."""
    failed = f"{INIT}/{fleet_mark}/failed"
    return f"[ ! -s {failed} ] || sed q {failed}"


def longest_s(steps: Iterable[Step]) -> float:
    """How long they may take together, with what is around them."""
    return sum(step.timeout_s + KILL_S for step in steps) + WAIT_S + 60.0


def trouble(exit_code: int, output: str, errors: str = "") -> tuple[str, str]:
    """Why steps did not run, in one line, and what was said last."""
    if exit_code == AT_IT:
        return "the steps of init are run there already", "another `orch up`, or one that was cut short"
    reason, _, last = output.strip().partition("\n")
    if exit_code == FAILED and reason:
        return reason.partition(": see /")[0], last or "(it said nothing)"
    return f"the steps of init could not be run ({exit_code})", (errors.strip() or output.strip())[-300:]


def _step(index: int, step: InitStep, scripts: Mapping[str, str]) -> Step:
    content = scripts.get(step.file, "") if step.file else step.run or ""
    return Step(
        name=" ".join((step.name or f"step {index}").split()),
        file=f"{index:02d}",
        content=content if content.endswith("\n") else content + "\n",
        when=step.when,
        timeout_s=step.timeout_s,
        user=step.user,
        env={key: value for key, value in step.env.items() if value is not None},
    )
