"""What the engine recorded of a stack: its deployment, and the outputs in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orch.runner.private import private_folder, write_private
from orch.spec.state import SCHEMA
from orch.stacks.errors import Conflict, StackError
from orch.stacks.project import COMPRESSED, Project, is_stack_name
from orch.stacks.pulumi import install as engines
from orch.stacks.pulumi.process import call

StackExport = dict[str, Any]


def deployment(project: Project, stack: str) -> StackExport | None:
    """The recorded state of a stack, or None when there is no such stack.

    A file state is read as it lies; any other, and one that a `pulumi` by hand has compressed, is exported
    through the engine (0.5 s, and a network call for one elsewhere).
    """
    if not is_stack_name(stack):
        return None
    checkpoint = project.checkpoint(stack)
    if checkpoint is not None and in_plain_files(project, stack):
        try:
            return json.loads(checkpoint.read_text())["checkpoint"].get("latest") or {}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as error:
            raise StackError(
                f"the recorded state of {stack} cannot be read",
                where=str(checkpoint),
                detail=str(error),
                hint=f"the state before it is beside it, as {checkpoint.name}.bak",
                code="ORCH351",
            ) from error
    engine = engines.require()
    done = call(
        engine,
        ["stack", "export", "--stack", stack],
        folder=work_folder(project, stack),
        environment=project.environment(engine),
    )
    if done.code:
        if "no stack named" in done.stderr or "not found" in done.stderr:
            return None
        raise StackError(
            f"the state of {stack} cannot be read", detail=done.stderr.strip()[-600:], code="ORCH351"
        )
    return json.loads(done.stdout).get("deployment") or {}


class StackState:
    """What the engine has recorded of one stack: read when it is first asked for, and again after a call of
    the engine that may have changed it.

    An operation has one of its fleet and hands it along: each reading is half a second and a network call
    where the state is elsewhere, and a whole file to parse where it is here.
    """

    def __init__(self, project: Project, name: str) -> None:
        self.project, self.name = project, name
        self._read: tuple[StackExport | None] | None = None
        self._beside: dict[str, StackState] = {name: self}

    @property
    def recorded(self) -> StackExport | None:
        """The deployment, None when there is no such stack. Raises StackError."""
        if self._read is None:
            self._read = (deployment(self.project, self.name),)
        return self._read[0]

    def changed(self) -> None:
        """It is read anew when it is next asked for."""
        self._read = None

    def beside(self, name: str) -> StackState:
        """Another stack of the project, which is read once as well."""
        if name not in self._beside:
            self._beside[name] = other = StackState(self.project, name)
            other._beside = self._beside
        return self._beside[name]

    @property
    def exists(self) -> bool:
        return self.recorded is not None

    @property
    def outputs(self) -> dict[str, Any]:
        """As `outputs` of this module."""
        return outputs(self.recorded)

    @property
    def resources(self) -> Sequence[dict[str, Any]]:
        return (self.recorded or {}).get("resources") or ()

    @property
    def nodes(self) -> tuple[dict[str, Any], ...]:
        """The fleet's nodes that are there."""
        return nodes_there(self.recorded)

    @property
    def makers(self) -> dict[str, str]:
        """The fleet's nodes that are there, each with the resource that made it."""
        return {node["name"]: node.get("made_by") or node["name"] for node in self.nodes}

    @property
    def hourly(self) -> float:
        """What the fleet costs an hour as it was last brought up, in US dollars; 0 when it is not up."""
        beside = (self.outputs.get("fleet") or {}).get("beside_hourly") or 0.0
        return round(beside + sum(node.get("price_hourly") or 0.0 for node in self.nodes), 6)


def in_plain_files(project: Project, stack: str) -> bool:
    """Whether a stack is read from a file here, without the engine."""
    checkpoint = project.checkpoint(stack)
    return checkpoint is not None and not _is_compressed(checkpoint)


def _is_compressed(checkpoint: Path) -> bool:
    """Whether the engine takes another file for the state: of several the one that was written last."""

    def written(file: Path) -> int:
        try:
            return file.stat().st_mtime_ns
        except FileNotFoundError:
            return -1

    return max(written(checkpoint.with_name(checkpoint.name + each)) for each in COMPRESSED) > written(
        checkpoint
    )


