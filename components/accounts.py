"""The account that a backend acts in: told to users, recorded with a stack, and compared before a recorded
resource is believed to be gone."""

from __future__ import annotations

import os
from dataclasses import dataclass

REHEARSED = "ORCH_REHEARSE_ACCOUNT"
"""The variable that selects another simulated account of each cloud in a rehearsal, by a name."""

CREDS = "creds of orch.yml"
"""`selected_by` of credentials that the project's file has."""


@dataclass(frozen=True)
class Account:
    """An account of a cloud, as the present credentials select it.

    `id`: stable and unique within the backend, the same for every key of the account, and compared with the
    recorded one. Credentials that lead to several have all of them, with `+` between. None if the cloud has
    no call that tells it. `words`: the account and the caller,
    as part of a sentence: `AWS account 123456789012 as arn:aws:iam::123456789012:role/ci`. `selected_by`: the
    variable, profile or file that selected the credentials: `AWS_PROFILE=dev`, `the default credentials`.
    """

    words: str
    id: str | None = None
    selected_by: str = "the default credentials"

    def has(self, recorded: str) -> bool:
        """Whether the credentials lead to all that was recorded, and perhaps to more."""
        return self.id is not None and {*recorded.split("+")} <= {*self.id.split("+")}

    def completed(self, recorded: str) -> str:
        """Return what to record instead of `recorded`, which these credentials lead to."""
        return recorded


def selected_in_rehearsal() -> str:
    """Return `Account.selected_by` of a simulated account."""
    if name := os.environ.get(REHEARSED):
        return f"{REHEARSED}={name}"
    return f"the rehearsal ({REHEARSED} is not set)"
