"""A rehearsal: the same program and the same engine on simulated clouds, with a state of its own.

`rehearse(project)` gives a project that every operation of this package takes as it takes a real one: its
state, work folder, passphrase and ledger lie under `.orch/rehearsal/`, and the engine it calls finds the
simulated providers on PATH and the accounts' files in its environment. A real project's operations call
`refuse_shims` first.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from orch.catalog.sdks import require_sdk
from orch.rehearsal.account import Endpoint, SimulatedAccount
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.scenario import Knobs, Nodes
from orch.runner.private import private_folder, stage_beside, write_private
from orch.stacks.errors import ProjectError
from orch.stacks.project import Project
from orch.stacks.pulumi.install import Engine

if TYPE_CHECKING:
    import boto3

    from orch.rehearsal.gcp.account import GcpCloud
    from orch.spec.state import FleetState, NodeState

STATE_VARIABLE = "ORCH_REHEARSAL_STATE"
"""What tells the simulated AWS provider which account it serves."""

VARIABLES = {"aws": STATE_VARIABLE, "gcp": "ORCH_REHEARSAL_GCP"}
"""Cloud -> what tells its simulated provider which account it serves."""

SHIMS = {
    "pulumi-resource-aws": "orch.rehearsal.aws.plugin",
    "pulumi-resource-gcp": "orch.rehearsal.gcp.plugin",
}
"""Executables that a rehearsal puts before the real ones."""

GCP_PROJECT = "orch-rehearsal"
"""The project of the simulated account where orch.yml names none."""

HERE = ("local", "ssh")
"""Backends whose nodes are what they are, also in a rehearsal."""

NOBODY = "echo 'a simulated instance, and no local node stands for it' >&2; exit 1"
"""How an instance is reached that has no machine behind it: what leads to a real one is not even tried."""

MARK = "orch-rehearsal-shim"


@dataclass(frozen=True)
class RehearsalProject(Project):
    """A project whose state and clouds are those of a rehearsal.

    `seed` and `nodes` are of accounts that are made from now on; `nodes` puts a local node behind each
    instance that carries SSH keys, unless the knobs file says otherwise.
    """

    seed: str = "0"
    nodes: bool = True

    @property
    def dot(self) -> Path:
        return self.rehearsed

    @property
    def account(self) -> Path:
        """The simulated AWS account."""
        return self.account_of("aws")

    def account_of(self, cloud: str) -> Path:
        return self.dot / f"{cloud}.db"

    def cloud(self, name: str) -> SimulatedAccount:
        """The account of a cloud, made when it is first needed. Raises ProjectError for its knobs."""
        path = self.account_of(name)
        if not path.is_file():
            _account(name).create(path, seed=self.seed, knobs=_knobs(self)).store.close()
        return _account(name)(path)

    @property
    def lock_file(self) -> Path:
        return self.dot / "orch.lock"

    @property
    def shims(self) -> Path:
        return self.dot / "bin"

    @property
    def rehearsal(self) -> bool:
        return True

    def session(self, backend: str) -> Any:
        if backend == "gcp":
            from orch.rehearsal.gcp import client_hook
            from orch.rehearsal.gcp.account import GcpCloud
            from orch.spec.models.backends import GcpSettings

            settings = next((each for each in self.backends if isinstance(each, GcpSettings)), None)
            cloud = self.cloud("gcp")
            assert isinstance(cloud, GcpCloud)
            return client_hook.session(cloud, (settings and settings.project_id) or GCP_PROJECT)
        if backend == "aws":
            from orch.rehearsal.aws.client_hook import session

            cloud = self.cloud("aws")
            assert isinstance(cloud, Cloud)
            require_sdk("boto3", "AWS")
            return session(cloud)
        return None

    def reached(self, state: FleetState) -> FleetState:
        """Instances that a local node stands for are reached there; others have no machine behind them."""
        if state.backend in HERE:
            return state
        find = _gcp_endpoints if state.backend == "gcp" else _aws_endpoints
        found = find(self.cloud(state.backend), state)
        nodes = tuple(
            _here(node, found[node.name])
            if node.name in found
            else node.model_copy(update={"jump": (), "proxy_command": NOBODY})
            for node in state.nodes
        )
        return state.model_copy(update={"nodes": nodes, "simulated": True})

    def machines(self, state: FleetState) -> tuple[NodeState, ...]:
        return tuple(node for node in state.nodes if node.proxy_command != NOBODY)

    def environment(self, engine: Engine) -> Mapping[str, str]:
        found = dict(super().environment(engine))
        return {
            **found,
            "PATH": os.pathsep.join([str(self.shims), found["PATH"]]),
            **{variable: str(self.account_of(cloud)) for cloud, variable in VARIABLES.items()},
            # No provider is fetched for a rehearsal: what it needs is here or it fails.
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        }


@dataclass(frozen=True)
class Rehearsal:
    """A rehearsal of one project."""

    project: RehearsalProject

    @property
    def cloud(self) -> Cloud:
        """Its AWS account: look into it, turn its knobs, change it behind the back."""
        found = self.project.cloud("aws")
        assert isinstance(found, Cloud)
        return found

    @property
    def gcp(self) -> GcpCloud:
        """Its GCP account."""
        from orch.rehearsal.gcp.account import GcpCloud

        found = self.project.cloud("gcp")
        assert isinstance(found, GcpCloud)
        return found

    def session(self, region: str | None = None) -> boto3.Session:
        """A boto3 session whose clients speak to the simulated AWS account."""
        from orch.rehearsal.aws.client_hook import session

        return session(self.cloud, region)

    def endpoints(self) -> dict[str, Endpoint]:
        """Instance id -> where the local node that stands for it is reached; see
        rehearsal/README.md."""
        return self.cloud.endpoints()


def _account(cloud: str) -> type[SimulatedAccount]:
    if cloud == "gcp":
        from orch.rehearsal.gcp.account import GcpCloud

        return GcpCloud
    return Cloud


def _aws_endpoints(cloud: SimulatedAccount, state: FleetState) -> dict[str, Endpoint]:
    """Node -> where the local node is that stands for it.

    Fleets have networks of their own, so the same addresses; their nodes are told apart by the tag.
    """
    machines = cloud.instances()
    return {
        tag["Value"].rpartition("::")[2]: endpoint
        for each, endpoint in cloud.endpoints().items()
        if each in machines
        for tag in machines[each]["Tags"]
        if tag["Key"] == "orch:urn"
    }


def _gcp_endpoints(cloud: SimulatedAccount, state: FleetState) -> dict[str, Endpoint]:
    """The same: by the fleet's label, and the address, which also members of a group have."""
    machines, names = cloud.instances(), {node.internal_ip: node.name for node in state.nodes}
    return {
        names[address]: endpoint
        for each, endpoint in cloud.endpoints().items()
        if each in machines
        and machines[each].get("labels", {}).get("orch-fleet") == state.name
        and (address := machines[each]["networkInterfaces"][0].get("networkIP")) in names
    }