def outputs(recorded: StackExport | None) -> dict[str, Any]:
    """The stack's outputs as recorded; secrets are still encrypted in it. {} when there are none.

    Raises Conflict when they were written by a newer orch.
    """
    for resource in (recorded or {}).get("resources") or ():
        if resource["type"] == "pulumi:pulumi:Stack":
            return refuse_newer(resource.get("outputs") or {})
    return {}


def refuse_newer(found: dict[str, Any]) -> dict[str, Any]:
    """The same outputs.

    Raises Conflict when a newer orch wrote them: this one would misread or undo its work.
    """
    mark: dict[str, Any] = found.get("orch") or {}
    if int(mark.get("schema", 0)) > SCHEMA:
        raise Conflict(
            f"this fleet's state was written by a newer orch: {mark.get('version')}",
            detail=f"its schema is {int(mark['schema'])}, this orch knows up to {SCHEMA}",
            hint="upgrade orch: `pip install -U orch-fleet`",
            code="ORCH352",
        )
    return found


def stacks(project: Project) -> list[str]:
    """Names of all stacks of this project, sorted."""
    if project.local_state is None:
        return sorted(_remote_stacks(project))
    folder = project.local_state / ".pulumi" / "stacks" / project.name
    endings = tuple(f".json{compressed}" for compressed in ("", *COMPRESSED))
    found = (file.name for file in folder.iterdir()) if folder.is_dir() else ()
    return sorted({name.rpartition(".json")[0] for name in found if name.endswith(endings)})


def nodes_there(recorded: StackExport | None) -> tuple[dict[str, Any], ...]:
    """The fleet's nodes as recorded, without those that were deleted or could not be made.

    All of the last plan's are in the stack's outputs.
    """
    fleet = outputs(recorded).get("fleet") or {}
    there = {resource["urn"].rsplit("::", 1)[-1] for resource in (recorded or {}).get("resources") or ()}
    return tuple(node for node in fleet.get("nodes") or () if (node.get("made_by") or node["name"]) in there)


def begun(recorded: StackExport | None) -> dict[str, str]:
    """What an `up` that did not end had decided, as the fleet's component recorded it when it began."""
    for resource in (recorded or {}).get("resources") or ():
        if resource["type"].startswith("orch:fleet:"):
            pins = (resource.get("outputs") or {}).get("pins") or {}
            return {str(key): str(value) for key, value in pins.items()}
    return {}


def secret_output(project: Project, stack: str, name: str, what: str, *words: str) -> str:
    """A secret output of a stack, decrypted by the engine (half a second). `what` it is, for the error.

    Raises StackError."""
    engine = engines.require()
    done = call(
        engine,
        ["stack", "output", name, "--show-secrets", *words, "--stack", stack],
        folder=work_folder(project, stack),
        environment=project.environment(engine),
    )
    if done.code:
        raise StackError(
            f"{what} of the fleet {stack} cannot be decrypted",
            detail=done.stderr.strip()[-400:],
            hint="the passphrase or secrets provider of the state is needed",
            code="ORCH354",
        )
    return done.stdout


def work_folder(project: Project, stack: str) -> Path:
    """Where the engine works for a stack. One folder each: selecting a stack changes its folder's state."""
    folder = private_folder(project.dot / "work" / stack)
    text = project_file(project.name, "../../config")  # an absolute path is taken as relative
    file = folder / "Pulumi.yaml"
    if not file.exists() or file.read_text() != text:
        write_private(file, text)  # another process's engine may be reading it
    return folder


def project_file(name: str, config_folder: str) -> str:
    """A Pulumi.yaml that leads to the same stacks: same project, same refresh option, same stack settings."""
    return (
        f"name: {name}\n"
        "runtime: python\n"
        "description: GPU fleets, compiled from YAML by orch\n"
        f"stackConfigDir: {config_folder}\n"
        "options:\n"
        "  # without it `up` would not see what changed behind its back\n"
        "  refresh: always\n"
    )


def _remote_stacks(project: Project) -> list[str]:
    engine = engines.require()
    done = call(
        engine,
        ["stack", "ls", "--json"],
        folder=work_folder(project, "_list"),
        environment=project.environment(engine),
    )
    if done.code:
        raise StackError(
            "the state cannot be listed", where=project.state_url, detail=done.stderr.strip()[-400:]
        )
    return [stack["name"].rsplit("/", 1)[-1] for stack in json.loads(done.stdout)]
