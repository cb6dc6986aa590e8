"""What orch.yml says of clouds reaches their plans."""

from __future__ import annotations

from pathlib import Path

from orch.spec.models.backends import entry_of
from orch.spec.models.backends.aws import AwsSettings
from orch.stacks.project.project import find


def test_the_account_and_regions_of_orch_yml_are_those_of_the_plan(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text(
        "backends:\n  - {type: aws, regions: [eu-west-1], creds: {type: default, profile: mine}}\n"
    )
    settings = entry_of(find(tmp_path).backends, AwsSettings)
    assert settings.regions == ("eu-west-1",)
    assert settings.creds is not None
