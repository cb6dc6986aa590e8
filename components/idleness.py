"""When nodes of a fleet end themselves, because nothing runs on them. Pure.

The rule travels in the user data of the nodes, which act on it alone: nobody has to watch them. A run that
had a node made, and that wants a shorter time, has its start write that on the node. What became of a node is
asked of its cloud by the next plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orch.runner.node_api.claims import ABANDONED_AFTER_S
from orch.runner.node_api.commands import IDLE_AFTER, NODE_HOME
from orch.spec.grammar.hosts import fold
from orch.spec.models import Fleet
from orch.templates import ShellText, render

PROPERTY = "idle_duration"
PIN = f"boot.{PROPERTY}"
"""The pin of a fleet whose nodes end themselves."""
SCRIPT = f"{NODE_HOME}/idle.sh"
ENDED_BY = "orch"
"""Who cordons a node that ends itself: it takes no job from then on."""
FIRST_JOB_S = 600
"""How long a new node waits for its first job at least: it was made for one that may still be on its way."""
MOST_BETWEEN_LOOKS_S = 30


@dataclass(frozen=True)
class IdleRule:
    """A node ends itself `after_s` without a job, unless its index is below `least`: so many nodes stay."""

    fleet: str
    after_s: int
    least: int

    def __str__(self) -> str:
        return f"{self.after_s}/{self.least}"

    def script(self, off: ShellText) -> str:
        """What looks for jobs on a node, and ends it with the commands `off`."""
        return render(
            "cloud-init-idle.sh.j2",
            home=NODE_HOME,
            script=SCRIPT,
            fleet=self.fleet,
            after_s=self.after_s,
            first_s=max(self.after_s, FIRST_JOB_S),
            most_s=MOST_BETWEEN_LOOKS_S,
            own=IDLE_AFTER,
            least=self.least,
            by=ENDED_BY,
            left_after_s=ABANDONED_AFTER_S,
            off=off,
        )


def idle_rule(fleet: Fleet) -> IdleRule | None:
    """The rule of a fleet that may have fewer nodes than it has; None where nodes stay however idle."""
    nodes = fleet.nodes
    if nodes is None or nodes.min == nodes.max or fleet.idle_duration_s is None:
        return None
    return IdleRule(fleet.name, fleet.idle_duration_s, nodes.min)


def ended_reason(names: Iterable[str]) -> str:
    """What a plan says of nodes that ended themselves, or that their cloud took back."""
    listed = list(names)
    which = fold(listed) if len(listed) > 1 else listed[0]
    themselves, them = ("themselves", "them") if len(listed) > 1 else ("itself", "it")
    why = f"{which} ended {themselves}, or the cloud took {them} back"
    return f"{why}: a run that needs more nodes makes {them} again"


def may_end(pins: Mapping[str, str]) -> bool:
    """Whether nodes of a stack may have ended themselves."""
    return PIN in pins


def resources_of(ended: Iterable[str]) -> frozenset[str]:
    """Names of the resources that go with nodes that ended themselves: their public addresses and data disks,
    too."""
    return frozenset(name for node in ended for name in (node, f"{node}-address", f"{node}-disk"))
