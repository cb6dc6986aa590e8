"""How a dev environment is entered from this machine: `ssh RUN`, as long as it runs.

Whoever drives or follows it asks its ranks to let a key of this machine in, and writes an SSH configuration
into the run's folder, and into the user's (`user_hosts.py`). Its `ProxyCommand` is the way to the node and a
command there.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from orch.runner.errors import RunFailed, RunnerError
from orch.runner.events import EntryOpened, Event, Notice, Processor, RunChanged
from orch.runner.launch.dev_environment import desktop_link, entry_names
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.node_api.commands import Command, argv
from orch.runner.node_api.connector import fan_out
from orch.runner.plan.run_plan import RunPlan
from orch.runner.private import private_folder, write_private
from orch.runner.runs.context import RunContext, RunnerContext
from orch.runner.user_hosts import HostNotAdded, add_host, close_entry
from orch.spec.errors import OrchError
from orch.spec.state import NodeState

_SAID = re.compile(r"^orch:(\w+)=(.*)$", re.MULTILINE)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_HOST_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]+={0,2}")
_REFUSED = 3
_TOLD = "entry.json"


@dataclass(frozen=True)
class _Door:
    """What a rank says of itself: who logs in there, in which folder, and its host key."""

    user: str
    folder: str
    pinned: str


def open_entry(context: RunContext, plan: RunPlan) -> EntryOpened:
    """Let this machine in to every rank, and write the configurations. Raises OrchError."""
    folder = private_folder(context.folder.entry)
    public = context.folder.entry_key().public
    rank_of = {rank.node.name: rank.rank for rank in plan.ranks}

    def ask(node: NodeState) -> _Door:
        return _ask(context, plan, rank_of[node.name], public)

    doors: list[_Door] = []
    for result in fan_out(plan.nodes, ask):
        if result.value is None:
            raise result.error or RunnerError(f"node {result.node.name} gave no answer")
        doors.append(result.value)
    texts = [_host(context, plan, rank, door, folder) for rank, door in enumerate(doors)]
    keys = [f"{_alias(plan, rank)} {door.pinned}\n" for rank, door in enumerate(doors)]
    write_private(folder / "known_hosts", "".join(keys))
    text = "\n".join(texts)
    write_private(folder / "config", text)
    command = f"ssh {plan.run}"
    names = [name for rank in range(len(doors)) for name in entry_names(plan, rank)]
    try:
        former = add_host(names, context.folder.path, text)
        if former is not None:
            text = f"`ssh {plan.run}` leads to this run now, and no more to that of {former}"
            context.processor.handle(Notice(text, "warning"))
    except HostNotAdded as error:
        command = shlex.join(["ssh", "-F", str(folder / "config"), plan.run])
        hint = f" ({error.hint})" if error.hint else ""
        detail = f": {error.detail}" if error.detail else ""
        context.processor.handle(Notice(f"{error.summary}{detail}{hint}", "warning"))
    ide = plan.dev.ide if plan.dev is not None else None
    opened = EntryOpened(plan.run, command, ide, desktop_link(plan, doors[0].folder))
    write_private(folder / _TOLD, json.dumps(asdict(opened)))
    return opened


def opened_entry(folder: RunFolder) -> EntryOpened | None:
    """How a run is entered from this machine, where `open_entry` has been here."""
    try:
        return EntryOpened(**json.loads((folder.entry / _TOLD).read_text()))
    except (OSError, ValueError, TypeError):
        return None


class Entering:
    """A processor that passes every event on, and opens the entry of a dev environment when it is running.

    In a thread, for events come from who drives the run. What goes wrong is told, and the run goes on.
    """

    def __init__(self, runner: RunnerContext, row: RunRow, processor: Processor) -> None:
        self._runner, self._row, self._processor = runner, row, processor
        self._thread: threading.Thread | None = None
        self._wanted = plan_of(row).dev is not None

    def handle(self, event: Event, /) -> None:
        self._processor.handle(event)
        if isinstance(event, RunChanged):
            self.follow(event.status)

    def follow(self, status: str) -> None:
        """Open the entry if a run of this status has one."""
        if self._wanted and status == "running":
            self._thread = threading.Thread(target=self._open, name="orch-entry", daemon=True)
            self._thread.start()

    def _open(self) -> None:
        ledger = self._runner.ledger
        try:
            row = ledger.by_id(self._row.id)
            context = self._runner.context(row)
            opened = open_entry(context, plan_of(row))
            if not ledger.by_id(row.id).active:  # it ended meanwhile, and who ended it found no entry
                close_entry(context.folder, row.name)
                return
        except (OrchError, OSError) as error:
            summary = error.summary if isinstance(error, OrchError) else str(error)
            detail = f": {error.detail}" if isinstance(error, OrchError) and error.detail else ""
            self._processor.handle(
                Notice(f"run {self._row.name} cannot be entered by ssh: {summary}{detail}", "warning")
            )
            return
        self._processor.handle(opened)


def _ask(context: RunContext, plan: RunPlan, rank: int, public: str) -> _Door:
    """Let a key in to a rank. Raises RunnerError."""
    node = plan.ranks[rank].node
    text = argv("sh", "/run/orch/ssh/authorize.sh", public)
    command = context.runtime(node).job_command(plan, rank, text)
    done = context.connector.run(node, Command(command, f"enter rank {rank}"))
    if done.exit_code == _REFUSED:
        raise RunFailed(done.stdout.strip().rpartition("\n")[2], where=node.name)
    said = dict(_SAID.findall(done.stdout))
    door = _Door(said.get("user", ""), said.get("folder", ""), said.get("key", ""))
    if not (done.ok and _USER.fullmatch(door.user) and _HOST_KEY.fullmatch(door.pinned)):
        detail = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise RunFailed(f"rank {rank} lets nobody in", where=node.name, detail=detail or done.ending)
    return door


def _alias(plan: RunPlan, rank: int) -> str:
    return f"orch-{plan.run_id}-{plan.attempt}-{rank}"


def _host(context: RunContext, plan: RunPlan, rank: int, door: _Door, folder: Path) -> str:
    """The block of a rank for an SSH configuration. Raises RunnerError."""
    node = plan.ranks[rank].node
    command = context.runtime(node).job_command(plan, rank, "exec sh /run/orch/ssh/enter.sh")
    words = context.connector.command_line(node, folder / f"node-{rank}", command, terminal=False)
    lines = {
        "HostName": plan.run,
        "User": door.user,
        "IdentityFile": _quoted(folder / "key"),
        "IdentitiesOnly": "yes",
        "HostKeyAlias": _alias(plan, rank),
        "UserKnownHostsFile": _quoted(folder / "known_hosts"),
        "GlobalKnownHostsFile": "none",
        "StrictHostKeyChecking": "yes",
        "CheckHostIP": "no",
        "ServerAliveInterval": "15",
        # A shell of ssh's reads it, after ssh has looked for `%`. It has to be one line.
        "ProxyCommand": shlex.join(words).replace("%", "%%").replace("\n", "; "),
    }
    names = " ".join(entry_names(plan, rank))
    return "".join([f"Host {names}\n", *(f"  {key} {value}\n" for key, value in lines.items())])


def _quoted(path: Path) -> str:
    return '"' + str(path.absolute()).replace("%", "%%") + '"'
