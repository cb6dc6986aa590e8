"""What the last examination of a node came to. It is a file on the node, so that all clients see it.

A node with a failure gets no new job; one with a warning does. A verdict counts for the boot in which it was
given: after another one the node is to be examined again before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from orch.runner.errors import NodeUnfit, RunnerError
from orch.runner.node_api.commands import NODE_HOME, Command, argv, as_root
from orch.runner.node_api.connector import Connector, NodeResult, fan_out
from orch.spec.state import NodeState

Status = Literal["healthy", "warning", "failure"]

FILE = f"{NODE_HOME}/health"
MOST_CHARACTERS = 400
"""Of a reason, which stands in tables."""

MOST_BYTES = 2000
"""Of the file; of what is larger, which is none of ours, no more is read."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"

SCRIPT = f"""\
boot=; read -r boot < {BOOT_ID} || boot=?
if [ -s {FILE} ]; then
  {{ head -c {MOST_BYTES} {FILE}; echo; }} | sed 's/^/health /;q'
  grep -qF "|$boot|" {FILE} || echo health-of-another-boot
fi
"""
"""Shell text that tells a node's verdict, and whether it is of another boot; nothing where there is none."""


@dataclass(frozen=True)
class Verdict:
    """A node's health. `since`: since when it has this status, `at`: when it was examined last, both by its
    own clock (ISO 8601, UTC). `boot`: the boot id of then; `depth`: what was asked of it, `dcgm/light` where
    it passed a deeper look than the one that found this; `stale`: the node has been booted since. `former`:
    where it was just written, the status before it; None where there was none.
    """

    status: Status
    since: str
    at: str
    boot: str
    depth: str
    reason: str
    stale: bool = False
    former: Status | None = None

    @classmethod
    def parse(cls, line: str, *, stale: bool = False) -> Verdict | None:
        """The verdict in a line of the file; None for what is none."""
        words = line.split("|", 5)
        status = _status(words[0])
        if len(words) != 6 or status is None:
            return None
        return cls(status, words[1], words[2], words[3], words[4], words[5][:MOST_CHARACTERS], stale)

    @property
    def found_by(self) -> str:
        """The depth of the look that found this."""
        return self.depth.rpartition("/")[2]

    def passed(self, gate: str) -> bool:
        """Whether it counts for a fleet with this gate; `nccl` is the gate of a whole fleet beside `dcgm`."""
        return not self.stale and (gate in ("none", "light") or self.depth != "light")


def read_verdict(lines: Sequence[str]) -> Verdict | None:
    """The verdict in what `SCRIPT` printed."""
    line = next((each[7:] for each in lines if each.startswith("health ")), None)
    return None if line is None else Verdict.parse(line, stale="health-of-another-boot" in lines)


def record(
    verdicts: Mapping[str, tuple[Status, str]],
    nodes: Sequence[NodeState],
    connector: Connector,
    depth: str,
    *,
    deadline_s: float,
) -> tuple[NodeResult[Verdict], ...]:
    """Write status and reason of each node, by its name, to it. Gives the verdicts as they stand now."""

    def write(node: NodeState) -> Verdict:
        status, reason = verdicts[node.name]
        words = " ".join(reason.replace("|", "/").split())[:MOST_CHARACTERS]
        result = connector.run(node, _command(status, depth, words), deadline_s=deadline_s)
        lines = result.stdout.splitlines()
        verdict = read_verdict(lines) if result.ok else None
        if verdict is None:
            raise RunnerError(
                f"the health of node {node.name} could not be written to it",
                where=node.name,
                detail=result.stderr.strip() or result.ending,
            )
        was = next((each[11:] for each in lines if each.startswith("health-was ")), "")
        return replace(verdict, former=_status(was))

    return fan_out(nodes, write)


_WITHDRAW = f"""\
case $(cat {NODE_HOME}/notice 2>/dev/null) in "health "*) rm -f {NODE_HOME}/notice;; esac
"""
"""Shell text after which jobs are not told to leave the node any more (`node-interrupt.sh.j2`)."""


def _status(word: str) -> Status | None:
    return cast(Status, word) if word in get_args(Status) else None


def _command(status: Status, depth: str, reason: str) -> Command:
    """What a deeper look of the same boot found stands until one as deep does not find it any more, unless
    it was a warning and this is a failure. That the node passed a deeper one stands, too: what is found here
    is over when it is not found any more."""
    line = argv("printf", "%s|%s|%s|%s|%s|%s\\n")
    script = f"""\
mkdir -p {NODE_HOME} && chmod 700 {NODE_HOME} || exit 1
now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
boot=; read -r boot < {BOOT_ID} || boot=?
since=$now status={status} depth={depth} reason={argv(reason)} was=
rank() {{ case $1 in nccl) echo 2;; dcgm) echo 1;; *) echo 0;; esac; }}
if [ -s {FILE} ] && [ "$(head -c {MOST_BYTES} {FILE} | wc -c)" -lt {MOST_BYTES} ]; then
  IFS='|' read -r was began _ of deep why < {FILE}
  case $was in healthy|warning|failure) ;; *) was= of= ;; esac
  by=${{deep#*/}} deep=${{deep%%/*}}
  if [ "$of" = "$boot" ] && [ "$(rank "$deep")" -gt "$(rank "$depth")" ]; then
    stands=
    [ "$(rank "$by")" -le "$(rank "$depth")" ] ||
      case $was,$status in healthy,*|warning,failure) ;; *) stands=1 ;; esac
    if [ -n "$stands" ]; then
      status=$was reason=$why depth=$deep
      [ "$by" = "$deep" ] || depth=$deep/$by
    elif [ "$status" != healthy ]; then
      depth=$deep/$depth
    else
      depth=$deep
    fi
  fi
  [ "$was" != "$status" ] || since=$began
fi
{line} "$status" "$since" "$now" "$boot" "$depth" "$reason" > {FILE}.$$ &&
  mv {FILE}.$$ {FILE} || exit 1
[ "$status" = failure ] || {{
{_WITHDRAW}}}
echo "health-was $was"
{SCRIPT}"""
    return Command(as_root(script), "write down the node's health")


def unhealthy_error(node: str, reason: str, fleet: str) -> NodeUnfit:
    """The error of a node that gets no job because of its health."""
    return NodeUnfit(
        f"node {node} is kept out: its health is a failure",
        where=node,
        detail=reason or None,
        hint=f"`orch health {fleet}` tells what was found and what helps; an examination that finds nothing "
        "lets the node take jobs again",
        code="ORCH390",
    )
