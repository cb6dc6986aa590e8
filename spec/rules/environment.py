"""The environment of runs and of nodes: what a document gives, what its caller adds, and what orch sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

from orch.spec.diagnostics import Diagnostic, Severity
from orch.spec.document.draft import Draft, Path_, env_path
from orch.spec.grammar import interpolate
from orch.spec.models import Fleet, Host, InitStep, Task
from orch.spec.models.run import Run
from orch.spec.rules.rule import Findings, Rule

Bearer = TypeVar("Bearer", Fleet, Host, InitStep)


def reserved_variables(draft: Draft) -> Findings:
    for name in cast("Fleet | Run", draft.partial).env:
        if name.startswith(("DSTACK_", "ORCH_")):
            yield draft.diagnostic(
                "ORCH193",
                env_path(draft, name),
                f"{name} is set by orch, this value is not used",
                severity=Severity.WARNING,
                hint="choose another name",
            )


def variables_of_the_caller(draft: Draft) -> Findings:
    """Entries without a value that the caller does not have. What each group of a task sets itself is not
    asked of the caller."""
    model = cast("Fleet | Run", draft.partial)
    if draft.context.fence is not None:
        return  # told of all of them alike
    groups = model.groups if isinstance(model, Task) else ()
    own = frozenset[str]().union(*(group.env for group in groups))
    by_all = {name for name in own if all(group.env.get(name) is not None for group in groups)}
    env = {name: value for name, value in model.env.items() if name not in by_all}
    yield from resolve_env(env, draft.context.environ, draft)[1]
    for index, group in enumerate(groups):
        yield from resolve_env(group.env, draft.context.environ, draft, ("groups", index, "env"))[1]


def variables_of_hosts(draft: Draft) -> Findings:
    hosts = cast(Fleet, draft.partial).ssh_config if draft.context.fence is None else None
    for index, host in enumerate(hosts.hosts if hosts else ()):
        at = ("ssh_config", "hosts", index, "env")
        yield from resolve_env(host.env, draft.context.environ, draft, at)[1]


def variables_of_steps(draft: Draft) -> Findings:
    for index, step in enumerate(cast(Fleet, draft.partial).init if draft.context.fence is None else ()):
        at = ("init", index, "env")
        yield from resolve_env(step.env, draft.context.environ, draft, at)[1]


def resolve_env(
    env: Mapping[str, str | None], environ: Mapping[str, str], draft: Draft, at: Path_ = ("env",)
) -> tuple[dict[str, str], tuple[Diagnostic, ...]]:
    """The variables with their values, and an ORCH173 for each that is taken from `environ` and is not set
    there.

    Unset variables are left out of the result. `draft` is their document, `at` their place in it.
    """
    variables = {name: environ.get(name) if value is None else value for name, value in env.items()}
    unset = tuple(
        draft.unset(name, env_path(draft, name, at)) for name, value in variables.items() if value is None
    )
    return {name: value for name, value in variables.items() if value is not None}, unset


def filled(fleet: Fleet, environ: Mapping[str, str]) -> Fleet:
    """The fleet with the caller's values of variables that have none of their own, as far as they are set."""

    def own(name: str) -> str | None:
        return interpolate.literal(environ[name]) if name in environ else None

    def given(part: Bearer) -> Bearer:
        if None not in part.env.values():
            return part
        env = {name: value if value is not None else own(name) for name, value in part.env.items()}
        return part.model_copy(update={"env": env})

    fleet = given(fleet)
    init = tuple(given(step) for step in fleet.init)
    if init != fleet.init:
        fleet = fleet.model_copy(update={"init": init})
    ssh = fleet.ssh_config
    hosts = tuple(given(host) for host in ssh.hosts) if ssh else ()
    if ssh is not None and hosts != ssh.hosts:
        fleet = fleet.model_copy(update={"ssh_config": ssh.model_copy(update={"hosts": hosts})})
    return fleet


RULES = (Rule(("env",), reserved_variables), Rule(("env", "groups"), variables_of_the_caller))
