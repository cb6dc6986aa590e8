"""Names of an account's local nodes on this machine: containers, hosts and their network."""

from __future__ import annotations

import hashlib

from orch.rehearsal.account import SimulatedAccount, SimulatedMachine


def container_of(cloud: SimulatedAccount, machine: SimulatedMachine) -> str:
    return f"{network_of(cloud)}-{machine.slug}"


def network_of(cloud: SimulatedAccount) -> str:
    return f"orch-sim-{scope(cloud)}"


def scope(cloud: SimulatedAccount) -> str:
    """The part of container names that identifies this account."""
    return hashlib.sha256(str(cloud.path.resolve()).encode()).hexdigest()[:6]


def hostname_of(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")[:63] or "node"
