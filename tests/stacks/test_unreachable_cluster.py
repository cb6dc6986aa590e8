"""The exit code where a plugin tells that nothing was tried, as the cluster does not answer or is another."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orch.spec.errors import ExitCode
from orch.stacks.engine.process import ProcessResult
from orch.stacks.pulumi.operation import EngineCall, _failure

URN = "urn:pulumi:lab::p::kubernetes:core/v1:Namespace::lab-"
SILENT = "lab (https://lab): ORCH458 the API server at lab port 443 refuses connections"
OTHER = "lab (https://lab): ORCH459 the fleet is on another cluster than the kubeconfig leads to now"


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ([SILENT, SILENT], ExitCode.HOSTS),
        ([OTHER], ExitCode.CONFLICT),
        ([SILENT, "the quota is used up"], ExitCode.PROVISION),
        ([], ExitCode.PROVISION),
    ],
)
def test_the_exit_code_says_that_nothing_was_tried(told: list[str], code: ExitCode) -> None:
    run = EngineCall(lambda event: None, planning=True)
    run.errors = {"": "update failed", **{f"{URN}{at}": text for at, text in enumerate(told)}}
    error = _failure(cast(Any, None), "lab", "refresh", run, ProcessResult(255, "", ""))
    assert (error.exit_code, error.code) == (code, "ORCH347")
