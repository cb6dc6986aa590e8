"""Whoever asks a cloud without its SDK is told the same thing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from orch.catalog.refresh import refresh
from orch.components.aws.account import gather_facts as aws
from orch.components.gcp.account import gather_facts as gcp
from orch.spec.errors import ExitCode, OrchError
from orch.spec.install import install_hint
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.backends.gcp import GcpSettings


@pytest.mark.parametrize(
    ("module", "cloud", "asks"),
    [
        ("boto3", "AWS", lambda folder: aws.open_session(AwsSettings.model_validate({"type": "aws"}))),
        ("boto3", "AWS", lambda folder: refresh("aws", folder=folder)),
        (
            "google.auth",
            "GCP",
            lambda folder: gcp.open_session(GcpSettings.model_validate({"type": "gcp", "project_id": "p"})),
        ),
    ],
    ids=["plan of AWS", "prices of AWS", "plan of GCP"],
)
def test_the_missing_sdk_is_named_the_same_everywhere(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    cloud: str,
    asks: Callable[[Path], object],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    # The errors of Google's libraries do not go with Pulumi's SDK: tests/kit/apart.py.
    monkeypatch.setattr(gcp, "translate_errors", lambda action: nullcontext())
    with pytest.raises(OrchError) as caught:
        asks(tmp_path)
    told, extra = caught.value, cloud.lower()
    assert told.summary == f"{cloud}'s SDK is not installed"
    assert (told.code, told.exit_code) == ("ORCH306", ExitCode.CONFIG)
    assert told.hint == install_hint(extra)
    assert "orch-fleet" not in told.hint
    assert f"'pulumi-{extra}" in told.hint
