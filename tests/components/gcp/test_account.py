"""The questions to a GCP account, in a process of their own."""

from __future__ import annotations

from pathlib import Path

from apart import passes


def test_what_a_gcp_account_is_asked() -> None:
    passes(Path(__file__).with_name("account_suite.py"))
