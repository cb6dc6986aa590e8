"""The folder of a run on this machine, `.orch/runs/RUN/`: its logs, and its secrets until it has started.

Only its owner may read it (0700, 0600).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orch.runner.errors import LedgerUnusable, RunFailed
from orch.runner.ledger.records import ArrayKey
from orch.runner.plan.run_names import RunName
from orch.runner.private import private_folder, stage_file, write_private

_NUMBER = "number"
_ENVIRONMENT = "environment.json"
_KEYS = "keys.json"
# Where earlier versions kept what the task took along.
_FILES = "files.tar"
_REGISTRY = "registry.json"
_LAUNCH = "launch.json"
# That of all members of an array, in the array's own folder.
_ARRAY = "array.json"
_ENTRY = "ssh"


@dataclass(frozen=True)
class SshKeyPair:
    """An Ed25519 pair in OpenSSH's forms."""

    private: str
    public: str


@dataclass(frozen=True)
class RunKeys:
    """The keys of logins between the ranks of a run: one client key, one host key per rank."""

    client: SshKeyPair
    hosts: tuple[SshKeyPair, ...]


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run. `number` tells a run from an earlier one of the same name.

    Logs and outputs are those of `attempt`: of the first one they lie in the folder itself, of attempt N in
    its `attempts/N`. `array`: the folder of the array that the run is a member of, which has what attempts
    are made from; an array's own is a `RunFolder` too, of the array's name and number.
    """

    path: Path
    number: int
    attempt: int = 0
    array: Path | None = None

    def of_attempt(self, attempt: int) -> RunFolder:
        """The same folder, for another attempt of the run."""
        return replace(self, attempt=attempt)

    @property
    def logs(self) -> Path:
        return self._results / "logs"

    @property
    def outputs(self) -> Path:
        """What was collected of its ranks: a folder for each."""
        return self._results / "outputs"

    @property
    def _results(self) -> Path:
        return self.path / "attempts" / str(self.attempt) if self.attempt else self.path

    def log(self, rank: int) -> Path:
        """A rank's log: lines of `TIME TEXT`."""
        return self.logs / f"{rank}.log"

    def write_environments(self, environments: Sequence[dict[str, str]]) -> None:
        """Keep the environment of each rank. Each text stands once: all ranks of a run name all its nodes."""
        numbers: dict[str, int] = {}
        ranks = [
            {name: numbers.setdefault(text, len(numbers)) for name, text in each.items()}
            for each in environments
        ]
        write_private(self.path / _ENVIRONMENT, json.dumps({"texts": list(numbers), "ranks": ranks}))

    def environments(self) -> tuple[dict[str, str], ...]:
        """The environment of each rank, with references to secrets as they are written.

        Raises RunFailed on another machine, or after the run has ended."""
        kept = json.loads(_read(self.path / _ENVIRONMENT))
        if isinstance(kept, list):  # of an earlier version
            return tuple(kept)
        texts = kept["texts"]
        return tuple({name: texts[number] for name, number in each.items()} for each in kept["ranks"])

    def write_registry_auth(self, username: str, password: str) -> None:
        write_private(self.path / _REGISTRY, json.dumps([username, password]))

    def registry_auth(self) -> tuple[str, str] | None:
        """User and password of the image's registry, as they are written; None for none."""
        file = (self.array or self.path) / _REGISTRY
        if not file.exists():
            return None
        username, password = json.loads(_read(file))
        return username, password

    def write_launch(self, text: str) -> None:
        """Keep what a later attempt is made from."""
        write_private(self.path / _LAUNCH, text)

    def write_array(self, text: str) -> None:
        """Keep what the attempts of all members are made from, in the folder of an array."""
        write_private(self.path / _ARRAY, text)

    def launch(self) -> str:
        """What `write_launch`, or of a member `write_array`, kept. Raises RunFailed on another machine."""
        return _read(self._launch)

    @property
    def has_launch(self) -> bool:
        """Whether later attempts can begin on this machine."""
        return self._launch.is_file()

    @property
    def _launch(self) -> Path:
        return self.path / _LAUNCH if self.array is None else self.array / _ARRAY

    @property
    def has_environments(self) -> bool:
        """Whether the containers of an attempt can be started on this machine."""
        return (self.path / _ENVIRONMENT).is_file()

    def keys(self, ranks: int) -> RunKeys:
        """The run's keys, created at the first call."""
        path = self.path / _KEYS
        if not path.exists():
            pairs = [new_key_pair() for _ in range(ranks + 1)]
            write_private(path, json.dumps([[pair.private, pair.public] for pair in pairs]))
        client, *hosts = (SshKeyPair(*pair) for pair in json.loads(_read(path)))
        return RunKeys(client, tuple(hosts))

    @property
    def entry(self) -> Path:
        """What this machine enters a dev environment with."""
        return self.path / _ENTRY

    def entry_key(self) -> SshKeyPair:
        """The key that this machine enters with, created at the first call."""
        path = self.entry / "key"
        if not path.exists():
            staged = stage_file(path, new_key_pair().private)
            try:
                path.hardlink_to(staged)
            except FileExistsError:
                pass  # another process has been quicker
            finally:
                staged.unlink()
        private = path.read_text()
        return SshKeyPair(private, public_key(private))

    def forget_entry(self) -> None:
        shutil.rmtree(self.entry, ignore_errors=True)

    def forget_secrets(self) -> None:
        """Remove the files that only the start needs."""
        for name in (_ENVIRONMENT, _KEYS, _FILES, _REGISTRY, _LAUNCH, _ARRAY):
            (self.path / name).unlink(missing_ok=True)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise RunFailed(
            "this run cannot be started from here",
            where=str(file),
            detail="its environment is kept only where it was submitted, until its containers run",
            hint="submit it again",
            reason="executor_error",
        ) from error


