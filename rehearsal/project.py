"""A rehearsal: the same program and the same engine on simulated clouds, with a state of its own.

`rehearse(project)` gives a project that every operation of this package takes as it takes a real one: its
state, work folder, passphrase and ledger lie under `.orch/rehearsal/`, and the engine it calls finds the
simulated providers on PATH and the accounts' files in its environment. A real project's operations refuse to
run beside those (`stacks/engine/shims.py`), and import nothing of this package.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml
from pydantic import ValidationError

from orch.catalog.shortages import FILE
from orch.components.accounts import REHEARSED
from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.machines import Endpoint
from orch.rehearsal.scenario import Knobs, NodeScenario
from orch.rehearsal.simulators import accounts, servers
from orch.runner.private import private_folder, stage_file, write_private
from orch.stacks.engine.install import Engine
from orch.stacks.engine.shims import MARK, PROJECT_HOOK, VARIABLE
from orch.stacks.errors import ProjectError
from orch.stacks.project.project import Project

if TYPE_CHECKING:
    import boto3

    from orch.rehearsal.aws.account import Cloud
    from orch.rehearsal.gcp.account import GcpCloud
    from orch.spec.state import FleetState, NodeState

_NAME = re.compile(r"[a-z0-9]{1,20}")
"""Name of a simulated account that is not the first one."""

NOBODY = "echo 'a simulated instance, and no local node stands for it' >&2; exit 1"
"""The proxy command for an instance without a local node: no connection to a real machine is tried."""


@dataclass(frozen=True)
class RehearsalProject(Project):
    """A project whose state and clouds are those of a rehearsal.

    `seed` and `nodes` are of accounts that are made from now on; `nodes` puts a local node behind each
    instance that carries SSH keys, unless the knobs file says otherwise. `other`: the name of the accounts
    that are used in the place of the first ones.
    """

    seed: str = "0"
    nodes: bool = True
    other: str = ""

    @property
    def dot(self) -> Path:
        return self.rehearsal_folder

    @property
    def account(self) -> Path:
        """The simulated AWS account."""
        return self.account_of("aws")

    def account_of(self, cloud: str) -> Path:
        return self.dot / (f"{cloud}@{self.other}.db" if self.other else f"{cloud}.db")

    def cloud(self, name: str) -> SimulatedAccount:
        """The account of a cloud, created at first use. Raises ProjectError for invalid knobs."""
        path, simulator = self.account_of(name), accounts()[name]
        if not path.is_file():
            account: type[SimulatedAccount] = simulator.hooks.account
            account.create(path, seed=self.seed, knobs=_knobs(self), other=self.other).store.close()
        return simulator.open(path)

    @property
    def lock_file(self) -> Path:
        return self.dot / "orch.lock"

    @property
    def shortages(self) -> Path:
        return self.dot / FILE

    @property
    def shims(self) -> Path:
        return self.dot / "bin"

    @property
    def rehearsal(self) -> bool:
        return True

    def session(self, backend: str) -> Any:
        if backend in servers():
            return servers()[backend].hooks.session(self.dot / backend)
        if backend not in accounts():
            return None
        return accounts()[backend].hooks.session(self.cloud(backend), self.backends)

    def may_hold_more(self, backend: str) -> bool:
        """An account is the rehearsal's alone: before anything is in it, nobody has to look."""
        made = backend in accounts() and self.account_of(backend).is_file()
        return made and bool(self.cloud(backend).everything())

    def with_routes(self, state: FleetState) -> FleetState:
        """The state with the addresses of local nodes; an instance without one cannot be reached."""
        if state.backend in servers():
            return state.model_copy(update={"simulated": True})
        if state.backend not in accounts():
            return state
        endpoints = accounts()[state.backend].hooks.endpoints(self.cloud(state.backend), state)
        nodes = tuple(
            _at_local_node(node, endpoints[node.name])
            if node.name in endpoints
            else node.reached(jump=(), proxy_command=NOBODY)
            for node in state.nodes
        )
        return state.model_copy(update={"nodes": nodes, "simulated": True})

    def machines(self, state: FleetState) -> tuple[NodeState, ...]:
        return tuple(node for node in state.nodes if node.ssh.proxy_command != NOBODY)

    def environment(self, engine: Engine) -> Mapping[str, str]:
        variables = dict(super().environment(engine))
        return {
            **variables,
            "PATH": os.pathsep.join([str(self.shims), variables["PATH"]]),
            **{f"{VARIABLE}{name.upper()}": str(self.account_of(name)) for name in accounts()},
            PROJECT_HOOK: f"{__name__}:{by_hand.__name__}",
            # No provider is fetched for a rehearsal: what it needs is here or it fails.
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "ORCH_KUBERNETES_PLUGIN": "own",
        }


