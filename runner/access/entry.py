"""How a dev environment is entered from this machine: `ssh RUN`, as long as it runs.

Whoever drives or follows it asks its ranks to let a key of this machine in, and writes an SSH configuration
into the run's folder, and into the user's. Its `ProxyCommand` is the way to the node and a command there.

The user's has a file for each host in `~/.ssh/orch/`. `~/.ssh/config` itself gets one line, an `Include` of
that folder, and is never written again. Any number of processes may add and remove hosts at the same time.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from orch.runner.errors import RunFailed, RunnerError
from orch.runner.events import EntryOpened, Event, Notice, Processor, RunChanged
from orch.runner.launch.dev_environment import desktop_link, entry_names
from orch.runner.launch.run_plan import RunPlan, plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.node.commands import Command, argv
from orch.runner.node.connector import fan_out
from orch.runner.private import private_file, private_folder, stage_file, write_private
from orch.runner.runs.context import RunContext, RunnerContext
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


def close_entry(folder: RunFolder, run: str) -> None:
    """Forget how a run was entered from this machine."""
    if folder.entry.exists():
        remove_host(run, folder.path)
        folder.forget_entry()


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


_OWNER = "# Written by orch, removed when the run ends: "
# How often a configuration that changes while it is read is read again.
_TRIES = 5


class HostNotAdded(RunnerError):
    """The user's SSH configuration cannot have the host."""


def add_host(names: Sequence[str], owner: Path, text: str) -> Path | None:
    """Make `names` known to `ssh` by `text`, which stands under the first of them.

    `owner` is the folder of the run that they are of. Gives the folder of another run that had the name
    until now. Raises HostNotAdded, where the user has such a host, or files cannot be written.
    """
    try:
        home = Path.home() / ".ssh"
        folder = private_folder(home / "orch")
        with _locked(folder):
            _prune(folder)
            config = home / "config"
            taken = sorted(set(names) & _hosts(_content(config)))
            if taken:
                raise HostNotAdded(
                    f"{config} has a host {taken[0]} of its own", hint="give the run another name"
                )
            _include(config, folder)
            former = _owner(folder / names[0])
            write_private(folder / names[0], f"{_OWNER}{owner}\n{text}")
    except (OSError, RuntimeError) as error:  # the latter: nobody knows where home is
        raise HostNotAdded(
            "your SSH configuration cannot be written", where="~/.ssh", detail=str(error)
        ) from error
    return former if former not in (None, owner) else None


def remove_host(name: str, owner: Path) -> None:
    """Remove what `add_host` wrote for this owner; another one's stays. What cannot be removed stays too."""
    with suppress(OSError, RuntimeError):
        folder = Path.home() / ".ssh" / "orch"
        if not folder.is_dir():
            return
        with _locked(folder):
            if _owner(folder / name) == owner:
                (folder / name).unlink()
            _prune(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with private_file(folder / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _owner(file: Path) -> Path | None:
    try:
        first = file.read_text().partition("\n")[0]
    except FileNotFoundError:
        return None
    return Path(first.removeprefix(_OWNER)) if first.startswith(_OWNER) else None


def _prune(folder: Path) -> None:
    """Remove hosts of runs whose folders are gone."""
    for file in folder.glob("[!.]*"):
        owner = _owner(file)
        if owner is not None and not owner.is_dir():
            file.unlink()


def _content(config: Path) -> bytes:
    try:
        return config.read_bytes()
    except FileNotFoundError:
        return b""


def _words(line: bytes) -> tuple[str, list[str]]:
    """A keyword of `ssh_config` in lower case, and its arguments."""
    keyword, _, rest = line.decode(errors="replace").strip().replace("=", " ", 1).partition(" ")
    try:
        return keyword.lower(), shlex.split(rest, comments=True)
    except ValueError:  # quotes that do not end: `ssh` refuses the line too
        return keyword.lower(), rest.split()


def _hosts(content: bytes) -> set[str]:
    """Names of `Host` lines. A pattern is none: it says something of many hosts, and of ours too."""
    lines = map(_words, content.splitlines())
    return {name for keyword, names in lines if keyword == "host" for name in names}


def _include(config: Path, folder: Path) -> None:
    """Begin the configuration with an `Include` of the folder, where none counts for all hosts."""
    ours = f"{folder}/*"
    for _ in range(_TRIES):
        content = _content(config)
        for keyword, arguments in map(_words, content.splitlines()):
            if keyword in ("host", "match"):
                break
            if keyword == "include" and {ours, "orch/*", "~/.ssh/orch/*"} & set(arguments):
                return
        line = f'Include "{ours}"\n\n' if " " in ours else f"Include {ours}\n\n"
        target = config.resolve()  # a link leads to where the user keeps it
        staged = stage_file(target, line.encode() + content)
        try:
            if target.exists():
                status = target.stat()
                staged.chmod(status.st_mode & 0o777)
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.chown(staged, status.st_uid, status.st_gid)
            if _content(config) == content:
                staged.replace(target)
                return
        finally:
            staged.unlink(missing_ok=True)
    raise HostNotAdded(f"{config} changes all the time", hint=f"write this as its first line: Include {ours}")
