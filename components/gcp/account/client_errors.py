"""What GCP refuses to answer, as errors of ours."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from orch.catalog.sdks import require_sdk
from orch.components.cloud_errors import CloudRefused
from orch.components.gcp.account import errors


def sdk(module: str) -> Any:
    """A module of Google's SDK. Raises NoSdk."""
    return require_sdk(module, "GCP")


def not_found() -> Any:
    """The error of a thing that is not there."""
    return sdk("google.api_core.exceptions").NotFound


@contextmanager
def translate_errors(action: str) -> Generator[None, None, None]:
    """Google's errors as ours."""
    api, auth = sdk("google.api_core.exceptions"), sdk("google.auth.exceptions")
    try:
        yield
    except api.GoogleAPICallError as error:
        reason = getattr(error, "reason", None) or next(iter(codes_of(error)), None)
        message = str(getattr(error, "message", error))
        cloud_error = (
            errors.by_code(reason, message) if reason else errors.by_status(int(error.code or 500), message)
        )
        raise CloudRefused(
            f"{cloud_error.meaning}: could not {action}",
            error=cloud_error,
            status=int(error.code) if error.code else None,
            detail=f"{cloud_error.code}: {message}",
            hint=cloud_error.hint,
            code=cloud_error.orch,
        ) from error
    except auth.DefaultCredentialsError as error:
        raise CloudRefused(
            "there are no GCP credentials",
            detail=str(error),
            hint="`gcloud auth application-default login`, or `creds` in orch.yml",
            code="ORCH303",
        ) from error
    except auth.GoogleAuthError as error:
        raise CloudRefused(
            "GCP does not accept the credentials",
            detail=str(error),
            hint="`gcloud auth application-default login`",
            code="ORCH303",
        ) from error
    except (api.RetryError, OSError) as error:
        raise CloudRefused(f"GCP cannot be reached to {action}", detail=str(error), code="ORCH358") from error


def codes_of(error: Any) -> tuple[str, ...]:
    """The short codes of an error: those of the answer, or of the operation that failed."""
    reasons = [each["reason"] for each in error.errors or () if isinstance(each, dict) and each.get("reason")]
    operation = getattr(error.response, "error", None)
    return tuple(map(str, (*reasons, *(each.code for each in getattr(operation, "errors", ())))))
