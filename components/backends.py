"""The backends this build provisions, and what each gives: one row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orch.components.plan import PlanError, Previous

if TYPE_CHECKING:
    import pulumi

    from orch.spec.models import Fleet
    from orch.spec.models.project import LocalBackend


@dataclass(frozen=True)
class Compiled:
    """A planned fleet. `register` makes its resources inside a Pulumi program and gives its outputs.

    `hourly` is the price of all its nodes in US dollars an hour.
    """

    reasons: tuple[str, ...]
    pins: dict[str, str]
    images: tuple[str, ...]
    hourly: float
    register: Callable[[], tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str]]]


def compile_fleet(fleet: Fleet, settings: Sequence[LocalBackend], previous: Previous, scope: str) -> Compiled:
    """Plan `fleet` on its backend, with the backends' `settings` of orch.yml.

    Raises PlanError, and what asking the backend raises."""
    for backend in fleet.backends:
        compiler = BACKENDS.get(backend)
        if compiler:
            return compiler(fleet, settings, previous, scope)
    raise PlanError(
        "ORCH201",
        f"this version provisions {', '.join(sorted(BACKENDS))} only, not {', '.join(fleet.backends)}",
        path="backends",
        hint="write `backend: local` to rehearse on this machine",
    )


def _local(fleet: Fleet, settings: Sequence[LocalBackend], previous: Previous, scope: str) -> Compiled:
    from orch.components.local.facts import ask
    from orch.components.local.plan import plan

    node_image = next((s.node_image for s in settings if s.type == "local"), None)
    made = plan(fleet, ask(node_image), previous, scope)

    def register() -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str]]:
        from orch.components.local.resources import LocalFleet

        component = LocalFleet(made)
        return component.state, component.identity

    return Compiled(
        made.reasons, made.pins, (made.image,), hourly=0.0, register=register
    )  # the user's machine


BACKENDS: dict[str, Callable[[Fleet, Sequence[LocalBackend], Previous, str], Compiled]] = {"local": _local}
