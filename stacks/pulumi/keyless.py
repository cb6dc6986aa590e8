"""A preview without the key of the state: the engine plans on a copy of the stack that holds no secret.

The engine opens all secrets of a stack before it plans, and a stack has one key for all of them. So a caller
who shall plan, and shall read no client key, gives the engine a copy in a folder that goes with the plan: each
secret is a placeholder there, encrypted with no passphrase. Inputs that hold a secret are taken as unchanged.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from orch.stacks.pulumi.masking import SECRET_MARK, is_secret

if TYPE_CHECKING:
    from orch.stacks.pulumi.process import Program
    from orch.stacks.state import StackExport

PLACEHOLDER = "0" * 64
"""In place of each secret: also where hex digits of a seed are expected."""

_SECRET = "1b47061264138c4ac30d75fd1eb44270"
"""The engine's mark of a secret. Source: pulumi/pulumi, sdk/go/common/resource/sig, `Secret`."""

_PLAIN = re.compile(r"[A-Za-z_$][\w$]*")

Paths = Mapping[tuple[str, str], tuple[str, ...]]
"""Type and name of a resource -> the paths of its inputs that hold secrets."""


def without_secrets(recorded: StackExport, settings: str) -> str:
    """A recorded deployment with a placeholder for each secret, as JSON that the engine imports.

    `settings`: the text of the settings of the stack that gets it, which have the salt of its passphrase.
    """
    salt = re.search(r"(?m)^encryptionsalt: (\S+)$", settings)
    provider = {"type": "passphrase", "state": {"salt": salt[1] if salt else ""}}
    return json.dumps({"version": 3, "deployment": {**_replaced(recorded), "secrets_providers": provider}})


def secret_inputs(recorded: StackExport) -> Paths:
    """The inputs of recorded resources that hold secrets."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for each in recorded.get("resources") or ():
        if paths := tuple(_paths(each.get("inputs") or {}, "")):
            found[each["type"], each["urn"].rsplit("::", 1)[-1]] = paths
    return found


def keeping(code: Program, secrets: Paths) -> Program:
    """A program whose resources keep the recorded values of these inputs."""

    async def run() -> Any:
        import pulumi

        def keep(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
            paths = secrets.get((args.type_, args.name))
            if paths is None:
                return None
            kept = pulumi.ResourceOptions(ignore_changes=list(paths))
            return pulumi.ResourceTransformationResult(
                args.props, pulumi.ResourceOptions.merge(args.opts, kept)
            )

        pulumi.runtime.register_stack_transformation(keep)
        result = code()
        return await result if inspect.isawaitable(result) else result

    return run


def _replaced(value: Any) -> Any:
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        if is_secret(mapping) and "ciphertext" in mapping:
            return {SECRET_MARK: _SECRET, "plaintext": json.dumps(PLACEHOLDER)}
        return {key: _replaced(each) for key, each in mapping.items()}
    return [_replaced(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value


def _paths(value: Any, path: str) -> Iterator[str]:
    if is_secret(value):
        yield path
    elif isinstance(value, Mapping):
        for key, each in cast("Mapping[str, Any]", value).items():
            step = key if _PLAIN.fullmatch(key) else f"[{json.dumps(key)}]"
            yield from _paths(each, f"{path}.{step}" if path and not step.startswith("[") else f"{path}{step}")
    elif isinstance(value, list):
        for at, each in enumerate(cast("list[Any]", value)):
            yield from _paths(each, f"{path}[{at}]")