def _here(node: NodeState, here: Endpoint) -> NodeState:
    """A node as the local node is reached that stands for it."""
    return node.model_copy(
        update={
            "address": here.address,
            "port": here.port,
            "user": here.user,
            "host_key": here.host_key,
            "jump": (),
            "proxy_command": None,
            "internal_ip": here.internal_ip,
            # Those of the instance are more than this machine has.
            "cpus": None,
            "memory_mib": None,
        }
    )


def rehearse(project: Project, *, nodes: bool = True, seed: str = "0") -> Rehearsal:
    """The rehearsal of a project, begun at the first call.

    A new account takes its knobs from `.orch/rehearsal/knobs.yml` where there is one. Raises ProjectError.
    """
    values: dict[str, Any] = {field.name: getattr(project, field.name) for field in fields(Project)}
    folder = project.rehearsed
    values |= {
        "state_url": f"file://{folder / 'state'}",
        "secrets_provider": None,
        "ledger_url": f"sqlite:///{folder / 'ledger.db'}",
    }
    mine = RehearsalProject(**values, seed=seed, nodes=nodes)
    mine.prepare()
    _ignore(project.root / ".orch")
    _put_shims(mine)
    _knobs(mine)
    for name in VARIABLES:
        if not mine.account_of(name).is_file():
            continue
        cloud = mine.cloud(name)
        if cloud.knobs.nodes is not None or cloud.endpoints():
            from orch.rehearsal.nodes import repair

            repair(cloud)
    return Rehearsal(mine)


def forget(project: Project) -> None:
    """End a rehearsal: its nodes, its accounts and its state."""
    folder = project.rehearsed
    for name in VARIABLES:
        if (folder / f"{name}.db").is_file():
            from orch.rehearsal.nodes import stop

            cloud = _account(name)(folder / f"{name}.db")
            for instance in cloud.endpoints():
                stop(cloud, instance)
            cloud.store.close()
    shutil.rmtree(folder, ignore_errors=True)


def refuse_shims(environment: Mapping[str, str]) -> None:
    """For what is real: no simulated provider may answer. `environment` is what the engine will be given.

    Raises ProjectError.
    """
    for variable in VARIABLES.values():
        if environment.get(variable) or os.environ.get(variable):
            raise ProjectError(
                "a rehearsal's simulated cloud is set in the environment",
                detail=f"{variable} is set, but this command is for the real cloud",
                hint=f"unset {variable}, or add --rehearse",
                code="ORCH302",
            )
    for name in SHIMS:
        found = shutil.which(name, path=environment.get("PATH") or os.environ.get("PATH"))
        if found and _is_shim(Path(found)):
            raise ProjectError(
                "a rehearsal's simulated provider is on PATH",
                where=found,
                detail=f"{name} would answer in the place of the real cloud, and nothing would be created",
                hint="remove its folder from PATH, or add --rehearse",
                code="ORCH302",
            )


def _is_shim(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(512)
    except OSError:
        return False


def _put_shims(project: RehearsalProject) -> None:
    private_folder(project.shims)
    for name, module in SHIMS.items():
        # The folder the engine starts it in must not lend it modules.
        code = f"import sys; sys.path = [p for p in sys.path if p]; from {module} import main; main()"
        text = (
            f'#!/bin/sh\n# {MARK}: simulated, for rehearsals only\nexec "{sys.executable}" -c "{code}" "$@"\n'
        )
        path = project.shims / name
        if not path.exists() or path.read_text() != text:
            staged = stage_beside(path, text)
            staged.chmod(0o700)
            staged.rename(path)


def _ignore(dot: Path) -> None:
    if not (dot / ".gitignore").exists():
        write_private(dot / ".gitignore", "*\n")


def _knobs(project: RehearsalProject) -> Knobs:
    file = project.dot / "knobs.yml"
    given = yaml.safe_load(file.read_text()) if file.is_file() else None
    try:
        knobs = Knobs.model_validate(given or {})
    except ValidationError as error:
        first = error.errors()[0]
        raise ProjectError(
            "the rehearsal's knobs are not valid",
            where=str(file),
            detail=f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}",
            hint="rehearsal/README.md lists them",
            code="ORCH302",
        ) from error
    if project.nodes and "nodes" not in (given or {}):
        knobs = knobs.model_copy(update={"nodes": Nodes()})
    return knobs