def open_folder(dot: Path, name: RunName, number: int) -> RunFolder:
    """The folder of a run, created if missing. An earlier run's folder of this name moves to `NAME~NUMBER`.

    Raises LedgerUnusable when `.orch` cannot be written.
    """
    path = dot / "runs" / name
    try:
        if path.exists():
            earlier_number = _number_of(path)
            if earlier_number not in (None, number):
                _set_aside(path, path.with_name(f"{name}~{earlier_number}"))
        private_folder(path / "logs")
        write_private(path / _NUMBER, f"{number}\n")
    except OSError as error:
        raise LedgerUnusable(
            "the folder of a run cannot be written",
            where=str(path),
            detail=error.strerror or str(error),
            hint="is `.orch` writable, and is there space on the disk?",
        ) from error
    return RunFolder(path, number)


def find_folder(dot: Path, name: RunName, number: int, array: ArrayKey | None = None) -> RunFolder:
    """The folder of a run, without creating it. `array`: that it is a member of."""
    path = dot / "runs" / name
    if _number_of(path) not in (None, number):
        path = path.with_name(f"{name}~{number}")
    if array is None:
        return RunFolder(path, number)
    return RunFolder(path, number, array=find_folder(dot, RunName.from_ledger(array.name), array.id).path)


def folders_with_secrets(dot: Path) -> tuple[tuple[str, RunFolder], ...]:
    """Folders that still have what only the start of their run needs, or who enters it; each with the name
    of its run."""
    found: list[tuple[str, RunFolder]] = []
    runs = dot / "runs"
    for path in sorted({file.parent for name in (_ENVIRONMENT, _ENTRY) for file in runs.glob(f"*/{name}")}):
        number = _number_of(path)
        if number is not None:
            found.append((path.name.removesuffix(f"~{number}"), RunFolder(path, number)))
    return tuple(found)


def array_folders(dot: Path) -> tuple[tuple[ArrayKey, RunFolder], ...]:
    """The folders of arrays that still have what their members' attempts are made from."""
    found: list[tuple[ArrayKey, RunFolder]] = []
    for file in sorted((dot / "runs").glob(f"*/{_ARRAY}")):
        number = _number_of(file.parent)
        if number is not None:
            name = file.parent.name.removesuffix(f"~{number}")
            found.append((ArrayKey(name, number), RunFolder(file.parent, number)))
    return tuple(found)


def _number_of(path: Path) -> int | None:
    try:
        return int((path / _NUMBER).read_text())
    except (OSError, ValueError):
        return None


def _set_aside(path: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    path.rename(target)


def public_key(private: str) -> str:
    """The public half of a private key, both in OpenSSH's form."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_ssh_private_key(private.encode(), None).public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def new_key_pair() -> SshKeyPair:
    """A fresh Ed25519 pair."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return SshKeyPair(private.decode(), public.decode())
