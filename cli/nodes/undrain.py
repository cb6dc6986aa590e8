"""`orch node drain --undo`: lets nodes take jobs again that maintenance of this project cordoned."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orch.cli.errors import end, say, tell
from orch.spec.errors import ExitCode

NODE_S = 15.0


def undo_drain(words: Sequence[str], fleet: str | None, *, rehearse: bool) -> None:
    """Remove the cordons of this project's maintenance, and give up what of it was interrupted there. Others'
    cordons stay."""
    from orch.cli.nodes.maintain import nodes_by_fleet
    from orch.cli.runs.opening import open_runner
    from orch.runner.launch.environment import fold
    from orch.runner.node.connector import fan_out
    from orch.runner.node.cordon import unmark_of
    from orch.runner.node.status import node_status
    from orch.stacks.project import ledger_scope
    from orch.stacks.team.change_log import undertaken

    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        chosen = nodes_by_fleet(project, words, fleet)
        names = [node.name for _, node in chosen]
        holds = [f"{name}/{node.name}" for name, node in chosen]
        for each in runner.ledger.changes.listed(project.name, verbs=("node",), unfinished=True):
            if each.scope == ledger_scope(project) and not each.held and set(each.holds) & set(holds):
                runner.ledger.changes.abandon(each.id)
                say(f"change {each.id} (`orch {each.verb}` of {each.subject}) is given up")
        errors = []
        with undertaken(project, "node drain --undo", f"nodes {fold(sorted(names))}", holds=holds):
            looks = fan_out(
                [node for _, node in chosen],
                lambda node: node_status(node, runner.connector, deadline_s=NODE_S),
            )
            for look in looks:
                name, cordon = look.node.name, look.value.cordon if look.value is not None else None
                if look.value is None or look.value.status == "unreachable":
                    tell(f"{name}: does not answer, its cordon stays")
                    errors.append(name)
                    continue
                ours = (
                    re.search(rf"\((change \d+ of {re.escape(project.name)})\)", cordon.reason)
                    if cordon
                    else None
                )
                if cordon is None:
                    say(f"{name}: is not cordoned")
                elif ours is None:
                    tell(f"{name}: left alone, its cordon is not of `orch node`: {cordon}")
                    errors.append(name)
                else:
                    (result,) = unmark_of([look.node], runner.connector, ours[1], deadline_s=NODE_S)
                    if result.error is not None:
                        tell(result.error.text())
                        errors.append(name)
                    else:
                        say(f"{name}: may take jobs again")
    end(ExitCode.HOSTS if errors else ExitCode.OK)
