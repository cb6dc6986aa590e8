"""A dev environment is a task that stays, and what its containers need to be entered by SSH. Pure.

A session is `sshd` over the stdin and stdout of a command in the container, for which the user's `ssh` has
the way to the node: no port of the node is listened on, and environments that share a node do not meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from orch.runner.ledger.run_folder import RunKeys
from orch.runner.plan.run_plan import DevPlan, RunPlan
from orch.templates import render

if TYPE_CHECKING:
    from orch.spec.models import DevEnvironment, Task

# 68 years. `infinity` is not every image's.
_STAY = "exec sleep 2147483647"
_OWN = ("ide", "version", "init", "inactivity_duration")
_LINKS = {
    "vscode": "vscode://vscode-remote/ssh-remote+{host}{folder}",
    "cursor": "cursor://vscode-remote/ssh-remote+{host}{folder}",
    "windsurf": "windsurf://vscode-remote/ssh-remote+{host}{folder}",
    "zed": "zed://ssh/{host}{folder}",
}
IDES = {"vscode": "VS Code", "cursor": "Cursor", "windsurf": "Windsurf", "zed": "Zed"}


def task_of(document: Task | DevEnvironment) -> tuple[Task, DevPlan | None]:
    """The task that carries a dev environment out, and what it has beside a task; a task is one itself."""
    from orch.spec.models import Task

    if isinstance(document, Task):
        return document, None
    plain = document.plain()
    assert isinstance(plain, dict)
    shared = {key: value for key, value in plain.items() if key not in _OWN}
    task = Task.model_validate({**shared, "type": "task", "commands": [*document.init, _STAY]})
    return task, DevPlan(ide=document.ide, inactivity_s=document.inactivity_duration_s)


def entry_names(plan: RunPlan, rank: int) -> tuple[str, ...]:
    """What `ssh` calls a rank's container on the user's machine: `RUN-RANK`, rank 0 also `RUN`."""
    return (*([plan.run] if rank == 0 else []), f"{plan.run}-{rank}")


def desktop_link(plan: RunPlan, folder: str) -> str | None:
    """The link that opens a folder of rank 0 in the environment's IDE; None where it has none."""
    if plan.dev is None or plan.dev.ide is None:
        return None
    return _LINKS[plan.dev.ide].format(host=plan.run, folder=quote(folder))


def ticks(inactivity_s: int) -> tuple[int, int]:
    """Seconds between two looks at whether somebody is connected, and between two signs that they are.

    Several signs for each look, and several looks before the end.
    """
    look = max(1, min(15, inactivity_s // 4))
    return look, max(1, look // 3)


def entry_files(plan: RunPlan, rank: int, keys: RunKeys) -> dict[str, str]:
    """What a rank needs to be entered: file name -> text."""
    dev = plan.dev
    beat_s = ticks(dev.inactivity_s)[1] if dev is not None and dev.inactivity_s is not None else None
    others = [f"{plan.run}-{other.rank}" for other in plan.ranks if other.rank != rank]
    return {
        "ssh/enter.sh": render("ssh-enter.sh.j2", beat_s=beat_s, others=others),
        "ssh/authorize.sh": render("ssh-authorize.sh.j2"),
        "ssh/hostkey": keys.hosts[rank].private,
        "ssh/hostkey.pub": f"{keys.hosts[rank].public}\n",
    }
