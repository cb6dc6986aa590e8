"""`orch:index:Keys`: the keys of one fleet, made once and kept as secrets of the stack.

The client's key pair, and a seed from which each node's host key follows (`host_key`). One resource serves
any number of
nodes: growing a fleet by a node changes nothing that is there. While the pair is rotated another one lies
beside it, which `stacks/secrets/key_pairs.py` writes into the state and takes out again.
"""

from __future__ import annotations

import secrets
from typing import Any, ClassVar

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orch.providers.orch.handler import Inputs, State


class KeysHandler:
    computed: ClassVar[frozenset[str]] = frozenset(
        {f"{name}_{half}_key" for name in ("client", "next", "former") for half in ("private", "public")}
        | {"host_seed"}
    )
    secrets: ClassVar[frozenset[str]] = frozenset(
        {"client_private_key", "host_seed", "next_private_key", "former_private_key"}
    )
    tools: ClassVar[frozenset[str]] = frozenset()

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        return [] if inputs.get("name") else [("name", "a name is needed")]

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        return True

    def create(self, inputs: Inputs) -> tuple[str, State]:
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        return inputs["name"], {
            "client_private_key": private.decode(),
            "client_public_key": public.decode(),
            "host_seed": secrets.token_hex(32),
        }

    def read(self, resource_id: str, state: State) -> State | None:
        return _kept(state)

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        return _kept(state)

    def delete(self, resource_id: str, state: State) -> None:
        return


def _kept(state: State) -> State:
    return {key: value for key, value in state.items() if key in KeysHandler.computed}
