"""The backends this build provisions, and what each gives: one row each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from orch.components.findings import Finding
from orch.components.plan import CloudAnswer, NewHostKey, NodeProblem, NodeWarning, Order, PlanError

if TYPE_CHECKING:
    import pulumi

    from orch.components.crash import Crash


@dataclass(frozen=True)
class Place:
    """Another place where a fleet may go; `compile` plans it there, and raises what planning raises."""

    words: str
    compile: Callable[[], Compiled]


@dataclass(frozen=True)
class Compiled:
    """A planned fleet.

    `register` makes its resources inside a Pulumi program; it gives the fleet's state, and the client's
    private key where the fleet has one of its own.
    """

    reasons: tuple[str, ...]
    # What must stay as it is decided now, read back as `Previous`; orch.lock keeps those in `locked` too.
    pins: dict[str, str]
    images: tuple[str, ...]
    # US dollars an hour of all nodes; `unpriced` is what costs money beside that.
    hourly: float
    register: Callable[[], tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]]
    # Nodes that are kept out, and what is told of the others.
    problems: tuple[NodeProblem, ...] = ()
    warnings: tuple[NodeWarning, ...] = ()
    new_keys: tuple[NewHostKey, ...] = ()
    # Types of resources of which one that fails does not stop the others.
    apart: frozenset[str] = frozenset()
    parallel: int | None = None
    # Where it goes, where it may go else, and what an error of the cloud means for trying on.
    place: str | None = None
    elsewhere: tuple[Place, ...] = ()
    answer: Callable[[str], CloudAnswer | None] = lambda text: None
    # All nodes or none.
    whole: bool = False
    findings: tuple[Finding, ...] = ()
    unpriced: tuple[str, ...] = ()
    # Steps on the way, brought up first.
    before: tuple[Compiled, ...] = ()
    # The file does not allow the place where the fleet is: it is removed there first.
    moves: bool = False
    # Of clouds: the nodes' names, and the same plan with some of them alone while so many are running.
    nodes: tuple[str, ...] = ()
    only: Callable[[Collection[str], int], Compiled] | None = None
    locked: frozenset[str] = frozenset()


def compile_fleet(order: Order) -> Compiled:
    """Plan a fleet on its backend, with the backends' settings of orch.yml.

    Raises PlanError, and what asking the backend raises."""
    if order.fleet.ssh_config is not None:
        return _ssh(order)
    for backend in order.fleet.backends:
        compiler = BACKENDS.get(backend)
        if compiler:
            return compiler(order)
    raise PlanError(
        "ORCH201",
        f"this version provisions {', '.join(sorted(BACKENDS))} only, not {', '.join(order.fleet.backends)}",
        path="backends",
        hint="write `backend: local` to rehearse on this machine",
    )


def _local(order: Order) -> Compiled:
    from orch.components.local.facts import ask
    from orch.components.local.plan import plan

    node_image = next((s.node_image for s in order.settings if s.type == "local"), None)
    made = plan(order.fleet, ask(node_image), order.previous, order.scope)

    def register() -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
        from orch.components.local.resources import LocalFleet

        component = LocalFleet(made)
        return component.state, component.identity

    return Compiled(
        made.reasons, made.pins, (made.image,), hourly=0.0, register=register
    )  # the user's machine


def _ssh(order: Order) -> Compiled:
    from orch.components.ssh.facts import ask
    from orch.components.ssh.plan import plan
    from orch.runner.hosts.targets import pins

    previous, consent = order.previous, order.consent
    facts = ask(
        order.fleet,
        order.folder,
        pinned={**pins(previous.nodes), **consent.keys},
        accept=consent.rekeyed - consent.keys.keys(),
        network=None if consent.accept_drift else previous.pins.get("network"),
    )
    made = plan(order, facts)
    config = order.fleet.ssh_config

    def register() -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
        from orch.components.ssh.resources import SshFleet

        return SshFleet(made).state, None

    return Compiled(
        made.reasons,
        made.pins,
        (),
        hourly=0.0,
        register=register,
        problems=made.problems,
        warnings=made.warnings,
        new_keys=made.new_keys,
        apart=frozenset({"orch:ssh:Host"}),
        parallel=config.parallel if config else None,
    )


def _aws(order: Order) -> Compiled:
    from orch.components.aws import ask, errors
    from orch.components.aws.candidates import Candidate
    from orch.components.aws.compile import (
        PINNED_IMAGES,
        CompiledAws,
        candidates_of,
        compile_aws,
        recovered,
        settings_of,
    )

    settings = settings_of(order.settings)
    session = order.session or ask.session(settings)
    fleet, known = order.fleet, order.previous
    previous = known if known.pins else recovered(known.begun)
    images = {key: value for key, value in {**known.locked, **previous.pins}.items() if key in PINNED_IMAGES}
    rest = {key: value for key, value in previous.pins.items() if key not in PINNED_IMAGES}
    previous = replace(previous, pins=rest if order.consent.upgrade else {**images, **rest})
    places = candidates_of(fleet, settings, previous, session=session)

    def answer(text: str) -> CloudAnswer | None:
        error = errors.read(text)
        if error is None:
            return None
        reason = f"{error.code}: {error.meaning}"
        return CloudAnswer(error.verdict == "next", reason, error.orch, error.hint)

    def ready(made: CompiledAws, elsewhere: tuple[Place, ...]) -> Compiled:
        whole = fleet.gang == "all-or-nothing"
        return Compiled(
            made.reasons,
            made.pins,
            (),
            hourly=made.hourly,
            register=made.register,
            apart=frozenset() if whole else frozenset({"aws:ec2/instance:Instance"}),
            place=made.candidate.words,
            elsewhere=elsewhere,
            answer=answer,
            whole=whole,
            findings=made.warnings,
            unpriced=made.unpriced,
            before=tuple(ready(step, ()) for step in made.before),
            moves=made.moves,
            nodes=tuple(node.name for node in made.plan.nodes),
            only=lambda names, running: ready(made.only(names, running), ()),
            locked=frozenset(PINNED_IMAGES),
        )

    def at(place: Candidate, others: Sequence[Candidate]) -> Compiled:
        made = compile_aws(
            fleet,
            settings,
            previous,
            order.scope,
            session=session,
            candidate=place,
            tags=order.tags,
            folder=order.folder,
        )
        return ready(made, tuple(Place(other.words, partial(at, other, ())) for other in others))

    return at(places[0], places[1:])


BACKENDS: dict[str, Callable[[Order], Compiled]] = {"local": _local, "aws": _aws}


def clear(crash: Crash) -> tuple[str, ...]:
    """Remove what a call that did not end left in the clouds of a stack; what was removed.

    Raises what asking the cloud raises."""
    done: list[str] = []
    if any(crash.of("aws:")):
        from orch.components.aws import leftovers

        done += leftovers.clear(crash)
    return tuple(done)
