"""The pairs of SSH keys that a fleet's state has: the present one, and while keys are rotated another. Pure.

They lie in the outputs of the resource `orch:index:Keys`, which the engine encrypts. A rotation goes by what
is there, so that whoever goes on with it has the same pair: a `next` pair opens nodes beside the present one,
a `former` one still may. States are changed in clear, as `sealing.py` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orch.spec.errors import OrchError
from orch.stacks.errors import StackError

KEYS = "orch:index:Keys"
NEXT = "next"
FORMER = "former"

_CLIENT = "client"
_STACK = "pulumi:pulumi:Stack"
_LOCAL_NODE = "orch:local:Node"
_SIGNATURE = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270"}
"""What the engine tells a secret by."""

State = Mapping[str, Any]


@dataclass(frozen=True)
class KeyPair:
    """A private key as OpenSSH's file has it, and its public half in one line."""

    private: str = field(repr=False)
    public: str


@dataclass(frozen=True)
class KeyPairs:
    """The pairs of a fleet. `next`: opens nodes beside `client`; `former`: what `client` has replaced."""

    client: KeyPair
    next: KeyPair | None = None
    former: KeyPair | None = None


def pairs_of(clear: State) -> KeyPairs:
    """The pairs in a state that is read in clear. Raises StackError where it has none."""
    for resource in _resources(clear):
        if _kind(resource) == KEYS:
            outputs: Mapping[str, Any] = resource["outputs"]
            client = _pair(outputs, _CLIENT)
            if client is not None:
                return KeyPairs(client, _pair(outputs, NEXT), _pair(outputs, FORMER))
    raise _none()


def with_next(clear: State, pair: KeyPair) -> State:
    """The same state with a pair beside the present one."""
    return _with_outputs(clear, lambda outputs: {**outputs, **_written(NEXT, pair)})


def exchanged(clear: State) -> State:
    """The same state with the next pair in the place of the present one, which becomes the former; or, where
    there is a former pair, as it was before that.

    With it goes all that records the key which opens nodes: the stack's output, and what containers of this
    machine let in, whose file was changed on the node.
    """
    pairs = pairs_of(clear)
    new = pairs.next or pairs.former
    if new is None:
        raise _none()
    kept, dropped = (FORMER, NEXT) if pairs.next is not None else (NEXT, FORMER)

    def swap(outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        left = _without(outputs, dropped)
        return {**left, **_written(_CLIENT, new), **_written(kept, pairs.client)}

    return _mapped(
        _with_outputs(clear, swap), lambda resource: _as_opened(resource, pairs.client.public, new)
    )


def without(clear: State, name: str) -> State:
    """The same state without its next or former pair."""
    return _with_outputs(clear, lambda outputs: _without(outputs, name))


def public_key(recorded: Mapping[str, Any] | None) -> str | None:
    """The public key of a fleet, from its state as it is recorded; None where it has none of its own."""
    for resource in (recorded or {}).get("resources") or ():
        if _kind(resource) == KEYS and not resource.get("delete"):
            key = (resource.get("outputs") or {}).get("client_public_key")
            return key if isinstance(key, str) else None
    return None


def made_with_key(recorded: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The resources of a stack that are made with its public key, by name: what new nodes are made with has
    to get the new one. Containers of this machine are left out."""
    resources = [each for each in (recorded or {}).get("resources") or () if not each.get("delete")]
    keys = {str(each["urn"]) for each in resources if _kind(each) == KEYS}
    return tuple(
        str(each["urn"]).rsplit("::", 1)[-1]
        for each in resources
        if keys & set(each.get("dependencies") or ()) and _kind(each) not in (_LOCAL_NODE, _STACK)
    )


def _kind(resource: Mapping[str, Any]) -> str:
    return str(resource.get("type"))


def _resources(clear: State) -> list[Mapping[str, Any]]:
    return list((clear.get("deployment") or {}).get("resources") or ())


def _mapped(clear: State, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> State:
    resources = [change(each) for each in _resources(clear)]
    return {**clear, "deployment": {**clear["deployment"], "resources": resources}}


def _with_outputs(clear: State, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> State:
    def one(resource: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**resource, "outputs": change(resource["outputs"])} if _kind(resource) == KEYS else resource

    return _mapped(clear, one)


def _as_opened(resource: Mapping[str, Any], old: str, new: KeyPair) -> Mapping[str, Any]:
    """Return another resource with the new key in place of the old one it records."""
    if _kind(resource) == _STACK and "identity" in (resource.get("outputs") or {}):
        return {**resource, "outputs": {**resource["outputs"], "identity": _sealed(new.private)}}
    if _kind(resource) != _LOCAL_NODE:
        return resource
    sides = {side: resource[side] for side in ("inputs", "outputs") if side in resource}
    return {
        **resource,
        **{
            side: {
                **values,
                "authorized_key": str(values["authorized_key"]).replace(old.strip(), new.public.strip()),
            }
            for side, values in sides.items()
            if "authorized_key" in values
        },
    }


def _pair(outputs: Mapping[str, Any], name: str) -> KeyPair | None:
    private, public = (outputs.get(f"{name}_{half}_key") for half in ("private", "public"))
    if private is None or public is None:
        return None
    return KeyPair(_opened(private), _opened(public))


def _written(name: str, pair: KeyPair) -> dict[str, Any]:
    return {f"{name}_private_key": _sealed(pair.private), f"{name}_public_key": pair.public}


def _without(outputs: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in outputs.items() if not key.startswith(f"{name}_")}


def _sealed(text: str) -> dict[str, str]:
    return {**_SIGNATURE, "plaintext": json.dumps(text)}


def _opened(value: Any) -> str:
    return str(json.loads(value["plaintext"])) if isinstance(value, Mapping) else str(value)


def _none() -> OrchError:
    return StackError("the state has no such pair of keys", code="ORCH351")
