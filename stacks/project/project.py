"""The project of a file: its root, its `.orch` folder, and the engine's environment for it."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orch.runner.hosts.registration import FORCED
from orch.runner.private import private_folder, stage_file, tighten, write_private
from orch.runner.processes import here
from orch.stacks.engine.install import Engine, home, search_path
from orch.stacks.errors import ProjectError
from orch.stacks.project.passphrase import is_given as passphrase_is_given
from orch.stacks.project.passphrase import make as make_passphrase
from orch.stacks.project.roots import recorded_stacks, root_of
from orch.stacks.project.trust import owner_of, require_trusted, require_trusted_data

if TYPE_CHECKING:
    from orch.components.accounts import Account
    from orch.policies.settings import Settings as PolicySettings
    from orch.spec.models.backends.base import BackendSettings
    from orch.spec.models.project import Policy, ProjectSettings
    from orch.spec.state import FleetState, NodeState


@dataclass(frozen=True)
class Project:
    """A folder of fleets and tasks. `state_url` is a Pulumi backend URL, absolute when it is file://."""

    root: Path
    name: str
    state_url: str
    secrets_provider: str | None
    ledger_url: str
    default_image: str | None
    backends: tuple[BackendSettings, ...] = ()
    tags: dict[str, str] = field(default_factory=dict[str, str])
    # Image of a job -> the one that is used in its place.
    images: dict[str, str] = field(default_factory=dict[str, str])
    nodes_for_runs: Literal["ask", "always", "never"] = "ask"
    # Levels, parameters and exemptions of policies by name, and folders of packs.
    policy_levels: Mapping[str, Policy] = field(default_factory=dict[str, Any])
    policy_packs: tuple[str, ...] = ()
    # How long a saved plan can be applied, in seconds.
    saved_plan_s: int = 24 * 3600
    # Existing hosts may leave a fleet although jobs run on them.
    force: bool = False
    # Resources may leave the record although all of a backend's are gone at once.
    forget: bool = False
    # Who changes stacks, as leases name them.
    owner: str = field(default_factory=here)
    # Plans are made without the key of the state.
    keyless: bool = False
    # What the engine finds in its environment beside what every call has.
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def policies(self) -> PolicySettings:
        """The rules for its plans and tasks, as orch.yml sets them."""
        from orch.policies.settings import Settings

        return Settings(self.policy_levels, self.policy_packs)

    @cached_property
    def accounts(self) -> dict[str, tuple[float, Account | None]]:
        """The accounts that backends act in, each with when it was asked; see `pulumi/accounts.py`."""
        return {}

    @property
    def dot(self) -> Path:
        """`.orch`: state, keys, logs and the ledger of this project on this machine."""
        return self.root / ".orch"

    @property
    def rehearsal_folder(self) -> Path:
        """The folder with the files of a rehearsal of this project."""
        return self.root / ".orch" / "rehearsal"

    @property
    def local_state(self) -> Path | None:
        """The folder of a file:// state, or None when the state is elsewhere."""
        return Path(self.state_url.removeprefix("file://")) if self.state_url.startswith("file://") else None

    @property
    def local_ledger(self) -> Path | None:
        """The file of a SQLite ledger, or None when the ledger is elsewhere."""
        kind, _, path = self.ledger_url.partition(":///")
        return Path(path.partition("?")[0]) if kind == "sqlite" else None

    @property
    def shares_files(self) -> bool:
        """Return True if the state is files outside `.orch`, where the caller's umask decides who reads
        them."""
        return self.local_state is not None and not self.local_state.is_relative_to(self.dot)

    @property
    def knows_all_runs(self) -> bool:
        """Return True if the ledger has the runs of everybody who shares the state.

        A state on a server is shared, and a SQLite ledger is of this machine alone. Where the state is files
        outside `.orch`, whoever shares them has to share the ledger too.
        """
        ledger = self.local_ledger
        if ledger is None:
            return True
        if self.local_state is None:
            return False
        return not (self.shares_files and ledger.is_relative_to(self.dot))

    @property
    def lock_file(self) -> Path:
        """`orch.lock`, which belongs into version control."""
        return self.root / "orch.lock"

    @property
    def shortages(self) -> Path:
        """The places that had no room a short while ago, as all projects of this user found."""
        from orch.catalog.load import user_folder
        from orch.catalog.shortages import FILE

        return user_folder() / FILE

    @property
    def rehearsal(self) -> bool:
        """Return True if its clouds are simulated."""
        return False

    def session(self, backend: str) -> Any:
        """The session for requests to a backend's cloud; None for the user's own account."""
        return None

    def may_hold_more(self, backend: str) -> bool:
        """Return True if a backend's cloud may hold what this project's state does not record."""
        return True

    def with_routes(self, state: FleetState) -> FleetState:
        """The fleet with the routes to its nodes from this machine; a rehearsal leads to its containers."""
        return state

    def machines(self, state: FleetState) -> tuple[NodeState, ...]:
        """The fleet's nodes that have a machine; in a rehearsal some have none."""
        return state.nodes

    def checkpoint(self, stack: str) -> Path | None:
        """The file that holds a stack's state, or None when the state is elsewhere."""
        state = self.local_state
        return state / ".pulumi" / "stacks" / self.name / f"{stack}.json" if state else None

    def prepare(self) -> None:
        """Create `.orch` and what the engine needs in it. Raises ProjectError when it cannot be written."""
        try:
            if (self.root / ".orch").is_dir():
                tighten(self.root / ".orch")
            for folder in (self.dot, self.dot / "config", self.dot / "work"):
                private_folder(folder)
            name_file = self.dot / "project"
            if not name_file.exists():
                write_private(name_file, f"{self.name}\n")
            ignore = self.dot / ".gitignore"
            if not ignore.exists():
                write_private(ignore, "*\n")
            if self.local_state:
                if self.shares_files:
                    self.local_state.mkdir(parents=True, exist_ok=True)
                else:
                    private_folder(self.local_state)
                if self.secrets_provider is None:
                    make_passphrase(self.passphrase_file, self.keeper_file)
            stage_file(self.dot / "probe", "").unlink(missing_ok=True)
        except OSError as error:
            place = Path(error.filename or self.dot)
            raise ProjectError(
                "cannot write the project's state folder",
                where=str(self.dot if place.is_relative_to(self.dot) else place),
                detail=error.strerror or str(error),
                hint="make it writable for this user, or give the state another place: `state:` in orch.yml",
                code="ORCH302",
            ) from error

    @property
    def passphrase_file(self) -> Path:
        return self.dot / "passphrase"

    @property
    def keeper_file(self) -> Path | None:
        """The file in a state that others use which tells who has its passphrase; None for other states."""
        if self.local_state is None or not self.shares_files:
            return None
        return self.local_state / f"passphrase-of-{self.name}.json"

    @property
    def _engine_url(self) -> str:
        """The state's URL for the engine.

        `metadata=skip`: a file of attributes beside each state file costs a digest of the whole state for
        each resource, an eighth of the time to write hundreds of nodes (measured), and nobody reads it.
        """
        plain = self.local_state is not None and "?" not in self.state_url
        return f"{self.state_url}?metadata=skip" if plain else self.state_url

    def environment(self, engine: Engine) -> Mapping[str, str]:
        """Environment variables with which a `pulumi` sees the same stacks as orch."""
        variables = {
            "PATH": search_path(engine),
            "PULUMI_BACKEND_URL": self._engine_url,
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            **({FORCED: "1"} if self.force else {}),
            **self.variables,
        }
        if self.local_state:
            variables["PULUMI_HOME"] = str(home().parent / "pulumi-home")
            # orch reads its files uncompressed, whatever the caller's environment says.
            variables |= {f"PULUMI_DIY_BACKEND_{kind}": "false" for kind in ("GZIP", "ZSTD")}
            if self.passphrase_file.exists() and "PULUMI_CONFIG_PASSPHRASE" not in os.environ:
                variables["PULUMI_CONFIG_PASSPHRASE_FILE"] = str(self.passphrase_file)
        return variables


