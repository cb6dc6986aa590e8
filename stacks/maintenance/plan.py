"""The plan of a maintenance: which nodes in which waves, which runs end for it, what is left alone. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orch.runner.node_api.cordon import Cordon
from orch.runner.plan.run_names import as_argument
from orch.spec.grammar.hosts import fold
from orch.spec.grammar.values import render_duration
from orch.spec.suggest import counted
from orch.stacks.errors import Conflict
from orch.stacks.maintenance.serial import DEFAULT, NONE, Share, in_turn, parse_serial

Verb = Literal["drain", "reboot", "replace", "reset-gpu", "rollout", "evacuate"]


def title_of(verb: Verb) -> str:
    """The words of a verb on the command line, without `orch`."""
    return {"rollout": "rollout", "evacuate": "fleet evacuate"}.get(verb, f"node {verb}")


LIMIT_S: Mapping[Verb, int] = {
    "drain": 0,
    "reboot": 1800,
    "replace": 1800,
    "reset-gpu": 900,
    "rollout": 1800,
    "evacuate": 1800,
}
"""How long a node may take from when its runs have ended until it is back, at most."""


@dataclass(frozen=True)
class Options:
    """Options of the user. `stop_runs`: runs on the nodes are stopped, after `wait_s` in which they may
    end."""

    serial: tuple[Share, ...]
    max_fail: Share = NONE
    stop_runs: bool = False
    wait_s: int = 0
    reason: str = ""

    def words(self) -> list[str]:
        """The same as words of a command line, without what needs no word."""
        words = ["--stop-runs"] if self.stop_runs else []
        words += ["--wait", render_duration(self.wait_s)] if self.wait_s else []
        words += ["--serial", ",".join(map(str, self.serial))] if self.serial != parse_serial(DEFAULT) else []
        words += ["--max-fail", str(self.max_fail)] if self.max_fail != NONE else []
        return [*words, *(["--reason", self.reason] if self.reason else [])]


@dataclass(frozen=True)
class NodeLook:
    """A node as it was found. `machine`: what tells it from the one before it under the same name.

    `made_by`, `made_for`, `pod`: as in NodeState. `cordon`: its mark; `answers`: whether it was reached.
    `fleet_size`: how many nodes its fleet has.
    """

    fleet: str
    backend: str
    name: str
    index: int
    machine: str
    answers: bool = True
    cordon: Cordon | None = None
    price_hourly: float | None = None
    pod: bool = False
    made_by: str | None = None
    made_for: str | None = None
    fleet_size: int = 1


@dataclass(frozen=True)
class PlannedNode:
    """A node that is worked on, as `NodeLook` has it."""

    fleet: str
    backend: str
    name: str
    index: int
    machine: str
    answers: bool = True
    price_hourly: float | None = None
    fleet_size: int = 1


@dataclass(frozen=True)
class PlannedRun:
    """A run on nodes of the plan. `number`: its id in this project's ledger, None for a run of others.

    `stops`: the plan stops it; otherwise its end is waited for.
    """

    name: str
    by: str
    nodes: tuple[str, ...]
    number: int | None
    stops: bool

    def __str__(self) -> str:
        number = f" (run {self.number})" if self.number is not None else ""
        return f"{self.name or '?'}{number} of {self.by or '?'} on {fold(self.nodes)}"


@dataclass(frozen=True)
class LeftAlone:
    """A node that was named and is not worked on, why, and what may be done."""

    name: str
    why: str
    hint: str | None = None


@dataclass(frozen=True)
class MaintenancePlan:
    """Plan of a verb. `usual_s`: the usual time of a node; None if unknown.

    `notes`: what a reader must know besides. Of an evacuation, `zone` is what the nodes leave, with all its
    `zone_names`; `whole`: the fleet does as one; `content`: of its file, without places.
    `spares`: nodes that a rollout makes first, and removes at last.
    """

    verb: Verb
    nodes: tuple[PlannedNode, ...]
    waves: tuple[tuple[str, ...], ...]
    runs: tuple[PlannedRun, ...] = ()
    left_alone: tuple[LeftAlone, ...] = ()
    max_fail: int = 0
    stop_runs: bool = False
    wait_s: int = 0
    reason: str = ""
    usual_s: float | None = None
    notes: tuple[str, ...] = ()
    zone: str = ""
    zone_names: tuple[str, ...] = ()
    whole: bool = False
    spares: tuple[str, ...] = ()
    content: str = ""

    @property
    def title(self) -> str:
        return title_of(self.verb)

    def node(self, name: str) -> PlannedNode:
        return next(each for each in self.nodes if each.name == name)

    def runs_on(self, names: Iterable[str]) -> tuple[PlannedRun, ...]:
        """The runs of the plan that are on any of these nodes."""
        chosen = set(names)
        return tuple(each for each in self.runs if chosen.intersection(each.nodes))

    @property
    def fleets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.fleet for each in self.nodes))

    def leaves(self, fleet: str, zone: str) -> bool:
        """Return True if it moves this fleet out of a zone, given by any of the zone's names."""
        return self.fleets == (fleet,) and zone.lower() in self.zone_names

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all nodes that the user named, sorted."""
        return tuple(sorted({each.name for each in (*self.nodes, *self.left_alone)}))

    @property
    def subject(self) -> str:
        """The nodes in words that the same command has each time."""
        return f"nodes {fold(self.names)}"

    @property
    def holds(self) -> tuple[str, ...]:
        """Return the names that no other change may hold meanwhile."""
        spares = (f"{fleet}/{name}" for fleet in self.fleets for name in self.spares)
        return tuple(sorted([*(f"{each.fleet}/{each.name}" for each in self.nodes), *spares]))

    @property
    def hourly(self) -> float | None:
        """Return the price of all nodes of the plan in US dollars an hour; None if that of any node is
        unknown."""
        prices = [each.price_hourly for each in self.nodes]
        return None if None in prices else sum(filter(None, prices))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        return json.dumps(self.as_json())

    @classmethod
    def parse(cls, text: str) -> MaintenancePlan:
        """Reads what `text` wrote."""
        data: dict[str, Any] = json.loads(text)
        data["nodes"] = tuple(PlannedNode(**each) for each in data["nodes"])
        data["waves"] = tuple(tuple(each) for each in data["waves"])
        data["runs"] = tuple(PlannedRun(**{**each, "nodes": tuple(each["nodes"])}) for each in data["runs"])
        data["notes"] = tuple(data["notes"])
        for key in ("zone_names", "spares"):
            data[key] = tuple(data.get(key, ()))
        data["left_alone"] = tuple(LeftAlone(**each) for each in data["left_alone"])
        return cls(**data)

    def lines(self) -> list[str]:
        """The plan for people."""
        lines = [f"orch {self.title}: {counted(len(self.nodes), 'node')} in {self._waves}"]
        for number, wave in enumerate(self.waves, 1):
            lines.append(f"  wave {number}: {fold(wave)}")
        for each in self.runs:
            word = "stops" if each.stops else "is waited for" if self.wait_s else "is in the way"
            lines.append(f"  run {word}: {each}")
        if not self.runs and self.nodes:
            lines.append("  no run is on them")
        lines += [f"  left alone: {each.name}, {each.why}" for each in self.left_alone]
        lines += [f"  {note}" for note in self.notes]
        if self.nodes:
            lines += [f"  time: {self._time}", f"  cost: {self._cost}", f"  {self._stops_at}"]
        return lines

    @property
    def _waves(self) -> str:
        return counted(len(self.waves), "wave")

    @property
    def _time(self) -> str:
        parts = [f"up to {render_duration(self.wait_s)} for runs to end"] if self.runs and self.wait_s else []
        if any(each.stops for each in self.runs):
            parts.append("the `stop_duration` of the runs that stop")
        if LIMIT_S[self.verb] and self.usual_s is not None:
            parts.append(f"about {render_duration(max(1, round(self.usual_s)))} a wave, as before")
        elif LIMIT_S[self.verb]:
            parts.append(f"at most {render_duration(LIMIT_S[self.verb])} a wave, not known better yet")
        return ", and ".join(parts) or "seconds"

    @property
    def _cost(self) -> str:
        hourly = self.hourly
        if hourly is None:
            return "the nodes do no work meanwhile; what an hour of them costs is not known"
        if not hourly:
            return "nothing: the nodes are your own"
        if self.verb == "evacuate" and not self.whole:
            dearest = max(sum(self.node(name).price_hourly or 0 for name in wave) for wave in self.waves)
            return f"old and new machines of a wave are paid for minutes both, ${dearest:.2f} an hour more"
        words = f"the nodes do no work meanwhile, ${hourly:.2f} an hour for all of them"
        if self.spares:
            dearest = max(each.price_hourly or 0 for each in self.nodes) * len(self.spares)
            return f"{words}; the spare ones are paid beside them, ${dearest:.2f} an hour"
        return f"{words}; none is paid twice"

    @property
    def _stops_at(self) -> str:
        if not self.max_fail:
            return "stops at the first node that fails"
        return f"stops when more than {counted(self.max_fail, 'node')} failed"

    def refuse_runs(self) -> None:
        """Raises Conflict where runs are on the nodes, and nobody said that they stop or are waited for."""
        kept = [each for each in self.runs if not each.stops]
        if not kept or self.wait_s:
            return
        stoppable = all(each.number is not None for each in kept)
        ways = ["`--wait 30m` waits for their end"]
        if stoppable:
            ways.insert(0, "`--stop-runs` stops them")
        else:
            theirs = [each.name for each in kept if each.number is None and each.name]
            ways += [f"`orch stop {as_argument(name)}` where it was started" for name in theirs]
        raise Conflict(
            f"runs are on the nodes: {', '.join(dict.fromkeys(each.name or '?' for each in kept))}",
            detail="\n".join(map(str, kept)),
            hint="; ".join(ways),
            code="ORCH386",
        )


def plan_of(
    verb: Verb,
    looks: Sequence[NodeLook],
    runs: Sequence[PlannedRun],
    options: Options,
    *,
    me: str,
    usual_s: float | None = None,
) -> MaintenancePlan:
    """The plan for nodes as they were found, in their order. `me`: who is at work, as cordons name them.

    `runs`: those on the nodes, whose `stops` is decided here.
    """
    left = [alone for each in looks if (alone := left_alone(verb, each, me)) is not None]
    names = [each.name for each in left]
    taken = [each for each in looks if each.name not in names]
    chosen = [each.name for each in taken]
    here = [each for each in runs if set(each.nodes).intersection(chosen)]
    return MaintenancePlan(
        verb,
        tuple(map(_planned, taken)),
        in_turn(chosen, options.serial),
        tuple(
            PlannedRun(
                each.name, each.by, each.nodes, each.number, options.stop_runs and each.number is not None
            )
            for each in here
        ),
        tuple(left),
        options.max_fail.of(len(chosen)),
        options.stop_runs,
        options.wait_s,
        options.reason,
        usual_s,
    )


def _planned(look: NodeLook) -> PlannedNode:
    return PlannedNode(
        look.fleet,
        look.backend,
        look.name,
        look.index,
        look.machine,
        look.answers,
        look.price_hourly,
        look.fleet_size,
    )


def left_alone(verb: Verb, look: NodeLook, me: str) -> LeftAlone | None:
    """Return the reason that a node is left alone; None for a node that is worked on."""
    if look.cordon is not None and look.cordon.by != me and not look.cordon.of_cloud:
        return LeftAlone(
            look.name,
            f"somebody else cordoned it: {look.cordon}",
            f"ask them, or `orch cordon --undo {look.name}` first",
        )
    if look.pod and verb in ("reboot", "reset-gpu"):
        words = "a pod cannot be rebooted" if verb == "reboot" else "a pod cannot reset the GPUs of its host"
        return LeftAlone(look.name, words, "stop its run: the next one gets another pod")
    if not look.answers and verb not in ("replace", "rollout", "evacuate"):
        return LeftAlone(look.name, "it does not answer", f"`orch node replace {look.name}` makes it anew")
    return None
