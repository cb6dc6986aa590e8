"""The recorded state of a stack: its deployment, and the outputs in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.components.accounts import Account
from orch.components.request import DATA_TYPES, RecordedFileSystem
from orch.runner.private import private_folder, write_private
from orch.spec.install import UPGRADE
from orch.spec.state import SCHEMA, WATCHED, FleetHealth, FleetSpares
from orch.stacks.engine import install as engines
from orch.stacks.errors import Conflict, StackError
from orch.stacks.events.masking import UNKNOWN
from orch.stacks.project.passphrase import VARIABLES, is_lacking, is_unfinished, key_file, not_ours
from orch.stacks.project.project import Project, is_stack_name
from orch.stacks.project.roots import COMPRESSED, HOLD, is_checkpoint

if TYPE_CHECKING:
    from orch.stacks.engine.process import ProcessResult

StackExport = dict[str, Any]

REASONS = "reasons"
"""The output with the explanations of the last `up`."""

HEALTH = "health"
"""The output with how the health of a fleet's nodes is watched, where its file says so."""

SPARES = "spares"
"""The output with how many of a fleet's nodes are spares, where it has some."""


def deployment(project: Project, stack: str) -> StackExport | None:
    """The recorded state of a stack, or None when there is no such stack.

    Reads a file state directly. Exports any other, and one that a `pulumi` by hand has compressed, through
    the engine (0.5 s, and a network call for a remote one). Raises StackError.
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
                hint=f"`orch state repair {stack}` puts the latest copy of it in its place",
                code="ORCH351",
            ) from error
    result = _ask(project, stack, ["stack", "export", "--stack", stack], project.environment)
    if result.code:
        if "no stack named" in result.stderr or "not found" in result.stderr:
            return None
        raise StackError(
            f"the state of {stack} cannot be read", detail=result.stderr.strip()[-600:], code="ORCH351"
        )
    return json.loads(result.stdout).get("deployment") or {}


class StackState:
    """The recorded state of one stack: read at first use, and again after an engine call that may change it.

    An operation makes one for its fleet and passes it on: each read takes half a second and a network call
    for a remote state, and parses a whole file for a local one.
    """

    def __init__(self, project: Project, name: str) -> None:
        self.project, self.name = project, name
        self._read: tuple[StackExport | None] | None = None
        self.tags_read: Mapping[str, str] | None = None
        """The tags as they were last read, None since what may have changed them."""
        self.confirmed: set[str] = set()
        """Backends whose present account has what the stack records there; see `pulumi/accounts.py`."""
        self.accounts: dict[str, Account | None] = {}
        """Accounts in which the engine looks for its resources, of backends with several in one project."""
        self._siblings: dict[str, StackState] = {name: self}

    @property
    def recorded(self) -> StackExport | None:
        """The deployment, None when there is no such stack. Raises StackError."""
        if self._read is None:
            self._read = (deployment(self.project, self.name),)
        return self._read[0]

    def invalidate(self) -> None:
        """Drop the cached state: the next use reads it again."""
        self._read = None
        self.tags_read = None
        self.accounts = {}

    def sibling(self, name: str) -> StackState:
        """Another stack of the project, cached in the same way."""
        if name not in self._siblings:
            self._siblings[name] = other = StackState(self.project, name)
            other._siblings = self._siblings
        return self._siblings[name]

    @property
    def salt(self) -> str | None:
        """The salt that proves its passphrase; None when it has none, or a secrets provider."""
        return salt_of(self.recorded)

    @property
    def exists(self) -> bool:
        return self.recorded is not None

    @property
    def outputs(self) -> dict[str, Any]:
        """The stack's outputs; see `outputs` of this module. Raises Conflict, StackError."""
        return outputs(self.recorded)

    @property
    def resources(self) -> Sequence[dict[str, Any]]:
        return (self.recorded or {}).get("resources") or ()

    @property
    def nodes(self) -> tuple[dict[str, Any], ...]:
        """The fleet's existing nodes, as recorded."""
        return existing_nodes(self.recorded)

    @property
    def makers(self) -> dict[str, str]:
        """The fleet's existing nodes, each with the resource that made it."""
        return {node["name"]: node.get("made_by") or node["name"] for node in self.nodes}

    @property
    def node_names(self) -> frozenset[str]:
        """Names of the fleet's existing nodes, also of those that an interrupted `up` made."""
        pattern = re.compile(rf"{re.escape(self.name)}-\d+")
        made = (str(each["urn"]).rsplit("::", 1)[-1] for each in self.resources if each.get("id"))
        return frozenset({*self.makers, *filter(pattern.fullmatch, made)})

    @property
    def layouts(self) -> dict[str, str]:
        """The mark of the layout that each machine of a cloud was made with, by its node."""
        found: dict[str, str] = {}
        for each in self.resources:
            inputs = each.get("inputs") or {}
            # `tags` of GCP are a list, for its firewalls.
            marks = [one for one in (inputs.get("labels"), inputs.get("tags")) if isinstance(one, dict)]
            layout = next(
                (one[key] for one in marks for key in ("orch:layout", "orch-layout") if key in one), ""
            )
            if layout and each.get("id") and not each.get("delete"):
                found[str(each["urn"]).rsplit("::", 1)[-1]] = str(layout)
        return found

    @property
    def health(self) -> FleetHealth:
        """Return the health settings of the fleet; the default ones if only a newer orch can read them."""
        try:
            return FleetHealth.model_validate(self.outputs.get(HEALTH) or {})
        except ValueError:
            return WATCHED

    @property
    def spares(self) -> FleetSpares | None:
        """The fleet's spares; None where it has none, and where only a newer orch reads of them."""
        try:
            return FleetSpares.model_validate(self.outputs[SPARES]) if self.outputs.get(SPARES) else None
        except ValueError:
            return None

    @property
    def file_systems(self) -> tuple[RecordedFileSystem, ...]:
        """The file systems that were created with the fleet and are recorded."""
        from orch.components.file_systems import recorded

        if not any(each["type"] in DATA_TYPES for each in self.resources):
            return ()
        pins: dict[str, Any] = {**unfinished_pins(self.recorded), **(self.outputs.get("pins") or {})}
        return recorded(self.resources, pins)

    @property
    def hourly(self) -> float:
        """Price of the fleet as last brought up, in US dollars an hour; 0 when it is not up."""
        other = (self.outputs.get("fleet") or {}).get("beside_hourly") or 0.0
        return round(other + sum(node.get("price_hourly") or 0.0 for node in self.nodes), 6)


