"""`orch exec`: a command on every node of a fleet or in every container of a run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli import completion
from orch.cli.errors import UsageError, end, print_json, say, tell
from orch.cli.options import Json, OnNodes, Rehearse, with_records
from orch.cli.targets.nodes import selected
from orch.spec.errors import ExitCode, OrchError
from orch.spec.grammar.values import Problem, parse_duration

if TYPE_CHECKING:
    from orch.runner.ledger.records import RunRow
    from orch.runner.node_api.connector import Completed, Connector
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.state import FleetState, NodeState
    from orch.stacks.project.project import Project


@dataclass(frozen=True)
class ExecOptions:
    """The command line of `orch exec`."""

    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Of a fleet or a run; where both have it, run:NAME or fleet:NAME.",
            autocompletion=completion.fleets_and_runs,
        ),
    ]
    command: Annotated[
        list[str], typer.Argument(metavar="-- CMD...", help="For the shell there; joined, as with ssh.")
    ]
    node: OnNodes = None
    rank: Annotated[
        list[int] | None,
        typer.Option("--rank", metavar="RANK", help="Of a run, only this rank; repeatable."),
    ] = None
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Give the command up after this: 30s, 5m.")
    ] = None
    sudo: Annotated[bool, typer.Option("--sudo", help="As root.")] = False
    serial: Annotated[
        str | None,
        typer.Option(
            "--serial",
            metavar="N|N%",
            help="So many nodes at a time, or so many of a hundred: stop after those of which one fails.",
        ),
    ] = None
    as_json: Json = False
    rehearse: Rehearse = False

    @property
    def text(self) -> str:
        return " ".join(self.command)


@with_records
def execute(options: ExecOptions) -> None:
    """Run a command on every node of a fleet, or in every container of a run, in the job's environment.

    Equal output is shown once, under the names of its nodes. The exit code is the largest one; a node that
    cannot be reached counts as 7. In one container, and typed on a terminal, the command has that.
    """
    from orch.cli.driver.opening import open_runner
    from orch.cli.targets.names import fleet_or_run
    from orch.spec.state import FleetState

    timeout_s, text, batch = _seconds(options.timeout), options.text, _batch(options.serial)
    with open_runner(None, as_json=True, rehearse=options.rehearse) as (project, runner):
        found = fleet_or_run(project, runner, options.name, verb="exec")
        if isinstance(found, FleetState):
            target = _on_fleet(found, options, timeout_s)
        else:
            target = _in_run(project, runner, found, options, timeout_s)
        answers: list[ExecResult] = []
        for members in batches(target.nodes, batch):
            answers += (now := ask(members, runner.connector, target.text_for, text, timeout_s=timeout_s))
            if not options.as_json:
                show_answers(now)
            if exit_code(now):
                break
    if options.as_json:
        print_json(answers_json(target.name, target.rank_of, answers))
    if left := len(target.nodes) - len(answers):
        after = target.nodes[len(answers)].name
        tell(f"stopped: it was not run on {left} of {len(target.nodes)} nodes, {after} is the next")
    end(exit_code(answers))


@dataclass(frozen=True)
class Target:
    """The nodes of a fleet or run that a command runs on. `name`: of the fleet or run; `rank_of`: of a run,
    the rank on each node by its name; `text_for`: the command as shell text for a node."""

    name: Mapping[str, str]
    nodes: tuple[NodeState, ...]
    rank_of: Mapping[str, int]
    text_for: Callable[[NodeState], str]


def _on_fleet(fleet: FleetState, options: ExecOptions, timeout_s: float | None) -> Target:
    from orch.runner.node_api.commands import as_root

    if options.rank:
        raise UsageError(f"{fleet.name} is a fleet, which has no ranks", hint="choose with `--node`")
    nodes = selected(fleet, options.node or ())
    if not nodes:
        tell(f"the fleet {fleet.name} has no nodes now: nothing was done")
        if fleet.queue is not None:
            tell("  hint: its runs bring their own; `orch exec RUN -- …` reaches those")
    shell = "sh" if options.sudo else '"${SHELL:-/bin/sh}"'  # what sshd runs a command with
    there = limited(options.text, timeout_s, shell)
    on_node = as_root(there) if options.sudo else there
    return Target({"fleet": fleet.name}, nodes, {}, lambda _: on_node)


def _in_run(
    project: Project,
    runner: RunnerContext,
    row: RunRow,
    options: ExecOptions,
    timeout_s: float | None,
) -> Target:
    """Return the containers of a run. On a terminal, this process becomes the command in the only one."""
    from orch.cli.runs import containers
    from orch.runner.ledger.plans import plan_of

    plan = plan_of(containers.with_containers(runner, row))
    nodes, rank_of = containers.nodes_of_ranks(plan, options.rank or (), options.node or ())
    if len(nodes) == 1 and timeout_s is None and not options.as_json and containers.on_terminal():
        rank = rank_of[nodes[0].name]
        words = containers.terminal_words(runner, project.dot, plan, rank, options.text, root=options.sudo)
        containers.become(words, project)
    in_container = limited(options.text, timeout_s)

    def in_job(node: NodeState) -> str:
        return runner.runtime(node).job_command(plan, rank_of[node.name], in_container, root=options.sudo)

    return Target({"run": row.name}, nodes, rank_of, in_job)


def answers_json(
    of: Mapping[str, str], rank_of: Mapping[str, int], answers: Sequence[ExecResult]
) -> dict[str, Any]:
    """`of`: the fleet or the run that was asked; `rank_of`: of a run, the rank on each node."""
    return {
        "schema": 1,
        **of,
        "nodes": [
            {
                **({"rank": rank_of[answer.node.name]} if answer.node.name in rank_of else {}),
                "index": answer.node.index,
                "node": answer.node.name,
                "exit_code": answer.completed.exit_code if answer.completed else None,
                "stdout": answer.completed.stdout if answer.completed else None,
                "stderr": answer.completed.stderr if answer.completed else None,
                "seconds": round(answer.completed.seconds, 3) if answer.completed else None,
                "error": answer.error.text() if answer.error else None,
            }
            for answer in answers
        ],
    }


def show_answers(answers: Sequence[ExecResult]) -> None:
    """Print the results for people. A pipe gets the nodes' output unchanged; for a terminal, control
    characters in it are made visible."""
    show = say if sys.stdout.isatty() else print
    for group in folded(answers):
        nodes = f" ({group.count})" if group.count > 1 else ""
        say(f"{group.nodes}{nodes}:{f' exit code {group.exit_code}' if group.exit_code else ''}")
        for line in group.stdout.splitlines():
            show(f"  {line}")
        sys.stdout.flush()
        for line in group.stderr.splitlines():
            tell(f"  {line}")
    for names, text in folded_errors(answers):
        tell(f"{names}: {text}")


Batch = Callable[[int], int]
"""How many of so many nodes are asked at a time."""


def _batch(serial: str | None) -> Batch:
    """Reads `4` and `10%`. Raises BadParameter."""
    if serial is None:
        return lambda count: count
    from orch.stacks.maintenance.serial import Share

    try:
        share = Share.parse(serial)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--serial") from error
    return lambda count: max(1, share.of(count))


def batches(nodes: Sequence[NodeState], batch: Batch) -> Iterable[Sequence[NodeState]]:
    """The nodes, so many at a time, in their order; at least one, and none of no nodes."""
    size = max(1, batch(len(nodes)))
    return [nodes[at : at + size] for at in range(0, len(nodes), size)]


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = parse_duration(text)
    except Problem as error:
        raise typer.BadParameter(str(error), param_hint="--timeout") from error
    return None if seconds is None else float(seconds)


@dataclass(frozen=True)
class ExecResult:
    """The result of a command on one node: its completion, or the error that prevented it."""

    node: NodeState
    completed: Completed | None
    error: OrchError | None


@dataclass(frozen=True)
class FoldedResult:
    """Nodes with the same exit code and output, under their folded names."""

    nodes: str
    count: int
    exit_code: int
    stdout: str
    stderr: str


KILL_S = 2
"""How long a command that is given up has, from SIGTERM on, before it is killed."""
ANSWER_S = 5
"""How long the answer that it has ended is waited for then."""
# What `timeout` ends with: of its own, and where it killed.
_GIVEN_UP = (124, 128 + 9, 128 + 15)


def limited(text: str, timeout_s: float | None, shell: str = "sh") -> str:
    """Shell text that runs `text` and ends it where it runs, with all it began, after so long.

    Where there is no `timeout` that kills, `text` runs as it is: nobody ends it.
    """
    if timeout_s is None:
        return text
    limit, rest = f"timeout -k {KILL_S} {timeout_s:g}", f"{shell} -c {shlex.quote(text)}"
    return f"if timeout -k {KILL_S} 60 true 2>/dev/null; then exec {limit} {rest}; else exec {rest}; fi"


def ask(
    nodes: Sequence[NodeState],
    connector: Connector,
    text_for: Callable[[NodeState], str],
    text: str,
    *,
    timeout_s: float | None,
) -> tuple[ExecResult, ...]:
    """Run shell text on each node, with one attempt to connect; answers in the order of `nodes`.

    `text` is what the user wrote, which errors show. With `timeout_s`, `text_for` gives what `limited` made.
    """
    from orch.runner.errors import CommandTimeout
    from orch.runner.node_api.commands import Command
    from orch.runner.node_api.connector import fan_out

    wait_s = None if timeout_s is None else timeout_s + KILL_S + ANSWER_S

    def given_up(node: NodeState, what: str) -> CommandTimeout:
        return CommandTimeout(
            f"the command on node {node.name} took longer than {timeout_s:g} s, and {what}", detail=text
        )

    def work(node: NodeState) -> Completed:
        command = Command(text_for(node), text, timeout_s=wait_s)
        try:
            done = connector.run(node, command, deadline_s=0)
        except CommandTimeout as error:
            raise given_up(node, "may go on there: nothing there could end it") from error
        finally:
            connector.drop(node)
        if timeout_s is not None and done.exit_code in _GIVEN_UP and done.seconds >= timeout_s:
            raise given_up(node, "was ended there")
        return done

    return tuple(ExecResult(result.node, result.value, result.error) for result in fan_out(nodes, work))


def folded(answers: Iterable[ExecResult]) -> tuple[FoldedResult, ...]:
    """Equal results of nodes that completed the command folded, in the order of their first nodes."""
    from orch.stacks.events.notation import fold

    groups: dict[tuple[int, str, str], list[str]] = {}
    for answer in answers:
        if answer.completed is not None:
            key = (answer.completed.exit_code, answer.completed.stdout, answer.completed.stderr)
            groups.setdefault(key, []).append(answer.node.name)
    return tuple(
        FoldedResult(fold(names), len(names), code, stdout, stderr)
        for (code, stdout, stderr), names in groups.items()
    )


def folded_errors(answers: Iterable[ExecResult]) -> tuple[tuple[str, str], ...]:
    """Folded names of nodes and their errors, equal texts once."""
    from orch.stacks.events.notation import fold

    groups: dict[str, list[str]] = {}
    for answer in answers:
        if answer.error is not None:
            groups.setdefault(answer.error.text(), []).append(answer.node.name)
    return tuple((fold(names), text) for text, names in groups.items())


def exit_code(answers: Iterable[ExecResult]) -> int:
    """The largest exit code of the nodes; a node that did not complete the command counts as 7."""
    return max(
        (int(ExitCode.HOSTS) if a.completed is None else a.completed.exit_code for a in answers), default=0
    )