def find(path: Path | str | None = None) -> Project:
    """The project of a file or folder (default: here).

    `roots.py` says what its root is. Raises ProjectError where two folders claim to be that, for an invalid
    orch.yml, and for another user's project.
    """
    start = Path.cwd() if path is None else Path(path).expanduser()
    try:
        start.is_dir()
    except OSError as error:  # a name that no file can have
        raise ProjectError(
            "this folder cannot be looked at", where=str(start), detail=error.strerror or str(error)
        ) from error
    return project_in(root_of(str(start)))


def project_in(root: Path) -> Project:
    """The project whose root a folder is. Raises as `find`."""
    require_trusted(root)
    _require_access(root / ".orch")
    project = _load(root)
    _require_own_data(project)
    return project


def _require_own_data(project: Project) -> None:
    """Raises ProjectError for state or ledger files that another user could have written."""
    if (state := project.local_state) is not None:
        stacks = state / ".pulumi" / "stacks"
        own = stacks / project.name
        files: list[Path] = []
        with suppress(OSError):  # missing or unreadable: the first reader reports it
            files += own.iterdir()
        require_trusted_data(project.root, state, (state / ".pulumi", stacks, own, *files), "state")
    if (ledger := project.local_ledger) is not None:
        require_trusted_data(project.root, ledger.parent, (ledger,), "ledger")


