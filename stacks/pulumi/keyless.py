"""A preview without the key of the state: the engine plans on a copy of the stack that holds no secret.

The engine decrypts all secrets of a stack before it plans, and a stack has one key for all of them. A
caller that must not read client keys gives the engine a copy of the stack, in a folder that is deleted with
the plan. There each secret is a placeholder under an empty passphrase, and inputs that hold a secret count as
unchanged.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.grammar.interpolate import secret_names
from orch.stacks.engine.process import Event, Program
from orch.stacks.events.masking import SECRET_MARK, is_secret
from orch.stacks.stack.state import StackExport

if TYPE_CHECKING:
    from orch.spec.models import Fleet

CODE = "ORCH470"
SUMMARY = "planned without the key of the state: secrets count as unchanged, and no node was asked"
OF_HOSTS = (
    "planned without the key of the state: secrets count as unchanged, and hosts were checked, but not asked "
    "for their runs"
)

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
    """The inputs of recorded resources that hold secrets, and the name of such a resource in its cloud: an
    instance template of GCP is named by a digest of them."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for each in recorded.get("resources") or ():
        inputs: Mapping[str, Any] = each.get("inputs") or {}
        if paths := tuple(_paths(inputs, "")):
            name = ("name",) if "name" in inputs else ()
            found[each["type"], each["urn"].rsplit("::", 1)[-1]] = (*paths, *name)
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


def without_drift_of_secrets(event: Event) -> Event:
    """An event of such a plan in which a value that is recorded as a secret counts as it is recorded: what a
    cloud tells of it is compared with a placeholder."""
    for kind in ("resourcePreEvent", "resOutputsEvent"):
        data: Mapping[str, Any] = (event.get(kind) or {}).get("metadata") or {}
        old, new = data.get("old"), data.get("new")
        if old and new:
            sides = {side: _as_recorded(old.get(side), new.get(side)) for side in ("inputs", "outputs")}
            return {**event, kind: {**event[kind], "metadata": {**data, "new": {**new, **sides}}}}
    return event


def findings_of(fleet: Fleet, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings of a plan in which references to secrets stand for their values, and a note of that.

    What a node is made with at its first boot has a mark of its text, which differs without the values.
    """
    named = {
        name
        for name, texts in (
            ("init", [text for step in fleet.init for text in step.env.values()]),
            ("mounts", [mount.options for mount in fleet.mounts]),
        )
        if any(secret_names(text or "") for text in texts)
    }
    kept = (each for each in findings if not (each.code == "ORCH232" and each.path in named))
    summary = SUMMARY if fleet.ssh_config is None else OF_HOSTS
    return (*kept, Finding(CODE, "name", summary, severity=Severity.NOTE))


def _as_recorded(old: Any, new: Any) -> Any:
    if is_secret(old):
        return cast("Any", old)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        known, found = cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new)
        return {key: _as_recorded(known.get(key), each) for key, each in found.items()}
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):  # pyright: ignore[reportUnknownArgumentType]
        pairs = zip(cast("list[Any]", old), cast("list[Any]", new), strict=True)
        return [_as_recorded(known, found) for known, found in pairs]
    return new


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
            yield from _paths(
                each, f"{path}.{step}" if path and not step.startswith("[") else f"{path}{step}"
            )
    elif isinstance(value, list):
        for at, each in enumerate(cast("list[Any]", value)):
            yield from _paths(each, f"{path}[{at}]")
