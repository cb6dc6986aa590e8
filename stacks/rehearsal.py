"""A rehearsal: the same program and the same engine on a simulated cloud, with a state of its own.

`rehearse(project)` gives a project that every operation of this package takes as it takes a real one: its
state, work folder, passphrase and ledger lie under `.orch/rehearsal/`, and the engine it calls finds the
simulated provider on PATH and the account's file in its environment. A real project's operations call
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

from orch.providers.simulated.core import Cloud, Endpoint
from orch.providers.simulated.knobs import Knobs, Nodes
from orch.stacks.engine import Engine
from orch.stacks.errors import ProjectError
from orch.stacks.project import Project

if TYPE_CHECKING:
    import boto3

    from orch.spec.state import FleetState, NodeState

FOLDER = "rehearsal"
STATE_VARIABLE = "ORCH_REHEARSAL_STATE"
"""What tells the simulated provider which account it serves."""

SHIMS = {"pulumi-resource-aws": "orch.providers.simulated.plugin"}
"""Executables that a rehearsal puts before the real ones."""

HERE = ("local", "ssh")
"""Backends whose nodes are what they are, also in a rehearsal."""

NOBODY = "echo 'a simulated instance, and no local node stands for it' >&2; exit 1"
"""How an instance is reached that has no machine behind it: what leads to a real one is not even tried."""

MARK = "orch-rehearsal-shim"


@dataclass(frozen=True)
class RehearsalProject(Project):
    """A project whose state and clouds are those of a rehearsal."""

    @property
    def dot(self) -> Path:
        return self.root / ".orch" / FOLDER

    @property
    def account(self) -> Path:
        """The simulated AWS account."""
        return self.dot / "aws.db"

    @property
    def lock_file(self) -> Path:
        return self.dot / "orch.lock"

    @property
    def shims(self) -> Path:
        return self.dot / "bin"

    @property
    def rehearsal(self) -> bool:
        return True

    def session(self) -> Any:
        from orch.providers.simulated.boto import session

        return session(Cloud(self.account))

    def reached(self, state: FleetState) -> FleetState:
        """Instances that a local node stands for are reached there; others have no machine behind them."""
        if state.backend in HERE:
            return state
        cloud = Cloud(self.account)
        endpoints, machines = cloud.endpoints(), cloud.instances()
        # Fleets have networks of their own, so the same addresses; their nodes are told apart by the tag.
        found = {
            tag["Value"].rpartition("::")[2]: endpoint
            for each, endpoint in endpoints.items()
            if each in machines
            for tag in machines[each]["Tags"]
            if tag["Key"] == "orch:urn"
        }
        nodes = tuple(
            _here(node, found[node.name])
            if node.name in found
            else node.model_copy(update={"jump": (), "proxy_command": NOBODY})
            for node in state.nodes
        )
        return state.model_copy(update={"nodes": nodes, "simulated": True})

    def environment(self, engine: Engine) -> Mapping[str, str]:
        found = dict(super().environment(engine))
        return {
            **found,
            "PATH": os.pathsep.join([str(self.shims), found["PATH"]]),
            STATE_VARIABLE: str(self.account),
            # No provider is fetched for a rehearsal: what it needs is here or it fails.
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        }


@dataclass(frozen=True)
class Rehearsal:
    """A rehearsal of one project. `cloud` is its account: look into it, turn its knobs, change it behind the
    back."""

    project: RehearsalProject
    cloud: Cloud

    def session(self, region: str | None = None) -> boto3.Session:
        """A boto3 session whose clients speak to the simulated account."""
        from orch.providers.simulated.boto import session

        return session(self.cloud, region)

    def endpoints(self) -> dict[str, Endpoint]:
        """Instance id -> where the local node that stands for it is reached; see
        providers/simulated/README.md."""
        return self.cloud.endpoints()


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

    A new account takes its knobs from `.orch/rehearsal/knobs.yml` where there is one; `nodes` puts a local
    node behind each instance that carries SSH keys, unless that file says otherwise. Raises ProjectError.
    """
    values: dict[str, Any] = {field.name: getattr(project, field.name) for field in fields(Project)}
    folder = project.root / ".orch" / FOLDER
    values |= {
        "state_url": f"file://{folder / 'state'}",
        "secrets_provider": None,
        "ledger_url": f"sqlite:///{folder / 'ledger.db'}",
    }
    mine = RehearsalProject(**values)
    mine.prepare()
    _ignore(project.root / ".orch")
    _put_shims(mine)
    if not mine.account.is_file():
        Cloud.create(mine.account, seed=seed, knobs=_knobs(mine, nodes=nodes))
    cloud = Cloud(mine.account)
    if cloud.knobs.nodes is not None or cloud.endpoints():
        from orch.providers.simulated.nodes import repair

        repair(cloud)
    return Rehearsal(mine, cloud)


def forget(project: Project) -> None:
    """End a rehearsal: its nodes, its account and its state."""
    folder = project.root / ".orch" / FOLDER
    if (folder / "aws.db").is_file():
        from orch.providers.simulated.nodes import stop

        cloud = Cloud(folder / "aws.db")
        for instance in cloud.endpoints():
            stop(cloud, instance)
        cloud.store.close()
    shutil.rmtree(folder, ignore_errors=True)


def refuse_shims(environment: Mapping[str, str]) -> None:
    """For what is real: no simulated provider may answer. `environment` is what the engine will be given.

    Raises ProjectError.
    """
    if environment.get(STATE_VARIABLE) or os.environ.get(STATE_VARIABLE):
        raise ProjectError(
            "a rehearsal's simulated cloud is set in the environment",
            detail=f"{STATE_VARIABLE} is set, but this command is for the real cloud",
            hint=f"unset {STATE_VARIABLE}, or add --rehearse",
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
    project.shims.mkdir(exist_ok=True)
    for name, module in SHIMS.items():
        # The folder the engine starts it in must not lend it modules.
        code = f"import sys; sys.path = [p for p in sys.path if p]; from {module} import main; main()"
        text = (
            f'#!/bin/sh\n# {MARK}: simulated, for rehearsals only\nexec "{sys.executable}" -c "{code}" "$@"\n'
        )
        path = project.shims / name
        if not path.exists() or path.read_text() != text:
            staged = path.with_name(f".{name}.{os.getpid()}")
            staged.write_text(text)
            staged.chmod(0o755)
            staged.rename(path)


def _ignore(dot: Path) -> None:
    if not (dot / ".gitignore").exists():
        (dot / ".gitignore").write_text("*\n")


def _knobs(project: RehearsalProject, *, nodes: bool) -> Knobs:
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
            hint="providers/simulated/README.md lists them",
            code="ORCH302",
        ) from error
    if nodes and "nodes" not in (given or {}):
        knobs = knobs.model_copy(update={"nodes": Nodes()})
    return knobs
