"""What the cloud's errors mean: try the next place, stop, or try again."""

from __future__ import annotations

import pytest
from botocore.exceptions import WaiterError

from orch.components import cloud_errors
from orch.components.aws.account import errors
from orch.components.aws.account.client_errors import translate_errors
from orch.components.cloud_errors import CloudRefused
from orch.spec.codes import CODES

SAID = (
    "creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 500, "
    "RequestID: 0, api error InsufficientInstanceCapacity: We currently do not have sufficient p5.48xlarge "
    "capacity in the Availability Zone you requested (us-east-1a)."
)


def test_no_capacity_leads_to_the_next_place() -> None:
    error = errors.read(SAID)
    assert error is not None
    assert (error.code, error.verdict) == ("InsufficientInstanceCapacity", "next")


def test_boto_words_are_read_too() -> None:
    error = errors.read("An error occurred (VcpuLimitExceeded) when calling the RunInstances operation: more")
    assert error is not None
    assert (error.verdict, error.orch) == ("stop", "ORCH313")
    assert error.hint is not None


@pytest.mark.parametrize(
    ("said", "code", "hint"),
    [
        (
            "EFS: CreateFileSystem#FileSystemLimitExceeded: You have reached 1000",
            "FileSystemLimitExceeded",
            "delete",
        ),
        ("EFS: CreateFileSystem#ThroughputLimitExceeded: no", "ThroughputLimitExceeded", "less throughput"),
        ("FSx: CreateFileSystem#ServiceLimitExceeded: no", "ServiceLimitExceeded", "FSx"),
    ],
)
def test_quotas_of_file_systems_stop_and_say_what_to_do(said: str, code: str, hint: str) -> None:
    """A modelled error of the SDK has its code where others have `api error` and theirs."""
    text = said.replace("#", ", https response error StatusCode: 403, RequestID: 8b37162f-c5a8, ")
    error = errors.read(f"creating file system: operation error {text}")
    assert error is not None
    assert (error.code, error.verdict, error.orch) == (code, "stop", "ORCH313")
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("InsufficientInstanceCapacity", "next"),
        ("Server.InsufficientInstanceCapacity", "next"),
        ("UnauthorizedOperation", "stop"),
        ("InvalidParameterValue", "stop"),
        ("InvalidAMIID.NotFound", "stop"),
        ("RequestLimitExceeded", "again"),
        ("DependencyViolation", "again"),
        ("SomethingNew", "stop"),
    ],
)
def test_each_code_has_its_verdict(code: str, verdict: str) -> None:
    assert errors.by_code(code).verdict == verdict


def test_every_kind_has_a_code_of_ours() -> None:
    assert set(cloud_errors.CODES.values()) <= set(CODES)
    assert set(cloud_errors.CODES) == set(cloud_errors.VERDICTS)


def test_text_without_a_cloud_error_is_none() -> None:
    assert errors.read("the provider could not start") is None


def test_what_does_not_end_in_time_is_not_taken_for_a_cloud_that_cannot_be_reached() -> None:
    with (
        pytest.raises(CloudRefused, match="not finished in time, or failed: could not remove vol-1") as told,
        translate_errors("remove vol-1"),
    ):
        raise WaiterError("volume_available", "Max attempts exceeded", {})
    assert not told.value.final
