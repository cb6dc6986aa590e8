"""What RunPod's errors mean for trying elsewhere."""

from __future__ import annotations

import pytest

from orch.components.cloud_errors import KINDS
from orch.components.runpod.account.errors import ERRORS, category


@pytest.mark.parametrize(
    ("status", "detail", "meaning", "verdict"),
    [
        (400, "Insufficient resources", "capacity", "next"),
        (
            400,
            "There are no longer any instances available with the requested specifications.",
            "capacity",
            "next",
        ),
        (400, "This machine does not have the resources to deploy your pod", "capacity", "next"),
        (200, "Error creating cluster - cluster creation failed", "capacity", "next"),
        (400, "exactly one of gpu and cpu must be set", "invalid", "stop"),
        (400, "network volume is in use by pod a", "conflict", "again"),
        (402, "Insufficient balance", "quota", "stop"),
        (400, "this would exceed your spend limit", "quota", "stop"),
        (401, "missing bearer token", "credentials", "stop"),
        (403, "access denied", "permission", "stop"),
        (404, "pod not found", "gone", "again"),
        (200, "pod not found to terminate", "gone", "again"),
        (409, "action not valid for current pod status", "conflict", "again"),
        (422, "Request validation failed.", "invalid", "stop"),
        (429, "rate limit exceeded for the minute window", "rate", "again"),
        (500, "Insufficient resources", "transient", "again"),
        (503, "", "transient", "again"),
        (418, "", "invalid", "stop"),
    ],
)
def test_an_error_is_told_by_its_status_and_a_400_by_its_detail(
    status: int, detail: str, meaning: str, verdict: str
) -> None:
    found = category(status, detail)
    assert found == meaning
    assert ERRORS.error(found, detail).verdict == verdict


def test_what_our_provider_said_is_read_again() -> None:
    for what in KINDS:
        error = ERRORS.read(f"error: cannot create the pod n: …; {ERRORS.error(what, 'x').code}: x")
        assert error is not None
        assert error.kind == KINDS[what]
    assert ERRORS.read("error: something else went wrong with runpod") is None


def test_a_cloud_that_does_not_answer_did_not_ask_to_wait() -> None:
    asked, silent = ERRORS.error("rate", "x"), ERRORS.error("transient", "Name or service not known")
    assert asked.meaning == "RunPod asks to come back later"
    assert silent.meaning == "RunPod does not answer, or answers with an error of its own"
    assert (asked.orch, asked.verdict) == (silent.orch, silent.verdict)
