"""The passphrase of a state: a file of the folder that began it, which others need a copy of.

A rotation has two: `passphrase.new` beside the present one until all stacks are encrypted with it, then
`passphrase.former` beside the new one until each stack is seen to be. The salt of a stack proves which one is
its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.private import stage_file
from orch.runner.processes import here
from orch.stacks.errors import StackError

if TYPE_CHECKING:
    from orch.stacks.project.project import Project

UNREADABLE = "ORCH354"

VARIABLES = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")

ROUNDS = 1_000_000
KEY_BYTES = 32
PROOF = b"pulumi"
"""How the engine makes a key from a passphrase, and the text that it encrypts to know that key again. Source:
pulumi/pkg/secrets/passphrase/manager.go and pulumi/sdk/go/common/resource/config/crypt.go."""

_SAYS_SO = ("incorrect passphrase", "passphrase must be set", "get password")


@dataclass(frozen=True)
class Keeper:
    """Creator of the passphrase of a state, and the path of its file."""

    by: str
    path: str

    @property
    def words(self) -> str:
        return f"{self.by} made it, in {self.path}"


def is_given() -> bool:
    """Return True if the environment has the passphrase."""
    return any(name in os.environ for name in VARIABLES)


def make(path: Path, keeper: Path | None) -> None:
    """Make the passphrase of a state that begins here, unless there is one, or somebody else has made it.

    `keeper`: the file in the state that tells the others who did, None where nobody else uses it.
    """
    if is_given():
        return
    if path.exists():
        _tell_others(keeper, path)
        return
    other = None if keeper is None else _read(keeper)
    if other is not None and Path(other.path) != path:
        return
    staged = stage_file(path, secrets.token_urlsafe(32))
    try:
        os.link(staged, path)  # of two processes, the first one wins
    except FileExistsError:
        pass
    finally:
        staged.unlink(missing_ok=True)
    _tell_others(keeper, path)


def _tell_others(keeper: Path | None, path: Path) -> None:
    if keeper is not None and not keeper.exists():
        with suppress(OSError), keeper.open("x", encoding="utf-8") as stream:
            json.dump({"by": here(), "path": str(path)}, stream)


def _read(file: Path) -> Keeper | None:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, Mapping):
        return None
    return Keeper(str(found.get("by", "")), str(found.get("path", "")))


def keeper_elsewhere(project: Project) -> Keeper | None:
    """Return the holder of the state's passphrase, if it is needed and not here."""
    if project.secrets_provider is not None or project.passphrase_file.exists() or is_given():
        return None
    return None if project.keeper_file is None else _read(project.keeper_file)


def new_file(project: Project) -> Path:
    """Return the path of the next passphrase until all secrets are encrypted with it."""
    return project.passphrase_file.with_name("passphrase.new")


def former_file(project: Project) -> Path:
    """Return the path of the previous passphrase until each stack is seen to have the present one."""
    return project.passphrase_file.with_name("passphrase.former")


def is_unfinished(project: Project) -> bool:
    """Return True if a rotation of the passphrase has started and not finished: the project has two."""
    return new_file(project).exists() or former_file(project).exists()


def key_file(project: Project, salt: str) -> Path | None:
    """The file with the passphrase that a salt was made with; None when no file here has it."""
    for file in (project.passphrase_file, new_file(project), former_file(project)):
        with suppress(FileNotFoundError):
            if opens(file.read_text("utf-8").strip(), salt):
                return file
    return None


@cache
def opens(passphrase: str, salt: str) -> bool:
    """Return True if a salt was made with this passphrase, by the engine's own check; takes 0.3 s.

    `salt` is `v1:SALT:v1:NONCE:TEXT`, each in base64: the text is encrypted by AES-256-GCM with a key that
    PBKDF2 makes of the passphrase and the salt. What the engine itself could not read opens nothing.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    version, *parts = salt.split(":")
    if version != "v1" or len(parts) != 4 or parts[1] != "v1":
        return False
    try:
        salted, nonce, text = (b64decode(each, validate=True) for each in (parts[0], *parts[2:]))
        key = hashlib.pbkdf2_hmac("sha256", passphrase.encode(), salted, ROUNDS, KEY_BYTES)
        return AESGCM(key).decrypt(nonce, text, None) == PROOF
    except (InvalidTag, ValueError):
        return False


def is_lacking(text: str) -> bool:
    """Return True if the engine says that the passphrase is missing, or is not the one of the state."""
    return any(words in text for words in _SAYS_SO)


def not_ours(project: Project, summary: str) -> StackError:
    """The error for a state whose passphrase is not here, or is another one (ORCH354)."""
    path = project.passphrase_file
    given = next((name for name in VARIABLES if name in os.environ), None)
    if given is not None:
        used = f"{given} of this environment is not the passphrase of the state"
    elif path.exists():
        used = f"{path} is not the passphrase of the state"
    else:
        used = f"there is no {path}"
    if given is None and is_unfinished(project):
        return StackError(
            summary,
            where=project.state_url,
            detail=f"{used}, nor is the other one of an unfinished rotation, beside it",
            hint="`orch rotate passphrase` goes on with the rotation",
            code=UNREADABLE,
        )
    file = project.keeper_file
    keeper = None if file is None else _read(file)
    copied = "copy that file" if keeper else "copy `.orch/passphrase` of the folder that began it"
    return StackError(
        summary,
        where=project.state_url,
        detail=f"{used}; {keeper.words}" if keeper else used,
        hint=f"{copied} as {path}, or set PULUMI_CONFIG_PASSPHRASE; a `secrets_provider` in orch.yml "
        "spares this (docs/how-to/teams.md)",
        code=UNREADABLE,
    )
