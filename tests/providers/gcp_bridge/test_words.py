"""Refusals in the words of the real provider: of Google's client for Go, and of its wait for operations."""

from __future__ import annotations

from orch.rehearsal.gcp.resources.calls import ApiFailure, OperationFailure


def test_a_refused_call_tells_status_message_and_reason() -> None:
    message = "Quota 'NETWORKS' exceeded.  Limit: 5.0 globally."
    error = {"reason": "quotaExceeded", "domain": "usageLimits", "message": message}
    failure = ApiFailure(403, {"error": {"code": 403, "message": message, "errors": [error]}})
    assert str(failure) == f"googleapi: Error 403: {message}, quotaExceeded"
    assert failure.reason == "quotaExceeded"


def test_several_reasons_are_told_one_by_one() -> None:
    errors = [{"reason": "invalid", "message": "one"}, {"reason": "required", "message": "two"}]
    failure = ApiFailure(400, {"error": {"code": 400, "message": "one", "errors": errors}})
    assert str(failure) == (
        "googleapi: Error 400: one\nMore details:\n"
        "Reason: invalid, Message: one\nReason: required, Message: two\n"
    )


def test_a_failed_operation_tells_its_message_and_not_its_code() -> None:
    message = "The zone 'projects/p/zones/z' does not have enough resources available to fulfill the request."
    help_ = {"links": [{"description": "Troubleshooting documentation", "url": "https://example.org/x"}]}
    said = {"localizedMessage": {"message": "A VM is currently unavailable in the z zone."}}
    error = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "message": message}
    plain = OperationFailure("instance to create", [error])
    assert str(plain) == f"Error waiting for instance to create: {message}\n"
    assert plain.codes == ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",)
    told = str(OperationFailure("instance to create", [{**error, "errorDetails": [{"help": help_}, said]}]))
    assert told.endswith(
        "\n\n\nA VM is currently unavailable in the z zone.\n"
        "\n\nTroubleshooting documentation\nhttps://example.org/x\n"
    )


def test_a_quota_that_an_operation_meets_is_told_with_its_numbers() -> None:
    quota = {
        "metricName": "compute.googleapis.com/gpus_all_regions",
        "limitName": "GPUS-ALL-REGIONS-per-project",
    }
    error = {
        "code": "QUOTA_EXCEEDED",
        "message": "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.",
        "errorDetails": [{"quotaInfo": {**quota, "dimensions": {"global": "global"}}}],
    }
    assert str(OperationFailure("instance to create", [error])) == (
        "Error waiting for instance to create: Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.\n"
        "\tmetric name = compute.googleapis.com/gpus_all_regions\n"
        "\tlimit name = GPUS-ALL-REGIONS-per-project\n"
        "\tdimensions = map[global:global]\n"
    )
