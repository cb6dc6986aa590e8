"""The cluster of a stack as the account of its backend: recorded with the stack, and compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orch.components.accounts import Account
from orch.runner.kubernetes.identity import address_of, difference, joined
from orch.runner.kubernetes.login import Login


@dataclass(frozen=True)
class ClusterAccount(Account):
    """A cluster. `id`: its identity (`runner/kubernetes/identity.py`), of which two users may read different
    parts."""

    def has(self, recorded: str) -> bool:
        return self.id is not None and difference(recorded, self.id) is None

    def completed(self, recorded: str) -> str:
        return joined(recorded, self.id) or recorded


def cluster_account(login: Login, file: Path | str | None, identity: str) -> ClusterAccount:
    """Return the cluster of a login. `file`: the kubeconfig, None for the user's own."""
    # The engine's service takes tags of 256 characters.
    words = f"the Kubernetes cluster at {address_of(login.cluster):.100}"
    kubeconfig = "the kubeconfig" if file is None else str(file)
    selected = login.name if login.context is None else f"context {login.context} of {kubeconfig}"
    return ClusterAccount(words, identity, selected)
