"""The backends this build provisions, and what each gives: one row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from orch.components.findings import Finding
from orch.components.plan import CloudAnswer, NewHostKey, NodeProblem, NodeWarning, Order, PlanError

if TYPE_CHECKING:
    import pulumi


@dataclass(frozen=True)
class Place:
    """Another place where a fleet may go; `compile` plans it there, and raises what planning raises."""

    words: str
    compile: Callable[[], Compiled]


@dataclass(frozen=True)
class Compiled:
    """A planned fleet. `register` makes its resources inside a Pulumi program and gives its state, and the
    client's private key where the fleet has one of its own.

    `hourly` is the price of all its nodes in US dollars an hour. `problems` keep parts of the fleet out and
    are told; `warnings` are told. `apart`: types of resources of which one that fails does not stop the
    others. `place` says where the fleet goes, `elsewhere` gives the same fleet in the next places to try, and
    `answer` what an error of the cloud means for trying on. `whole`: all nodes or none. `findings`: warnings
    with a place in the file. `unpriced`: what costs money and has no price here.
    """

    reasons: tuple[str, ...]
    pins: dict[str, str]
    images: tuple[str, ...]
    hourly: float
    register: Callable[[], tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]]
    problems: tuple[NodeProblem, ...] = ()
    warnings: tuple[NodeWarning, ...] = ()
    new_keys: tuple[NewHostKey, ...] = ()
    apart: frozenset[str] = frozenset()
    parallel: int | None = None
    place: str | None = None
    elsewhere: tuple[Place, ...] = ()
    answer: Callable[[str], CloudAnswer | None] = lambda text: None
    whole: bool = False
    findings: tuple[Finding, ...] = ()
    unpriced: tuple[str, ...] = ()


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
    from orch.components.aws.compile import candidates_of, compile_aws, settings_of

    settings = settings_of(order.settings)
    session = order.session or ask.session(settings)
    fleet, previous = order.fleet, order.previous
    places = candidates_of(fleet, settings, previous, session=session)

    def answer(text: str) -> CloudAnswer | None:
        error = errors.read(text)
        if error is None:
            return None
        reason = f"{error.code}: {error.meaning}"
        return CloudAnswer(error.verdict == "next", reason, error.orch, error.hint)

    def at(place: Candidate, rest: Sequence[Candidate]) -> Compiled:
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
        whole = fleet.gang == "all-or-nothing"
        return Compiled(
            made.reasons,
            made.pins,
            (),
            hourly=made.hourly,
            register=made.register,
            apart=frozenset() if whole else frozenset({"aws:ec2/instance:Instance"}),
            place=place.words,
            elsewhere=tuple(Place(each.words, partial(at, each, ())) for each in rest),
            answer=answer,
            whole=whole,
            findings=made.warnings,
            unpriced=made.unpriced,
        )

    return at(places[0], places[1:])


BACKENDS: dict[str, Callable[[Order], Compiled]] = {"local": _local, "aws": _aws}
