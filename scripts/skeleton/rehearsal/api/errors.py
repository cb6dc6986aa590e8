"""The errors of the simulated API. Codes and bodies are those of Newcloud: cite the source."""

from __future__ import annotations

from orch.rehearsal.http_service import HttpRefusal
from orch.rehearsal.store import Doc


class NewcloudError(HttpRefusal):
    """A refusal."""

    def document(self) -> Doc:
        """Return the body of the answer."""
        raise NotImplementedError("the body of a refusal")


def invalid(words: str) -> NewcloudError:
    return NewcloudError(400, "invalid", words)


def not_there(words: str) -> NewcloudError:
    return NewcloudError(404, "not-found", f"{words} does not exist")


def no_method() -> NewcloudError:
    return NewcloudError(405, "method-not-allowed", "the method is not allowed")


def no_capacity() -> NewcloudError:
    return NewcloudError(400, "no-capacity", "there is no capacity for this type")


def over_quota() -> NewcloudError:
    return NewcloudError(400, "quota-exceeded", "the quota of machines is used up")


def bad_key() -> NewcloudError:
    return NewcloudError(401, "unauthorized", "the key is not valid")


def forbidden() -> NewcloudError:
    return NewcloudError(403, "forbidden", "the key may not do this")


def too_many_requests() -> NewcloudError:
    return NewcloudError(429, "too-many-requests", "slow down")


def injected(code: str, message: str) -> NewcloudError:
    """Return a failure that a test asks for, by a status or by a code."""
    return (
        NewcloudError(int(code), "injected", message)
        if code.isdecimal()
        else NewcloudError(400, code, message)
    )
