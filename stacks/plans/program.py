"""The programs that the engine runs for a fleet, and for networks that fleets share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from orch import __version__
from orch.components.deployment import Deployment, SharedNetworks
from orch.spec.state import SCHEMA, WATCHED
from orch.stacks.engine.process import without_source_positions
from orch.stacks.record.variables import values_of, without_values
from orch.stacks.stack.state import HEALTH, REASONS, SPARES


def register(compiled: Deployment, explained: Sequence[str] | None = None) -> None:
    """Register the resources of a plan, and export what a runner needs.

    `explained`: the explanations of the last `orch up`, which `pulumi` by hand leaves as they are.
    """
    import pulumi

    for problem in compiled.problems:
        pulumi.log.warn(problem.text())
    for warning in compiled.warnings:
        pulumi.log.warn(f"{warning.node}: {warning.text}")
    with without_source_positions():
        state, identity = compiled.register()
    pulumi.export("orch", {"version": __version__, "schema": SCHEMA})
    pulumi.export("fleet", state.apply(without_values))
    pulumi.export("env", state.apply(_encrypted))
    pulumi.export("pins", compiled.pins)
    pulumi.export("traits", dict(compiled.traits))
    if compiled.health != WATCHED:
        pulumi.export(HEALTH, compiled.health.model_dump())
    if compiled.spares is not None:
        pulumi.export(SPARES, compiled.spares.model_dump())
    pulumi.export(REASONS, list(compiled.reasons if explained is None else explained))
    if identity is not None:
        pulumi.export("identity", pulumi.Output.secret(identity))


def _encrypted(state: dict[str, Any]) -> Any:
    """The variables of a fleet as a secret; {} for none, so that reading them needs no key."""
    import pulumi

    values = values_of(state)
    return pulumi.Output.secret(values) if values else values


def program(compiled: Deployment) -> Callable[[], Awaitable[None]]:
    """The program that the engine runs for `orch`."""

    async def run() -> None:
        register(compiled)
        # Once registrations run, the SDK waits for one after the other. Before, it would check every output
        # of every resource each time one resolves (measured: quadratic in the number of nodes).
        await asyncio.sleep(0)

    return run


def shared_program(shared: SharedNetworks) -> Callable[[], None]:
    """The program that the engine runs for networks that fleets share."""

    def run() -> None:
        import pulumi

        with without_source_positions():
            shared.register()
        pulumi.export("orch", {"version": __version__, "schema": SCHEMA})
        pulumi.export("pins", dict(shared.pins))

    return run