def _require_access(dot: Path) -> None:
    """Raises ProjectError for an `.orch` that this user may not enter, as after `sudo orch`."""
    if not dot.is_dir() or os.access(dot, os.R_OK | os.W_OK | os.X_OK):
        return
    raise ProjectError(
        "the project's state folder is closed to you",
        where=str(dot),
        detail=f"it is its owner's alone, {owner_of(dot)}",
        hint=f"call orch as that user, or make it yours: `sudo chown -R $(id -u) {shlex.quote(str(dot))}`",
        code="ORCH302",
    )


def _load(root: Path) -> Project:
    from orch.spec.models.project import ProjectSettings

    settings = ProjectSettings.model_validate({})
    file = root / "orch.yml"
    if file.is_dir():
        raise ProjectError(
            "orch.yml is a folder",
            where=str(file),
            detail="the settings of a project are a file of that name",
            hint="rename the folder",
        )
    if os.path.lexists(file):
        from orch.policies.settings import require_valid
        from orch.spec.loader.load import load_paths

        documents = load_paths([file], launch=("project",)).require().of(ProjectSettings)
        settings = documents[0][1] if documents else settings
        require_valid(document for document, _ in documents[:1])
    state_url = settings.state or f"file://{root / '.orch' / 'state'}"
    if state_url.startswith("file://") and not state_url.startswith("file:///"):
        state_url = f"file://{(root / state_url.removeprefix('file://')).resolve()}"
    has_key = settings.secrets_provider is not None or passphrase_is_given()
    if not state_url.startswith("file://") and not has_key:
        raise ProjectError(
            "a state outside this machine needs a key for its secrets",
            where=str(root / "orch.yml"),
            detail=f"`state: {state_url}` is shared, and a passphrase made here would be lost to the others",
            hint="set `secrets_provider:` in orch.yml, or PULUMI_CONFIG_PASSPHRASE",
            code="ORCH301",
        )
    return Project(
        root=root,
        name=settings.project or _recorded_name(root) or project_name(_chosen_name(settings) or root),
        state_url=state_url,
        secrets_provider=settings.secrets_provider,
        ledger_url=_ledger_url(root, settings.ledger or "sqlite:///.orch/ledger.db"),
        default_image=settings.defaults.image,
        backends=settings.configured,
        tags=dict(settings.tags),
        images=dict(settings.images),
        nodes_for_runs=settings.nodes_for_runs,
        policy_levels=settings.policies,
        policy_packs=settings.policy_packs,
        saved_plan_s=settings.saved_plan_duration_s,
    )


def _ledger_url(root: Path, written: str) -> str:
    """The URL of a ledger. The path of a SQLite file counts from the root, wherever a command is called."""
    kind, _, path = written.partition(":///")
    if kind != "sqlite" or not path or path.startswith(("/", "file:")):
        return written
    return f"sqlite:///{root / path}"


def _recorded_name(root: Path) -> str | None:
    """The name under which the state began: a renamed folder keeps its fleets, and so does one whose orch.yml
    gave it another name and is gone."""
    try:
        name = (root / ".orch" / "project").read_text().strip() or None
    except OSError:
        name = None
    up = recorded_stacks(root / ".orch")
    return next(iter(up)) if len(up) == 1 else name


def _chosen_name(settings: ProjectSettings) -> Path | None:
    """The name of the chosen one of `projects`; None when there is none."""
    return Path(settings.chosen.name) if settings.chosen is not None else None


def project_name(root: Path) -> str:
    """A name Pulumi accepts, from the folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("-.") or "orch"


def this_host() -> str:
    return socket.gethostname()


def is_stack_name(text: str) -> bool:
    """Return True if a text can name a stack of orch: a fleet, or networks that fleets share."""
    return re.fullmatch(r"[a-z][a-z0-9.-]{0,99}", text) is not None


def ledger_scope(project: Project) -> str:
    """Return the identity of a project's state among others of its name in a ledger that they share."""
    if project.local_ledger is not None and project.local_ledger.is_relative_to(project.dot):
        return ""
    if project.local_state is not None and project.local_state.is_relative_to(project.dot):
        return scope_of(project)
    return hashlib.sha256(f"{project.name} {project.state_url}".encode()).hexdigest()[:6]


def scope_of(project: Project) -> str:
    """Six hex digits that distinguish this project's resources from those of a project of the same name: in
    another folder, on another machine, or with another state. Links to a folder change nothing.

    The first `up` records them.
    """
    try:
        machine = Path("/etc/machine-id").read_text("ascii").strip()
    except OSError:
        machine = ""
    root, state = os.path.realpath(project.root), project.state_url
    if project.local_state is not None:
        state = f"file://{os.path.realpath(project.local_state)}"
    words = f"{socket.gethostname()} {machine} {root} {state}"
    return hashlib.sha256(words.encode()).hexdigest()[:6]