@dataclass(frozen=True)
class Rehearsal:
    """A rehearsal of one project."""

    project: RehearsalProject

    @property
    def cloud(self) -> Cloud:
        """Its AWS account: inspect it, set its knobs, change it to simulate drift."""
        return cast("Cloud", self.project.cloud("aws"))

    @property
    def gcp(self) -> GcpCloud:
        """Its GCP account."""
        return cast("GcpCloud", self.project.cloud("gcp"))

    def session(self, region: str | None = None) -> boto3.Session:
        """A boto3 session whose clients speak to the simulated AWS account."""
        from orch.rehearsal.aws.client_hook import session

        return session(self.cloud, region)

    def endpoints(self) -> dict[str, Endpoint]:
        """Instance id -> endpoint of its local node; see rehearsal/README.md."""
        return self.cloud.endpoints()


def _at_local_node(node: NodeState, endpoint: Endpoint) -> NodeState:
    """A node with the address of its local node."""
    access = {
        "address": endpoint.address,
        "port": endpoint.port,
        "user": endpoint.user,
        "host_key": endpoint.host_key,
    }
    return node.reached(**access, jump=(), proxy_command=None).model_copy(
        update={
            "internal_ip": endpoint.internal_ip,
            # The instance's figures exceed this machine's.
            "cpus": None,
            "memory_mib": None,
        }
    )


def rehearse(project: Project, *, nodes: bool = True, seed: str = "0") -> Rehearsal:
    """The rehearsal of a project, created at the first call.

    A new account takes its knobs from `.orch/rehearsal/knobs.yml` where there is one. ORCH_REHEARSE_ACCOUNT
    selects other accounts. Raises ProjectError.
    """
    values: dict[str, Any] = {field.name: getattr(project, field.name) for field in fields(Project)}
    folder = project.rehearsal_folder
    values |= {
        "state_url": f"file://{folder / 'state'}",
        "secrets_provider": None,
        "ledger_url": f"sqlite:///{folder / 'ledger.db'}",
    }
    rehearsal = RehearsalProject(**values, seed=seed, nodes=nodes, other=_other_account())
    rehearsal.prepare()
    _ignore(project.root / ".orch")
    _put_shims(rehearsal)
    _knobs(rehearsal)
    for name in accounts():
        if not rehearsal.account_of(name).is_file():
            continue
        cloud = rehearsal.cloud(name)
        if cloud.knobs.nodes is not None or cloud.endpoints():
            from orch.rehearsal.nodes.containers import repair

            repair(cloud)
    return Rehearsal(rehearsal)


def by_hand(project: Project) -> Project:
    """The rehearsal of a project for a program that `pulumi` runs by hand; see `stacks/program.py`."""
    return rehearse(project).project


def forget(project: Project) -> None:
    """End a rehearsal: its nodes, its accounts and its state."""
    folder = project.rehearsal_folder
    for name, simulator in accounts().items():
        for file in (folder / f"{name}.db", *folder.glob(f"{name}@*.db")):
            if not file.is_file():
                continue
            from orch.rehearsal.nodes.containers import stop
            from orch.rehearsal.nodes.disks import remove_disks, remove_volumes

            cloud = simulator.open(file)
            for instance in cloud.endpoints():
                stop(cloud, instance)
            remove_disks(cloud)
            remove_volumes(cloud)
            cloud.store.close()
    for name, server in servers().items():
        if (folder / name).exists():
            server.hooks.forget(folder / name)
    shutil.rmtree(folder, ignore_errors=True)


def _other_account() -> str:
    """Return the name of the accounts that the environment selects; empty for the first ones."""
    name = os.environ.get(REHEARSED, "")
    if name and not _NAME.fullmatch(name):
        raise ProjectError(
            "the name of the simulated account is not valid",
            detail=f"{REHEARSED} is {name!r}",
            hint=f"use up to 20 lower-case letters and digits, or unset {REHEARSED}",
            code="ORCH302",
        )
    return name


def _put_shims(project: RehearsalProject) -> None:
    private_folder(project.shims)
    for simulator in accounts().values():
        module = f"{simulator.package}.plugin"
        # The folder the engine starts it in must not lend it modules.
        code = f"import sys; sys.path = [p for p in sys.path if p]; from {module} import main; main()"
        text = (
            f'#!/bin/sh\n# {MARK}: simulated, for rehearsals only\nexec "{sys.executable}" -c "{code}" "$@"\n'
        )
        path = project.shims / str(simulator.plugin)
        if not path.exists() or path.read_text() != text:
            staged = stage_file(path, text)
            staged.chmod(0o700)
            staged.rename(path)


def _ignore(dot: Path) -> None:
    if not (dot / ".gitignore").exists():
        write_private(dot / ".gitignore", "*\n")


def _knobs(project: RehearsalProject) -> Knobs:
    file = project.dot / "knobs.yml"
    try:
        settings = yaml.safe_load(file.read_text("utf-8")) if file.is_file() else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ProjectError(
            "the rehearsal's knobs cannot be read", where=str(file), detail=str(error), code="ORCH302"
        ) from error
    try:
        knobs = Knobs.model_validate(settings or {})
    except ValidationError as error:
        first = error.errors()[0]
        raise ProjectError(
            "the rehearsal's knobs are not valid",
            where=str(file),
            detail=f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}",
            hint="rehearsal/README.md lists them",
            code="ORCH302",
        ) from error
    if project.nodes and "nodes" not in (settings or {}):
        knobs = knobs.model_copy(update={"nodes": NodeScenario()})
    return knobs
