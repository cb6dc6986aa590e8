"""What Nebius's errors mean for trying elsewhere."""

from __future__ import annotations

import pytest

from orch.components.cloud_errors import KINDS
from orch.components.nebius.account.errors import ERRORS, category


@pytest.mark.parametrize(
    ("status", "detail", "message", "meaning", "verdict"),
    [
        ("RESOURCE_EXHAUSTED", "not_enough_resources", "not enough resources", "capacity", "next"),
        ("RESOURCE_EXHAUSTED", "quota_failure", "", "quota", "stop"),
        ("FAILED_PRECONDITION", "quota_failure", "", "quota", "stop"),
        ("RESOURCE_EXHAUSTED", "too_many_requests", "", "rate", "again"),
        ("RESOURCE_EXHAUSTED", None, "Quota limit exceeded", "quota", "stop"),
        ("RESOURCE_EXHAUSTED", None, "not enough resources", "capacity", "next"),
        ("RESOURCE_EXHAUSTED", None, "", "rate", "again"),
        ("UNAUTHENTICATED", None, "", "credentials", "stop"),
        ("PERMISSION_DENIED", "permission_denied", "", "permission", "stop"),
        ("ALREADY_EXISTS", "resource_already_exists", "", "conflict", "again"),
        ("ABORTED", "operation_conflict", "", "conflict", "again"),
        ("NOT_FOUND", "resource_not_found", "", "gone", "again"),
        ("INVALID_ARGUMENT", "bad_request", "", "invalid", "stop"),
        ("UNAVAILABLE", None, "", "transient", "again"),
        ("SOMETHING_NEW", "something_new", "", "transient", "again"),
    ],
)
def test_an_error_is_told_by_its_details_first(
    status: str, detail: str | None, message: str, meaning: str, verdict: str
) -> None:
    found = category(status, detail, message)
    assert found == meaning
    assert ERRORS.error(found, message).verdict == verdict


def test_what_our_provider_said_is_read_again() -> None:
    for what in KINDS:
        error = ERRORS.read(f"error: cannot create the instance n: …; {ERRORS.error(what, 'x').code}: x")
        assert error is not None
        assert error.kind == KINDS[what]
    assert ERRORS.read("error: something else went wrong with nebius") is None
