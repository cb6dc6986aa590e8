"""The questions to a GCP account, and Google's clients on a simulated one, in a process of their own."""

from __future__ import annotations

from kit.apart import passes
from kit.support import ROOT

SUITES = (
    "components/gcp/account_suite.py",
    "components/gcp/volumes_suite.py",
    "providers/gcp/clients_suite.py",
)


def test_what_a_gcp_account_is_asked_and_how_googles_clients_are_answered() -> None:
    passes(*(ROOT / "tests" / each for each in SUITES))
