"""The backends this build provisions, and what each gives: one row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from orch.components.cloud.candidates import Candidate
from orch.components.cloud.fleet import Cloud, CloudFleet, compiled, settled
from orch.components.deployment import Deployment
from orch.components.request import PlanError, PlanRequest, PriorState
from orch.spec.rules.unsupported import backends_hint

if TYPE_CHECKING:
    import pulumi

    from orch.components.cloud.orphans import StackSnapshot
    from orch.spec.models.backends import BackendSettings


def compile_fleet(order: PlanRequest) -> Deployment:
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
        hint=backends_hint(each.type for each in order.settings),
    )


def _local(order: PlanRequest) -> Deployment:
    from orch.components.local.explain import EXPLAINED, traits
    from orch.components.local.facts import ask
    from orch.components.local.plan import plan

    node_image = next((s.node_image for s in order.settings if s.type == "local"), None)
    made = plan(order.fleet, ask(node_image), order.previous, order.scope)

    def register() -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
        from orch.components.local.resources import LocalFleet

        component = LocalFleet(made)
        return component.state, component.identity

    return Deployment(
        made.reasons,
        made.pins,
        (made.image,),
        hourly=0.0,  # the user's machine
        register=register,
        traits=traits(made),
        explained=EXPLAINED,
        nodes=tuple(node.name for node in made.nodes),
    )


def _ssh(order: PlanRequest) -> Deployment:
    from orch.components.ssh.explain import EXPLAINED
    from orch.components.ssh.facts import ask
    from orch.components.ssh.plan import plan
    from orch.runner.hosts.naming import pins

    previous, consent = order.previous, order.consent
    facts = ask(
        order.fleet,
        order.folder,
        pinned=pins(previous.nodes),
        consent=consent,
        network=None if consent.accept_drift else previous.pins.get("network"),
    )
    made = plan(order, facts)
    config = order.fleet.ssh_config

    def register() -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
        from orch.components.ssh.resources import SshFleet

        return SshFleet(made).state, None

    return Deployment(
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
        explained=EXPLAINED,
        nodes=tuple(host.node.name for host in made.hosts),
    )


def _aws(order: PlanRequest) -> Deployment:
    from orch.components.aws.account import errors, gather_facts
    from orch.components.aws.backend import PINNED_IMAGES, candidates_of, compile_aws, settings_of, settler
    from orch.components.aws.explain import EXPLAINED

    cloud = Cloud("aws:ec2/instance:Instance", PINNED_IMAGES, errors.read, EXPLAINED)
    settings = settings_of(order.settings)
    session = order.session("aws") or gather_facts.session(settings)
    previous = settled(order, cloud)

    def at(place: Candidate) -> CloudFleet:
        return compile_aws(
            order.fleet,
            settings,
            previous,
            order.scope,
            session=session,
            candidate=place,
            tags=order.tags,
            folder=order.folder,
        )

    places = candidates_of(order.fleet, settings, previous, session=session)
    return compiled(order.fleet, cloud, places, at, settler(order.fleet, settings, session=session))


def _gcp(order: PlanRequest) -> Deployment:
    from orch.components.gcp.account import errors, gather_facts
    from orch.components.gcp.backend import (
        PINNED_IMAGES,
        candidates_of,
        compile_gcp,
        settings_of,
        shared_stack,
    )
    from orch.components.gcp.explain import EXPLAINED

    node = "gcp:compute/instanceFromTemplate:InstanceFromTemplate"
    cloud = Cloud(node, PINNED_IMAGES, errors.read, EXPLAINED)
    settings = settings_of(order.settings)
    session = order.session("gcp") or gather_facts.session(settings)
    previous = settled(order, cloud)
    network = shared_stack(order.fleet)

    def known() -> PriorState:
        """Asked for each place anew: networks that were made for another one are gone by then."""
        return order.stack(network) if network else PriorState()

    def at(place: Candidate) -> CloudFleet:
        return compile_gcp(
            order.fleet,
            settings,
            previous,
            order.scope,
            session=session,
            candidate=place,
            network=known(),
            tags=order.tags,
            folder=order.folder,
        )

    places = candidates_of(order.fleet, settings, previous, session=session, network=known())
    return compiled(order.fleet, cloud, places, at)


BACKENDS: dict[str, Callable[[PlanRequest], Deployment]] = {"local": _local, "aws": _aws, "gcp": _gcp}


def tunnels(settings: Sequence[BackendSettings]) -> dict[str, str]:
    """What commands that lead to nodes of clouds have to find in their environment: secrets among them."""
    from orch.components.aws import tunnels as ssm
    from orch.components.gcp import tunnels as iap

    found = dict[str, str]()
    for each in settings:
        if each.type == "aws":
            found |= ssm.environment(each)
        elif each.type == "gcp":
            found |= iap.environment(each)
    return found


def in_clouds(crash: StackSnapshot) -> bool:
    """Whether anything of a stack is in a cloud, where what is not recorded may be left."""
    return any(crash.of("aws:")) or any(crash.of("gcp:"))


def clear(crash: StackSnapshot) -> tuple[str, ...]:
    """Remove what a call that did not end left in the clouds of a stack; what was removed.

    Raises what asking the cloud raises."""
    done: list[str] = []
    if any(crash.of("aws:")):
        from orch.components.aws.account import orphans

        done += orphans.clear(crash)
    if any(crash.of("gcp:")):
        from orch.components.gcp.account import orphans

        done += orphans.clear(crash)
    return tuple(done)
