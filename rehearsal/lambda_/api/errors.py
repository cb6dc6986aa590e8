"""Lambda's errors: a status, and a code, a message and perhaps a suggestion.

Source: Lambda Cloud API 1.10, schemas ApiError…. What too many requests are refused with has no schema: its
code here is made up.
"""

from __future__ import annotations

from orch.rehearsal.http_service import HttpRefusal
from orch.rehearsal.store import Doc


class LambdaError(HttpRefusal):
    """A refusal."""

    def document(self) -> Doc:
        return {"error": {"code": self.code, "message": self.message}}


def invalid(words: str) -> LambdaError:
    return LambdaError(400, "global/invalid-parameters", f"Invalid request data. {words}")


def not_there(words: str) -> LambdaError:
    return LambdaError(404, "global/object-does-not-exist", f"{words} does not exist.")


def no_route() -> LambdaError:
    return LambdaError(404, "global/not-found", "The requested resource was not found.")


def no_capacity() -> LambdaError:
    code = "instance-operations/launch/insufficient-capacity"
    return LambdaError(400, code, "Not enough capacity to fulfill launch request.")


def over_quota() -> LambdaError:
    return LambdaError(400, "global/quota-exceeded", "Quota exceeded.")


def wrong_region(words: str) -> LambdaError:
    return LambdaError(400, "instance-operations/launch/file-system-in-wrong-region", words)


def file_system_in_use() -> LambdaError:
    return LambdaError(400, "filesystems/filesystem-in-use", "The filesystem is mounted to an instance.")


def duplicate(words: str) -> LambdaError:
    return LambdaError(400, "global/duplicate", f"{words} exists already.")


def bad_key() -> LambdaError:
    return LambdaError(401, "global/invalid-api-key", "API key was invalid, expired, or deleted.")


def forbidden() -> LambdaError:
    return LambdaError(403, "global/forbidden", "You do not have permission to access this.")


def too_many_requests() -> LambdaError:
    return LambdaError(429, "global/too-many-requests", "Slow down.")


def injected(code: str, message: str) -> LambdaError:
    """A failure that a test asks for, by a status or by a code of Lambda's."""
    if not code.isdecimal():
        return LambdaError(400, code, message)
    status = int(code)
    return LambdaError(status, "global/internal-error" if status >= 500 else "global/conflict", message)
