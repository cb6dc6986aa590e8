"""The verbs of `python -m orch.rehearsal` that differ by cloud: a subclass in each simulator's `shell.py`."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, ClassVar

from orch.rehearsal.account import SimulatedAccount, SimulationError


class Shell:
    """The verbs of an account. A method's name is that of its verb, with `_` for `-`.

    `title`: the cloud as people write it; `hint`: the verb that it has in the place of others.
    """

    title: ClassVar[str]
    hint: ClassVar[str | None] = None

    def __init__(self, cloud: Any) -> None:
        self.cloud = cloud

    def do(self, args: argparse.Namespace) -> Any:
        """Do the verb. Raises SimulationError for one that the cloud does not have."""
        act = getattr(self, args.verb.replace("-", "_"), None)
        if act is None:
            raise self.unknown(args.verb)
        return act(args)

    def unknown(self, verb: str) -> SimulationError:
        return SimulationError(f"{verb} is not for an account of {self.title}", hint=self.hint)


class UnannouncedShell(Shell):
    """The verbs of a cloud that announces nothing: both verbs take machines away. `kind`: such a machine."""

    kind: ClassVar[str]

    def lose(self, instance: str) -> None:
        """Remove a machine with its host."""
        self.cloud.lose_host(instance)

    def terminate(self, args: argparse.Namespace) -> None:
        for instance in [args.instance] if args.verb == "interrupt" else args.instances:
            if instance not in self.cloud.instances():
                raise SimulationError(f"there is no {self.kind} {instance}", where=str(self.cloud.path))
            self.lose(instance)

    delete = interrupt = terminate

    def unknown(self, verb: str) -> SimulationError:
        hint = f"`terminate {self.kind.upper()}` takes a {self.kind} away"
        return SimulationError(f"{verb} is not for an account of {self.title}", hint=hint)


def announced(cloud: SimulatedAccount, instance: str, args: argparse.Namespace) -> str | None:
    """Announce the end of an instance to its node, and wait for that time.

    Returns the kind of notice by which it ends, None for advice, which ends nothing.
    """
    from orch.rehearsal.nodes import notices

    seconds = notices.AHEAD_S[cloud.name].get(args.kind, 0.0) if args.ahead_s is None else args.ahead_s
    notices.announce(cloud, instance, args.kind, seconds)
    print(f"{args.instance}: {args.kind} is announced for {seconds:.0f} s from now", file=sys.stderr)
    if args.kind == "rebalance":
        return None
    time.sleep(seconds)
    return str(args.kind)


def named(cloud: SimulatedAccount, word: str, found: list[str]) -> str:
    """Return the one instance of a name. Raises SimulationError if there is none, or several."""
    if len(found) != 1:
        raise SimulationError(f"{len(found)} instances have the name {word}", where=str(cloud.path))
    return found[0]