def in_plain_files(project: Project, stack: str) -> bool:
    """Return True if a stack is read from a local file, without the engine."""
    checkpoint = project.checkpoint(stack)
    return checkpoint is not None and not _is_compressed(checkpoint)


def _is_compressed(checkpoint: Path) -> bool:
    """Return True if a compressed file is the newest: the engine uses the file that was written last."""

    def modified_ns(file: Path) -> int:
        try:
            return file.stat().st_mtime_ns
        except FileNotFoundError:
            return -1

    return max(
        modified_ns(checkpoint.with_name(checkpoint.name + each)) for each in COMPRESSED
    ) > modified_ns(checkpoint)


def outputs(recorded: StackExport | None) -> dict[str, Any]:
    """The stack's outputs as recorded, with secrets still encrypted; {} when there are none. What a failed
    `up` could not tell is absent.

    Raises Conflict when they were written by a newer orch.
    """
    for resource in (recorded or {}).get("resources") or ():
        if resource["type"] == "pulumi:pulumi:Stack":
            told: dict[str, Any] = resource.get("outputs") or {}
            return refuse_newer(told)
    return {}


def known(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs without those that a failed `up` could not tell."""
    return {name: value for name, value in outputs.items() if value != UNKNOWN}


def refuse_newer(outputs: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs that are known.

    Raises Conflict when a newer orch wrote them: this one would misread or undo its work.
    """
    outputs = known(outputs)
    writer: dict[str, Any] = outputs.get("orch") or {}
    if int(writer.get("schema", 0)) > SCHEMA:
        raise Conflict(
            f"this fleet's state was written by a newer orch: {writer.get('version')}",
            detail=f"its schema is {int(writer['schema'])}, this orch knows up to {SCHEMA}",
            hint=UPGRADE,
            code="ORCH352",
        )
    return outputs


def stacks(project: Project) -> list[str]:
    """Names of all stacks of this project, sorted; without the one that holds the state."""
    return sorted(set(_all_stacks(project)) - {HOLD})


def _all_stacks(project: Project) -> Iterable[str]:
    if project.local_state is None:
        return _remote_stacks(project)
    folder = project.local_state / ".pulumi" / "stacks" / project.name
    names = (file.name for file in folder.iterdir()) if folder.is_dir() else ()
    return sorted({name.rpartition(".json")[0] for name in names if is_checkpoint(name)})


def projects(project: Project) -> list[str]:
    """Names of all projects that the state of this one has stacks of, sorted."""
    if project.local_state is not None:
        folder = project.local_state / ".pulumi" / "stacks"
        return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    names = (each["name"].split("/") for each in _listed(project, "--all"))
    return sorted({parts[-2] for parts in names if len(parts) > 1})


def existing_nodes(recorded: StackExport | None) -> tuple[dict[str, Any], ...]:
    """The fleet's nodes as recorded, without those that were deleted or could not be made.

    The stack's outputs have all nodes of the last plan; only existing ones have a resource.
    """
    fleet = outputs(recorded).get("fleet") or {}
    names = {resource["urn"].rsplit("::", 1)[-1] for resource in (recorded or {}).get("resources") or ()}
    return tuple(node for node in fleet.get("nodes") or () if (node.get("made_by") or node["name"]) in names)


def unfinished_pins(recorded: StackExport | None) -> dict[str, str]:
    """The pins of an interrupted `up`, as the fleet's component recorded them at its start; {} for none."""
    for resource in (recorded or {}).get("resources") or ():
        if resource["type"].startswith("orch:fleet:"):
            pins = (resource.get("outputs") or {}).get("pins") or {}
            return {str(key): str(value) for key, value in pins.items()}
    return {}


def secret_output(
    project: Project, stack: str, name: str, what: str, *words: str, of: str | None = None
) -> str:
    """A secret output of a stack, decrypted by the engine (half a second). `what` names it in the error, `of`
    whose it is: the fleet's by default.

    Raises StackError."""
    if project.keyless:
        raise StackError(
            f"{what} of {of or f'the fleet {stack}'} stays encrypted",
            where=project.state_url,
            detail="this plan is made without the key of the state (`--keyless`)",
            hint="leave out --keyless where the key may be used",
            code="ORCH354",
        )
    command = ["stack", "output", name, "--show-secrets", *words, "--stack", stack]
    result = _ask(project, stack, command, partial(environment_of, StackState(project, stack)))
    if result.code:
        summary = f"{what} of {of or f'the fleet {stack}'} cannot be decrypted"
        if is_lacking(result.stderr):
            raise not_ours(project, summary)
        raise StackError(
            summary,
            detail=result.stderr.strip()[-400:],
            hint="the passphrase or secrets provider of the state is needed",
            code="ORCH354",
        )
    return result.stdout


def _ask(
    project: Project,
    stack: str,
    words: list[str],
    environment: Callable[[engines.Engine], Mapping[str, str]],
) -> ProcessResult:
    """Run a command of the engine that changes nothing, in the folder of a stack. Raises EngineMissing."""
    from orch.stacks.engine.process import call  # late: a state in files is read without it

    engine = engines.require()
    return call(engine, words, folder=work_folder(project, stack), environment=environment(engine))


def work_folder(project: Project, stack: str) -> Path:
    """The engine's working folder for a stack, one each: the selection of a stack is state of its folder."""
    folder = private_folder(project.dot / "work" / stack)
    text = project_file(project.name, "../../config")  # an absolute path is taken as relative
    file = folder / "Pulumi.yaml"
    if not file.exists() or file.read_text() != text:
        write_private(file, text)  # another process's engine may be reading it
    return folder


def settings_file(project: Project, stack: str) -> Path:
    """Return the file of a stack's encrypted key, or of the salt of its passphrase."""
    return project.dot / "config" / f"Pulumi.{stack}.yaml"


def salt_of(recorded: StackExport | None) -> str | None:
    """The salt of a deployment's passphrase; None when it has none, or a secrets provider."""
    provider = (recorded or {}).get("secrets_providers") or {}
    salt = (provider.get("state") or {}).get("salt") if provider.get("type") == "passphrase" else None
    return str(salt) if salt else None


def environment_of(stack: StackState, engine: engines.Engine) -> Mapping[str, str]:
    """The engine's environment for a stack: while a rotation of the passphrase is not finished, with the
    passphrase that the stack's salt proves. Raises StackError."""
    project = stack.project
    variables = project.environment(engine)
    text, file = VARIABLES
    if file not in variables or text in variables or not is_unfinished(project):
        return variables
    own = None if stack.salt is None else key_file(project, stack.salt)
    return variables if own is None else {**variables, file: str(own)}


def match_settings(stack: StackState) -> None:
    """Bring the salt in the settings of a stack here to the one that its state has: another clone may have
    rotated the passphrase, or a call that did so was killed."""
    salt, file = stack.salt, settings_file(stack.project, stack.name)
    if salt is None or not file.exists():
        return
    text = file.read_text("utf-8")
    matched = re.sub(r"(?m)^encryptionsalt:.*$", lambda _: f"encryptionsalt: {salt}", text)
    if matched != text:
        write_private(file, matched)


def project_file(name: str, config_folder: str) -> str:
    """The text of a Pulumi.yaml for the same stacks: same project, same refresh option, same settings."""
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
    return [each["name"].rsplit("/", 1)[-1] for each in _listed(project)]


def _listed(project: Project, *words: str) -> list[dict[str, Any]]:
    result = _ask(project, "_list", ["stack", "ls", "--json", *words], project.environment)
    if result.code:
        raise StackError(
            "the state cannot be listed", where=project.state_url, detail=result.stderr.strip()[-400:]
        )
    return json.loads(result.stdout)
