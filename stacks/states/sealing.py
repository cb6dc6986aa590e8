"""A stack's state under another key, or in another place: read in clear into memory, and written encrypted.

`pulumi stack import` encrypts by the secrets provider that the deployment names, so that one is made first,
by an empty stack in a scratch folder: the engine then knows its salt, or its data key. Nothing in clear
touches a disk.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from orch.runner.private import write_private
from orch.stacks.errors import StackError
from orch.stacks.project.project import Project
from orch.stacks.stack.command import init, plain
from orch.stacks.stack.state import StackState, settings_file


@dataclass(frozen=True)
class Seal:
    """A key for the secrets of a stack: the stack's settings file, and what its state says of it."""

    settings: str
    provider: Mapping[str, Any]


def new_seal(project: Project, stack: str) -> Seal:
    """A key for a stack: of the project's secrets provider, else of its passphrase. Raises StackError."""
    with tempfile.TemporaryDirectory(prefix="seal-", dir=project.dot) as name:
        scratch = replace(project, root=Path(name), state_url=f"file://{name}/state")
        scratch.prepare()
        if project.passphrase_file.exists():
            shutil.copy(project.passphrase_file, scratch.passphrase_file)
        init(StackState(scratch, stack))
        settings = settings_file(scratch, stack).read_text("utf-8")
    return Seal(settings, _provider(settings, stack))


def _provider(settings: str, stack: str) -> Mapping[str, Any]:
    found = yaml.safe_load(settings) or {}
    if "encryptionsalt" in found:
        return {"type": "passphrase", "state": {"salt": found["encryptionsalt"]}}
    if "encryptedkey" in found and "secretsprovider" in found:
        return {
            "type": "cloud",
            "state": {"url": found["secretsprovider"], "encryptedkey": found["encryptedkey"]},
        }
    raise StackError(
        f"the engine made no key for the stack {stack}", detail=", ".join(found) or "no settings"
    )


def read_clear(stack: StackState) -> dict[str, Any]:
    """A stack's state with its secrets in clear. Raises StackError."""
    return json.loads(plain(stack, ["stack", "export", "--show-secrets"]).stdout)


def write_sealed(stack: StackState, clear: Mapping[str, Any], seal: Seal) -> None:
    """Write a state under a key, and make the stack where it is not there. Raises StackError."""
    write_private(settings_file(stack.project, stack.name), seal.settings)
    if not stack.exists:
        init(stack)
    deployment = {**clear["deployment"], "secrets_providers": seal.provider}
    write_clear(stack, {**clear, "deployment": deployment})


def write_clear(stack: StackState, clear: Mapping[str, Any]) -> None:
    """Write a state under the key that it names. Raises StackError."""
    plain(stack, ["stack", "import"], stdin=json.dumps(clear))


def require_equal(stack: StackState, clear: Mapping[str, Any], seal: Seal) -> None:
    """Raise StackError when a stack is not as it was read, in clear, or does not have its new key.

    A stack that holds no secret reads the same under any key.
    """
    found = read_clear(stack)
    if _comparable(found) != _comparable(clear):
        problem = "is not as it was read"
    elif found["deployment"].get("secrets_providers") != seal.provider:
        problem = "does not have the key that it was written with"
    else:
        return
    raise StackError(
        f"the state of {stack.name} {problem}",
        where=stack.project.state_url,
        hint="the former state is unchanged; please report this",
    )


def _comparable(clear: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a state that is the same in every place."""
    left_out = ("manifest", "secrets_providers", "metadata")
    kept = {key: value for key, value in clear["deployment"].items() if key not in left_out}
    return {key: value for key, value in kept.items() if value}


def resources_of(clear: Mapping[str, Any]) -> dict[str, str]:
    """Urn -> id of what a state has."""
    found = clear["deployment"].get("resources") or ()
    return {str(each["urn"]): str(each.get("id", "")) for each in found}
