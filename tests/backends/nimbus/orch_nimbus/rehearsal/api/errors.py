"""The errors of the simulated API. Codes and bodies are those of Nimbus: cite the source."""

from __future__ import annotations

from orch.rehearsal.http_service import HttpRefusal
from orch.rehearsal.store import Doc


class NimbusError(HttpRefusal):
    """A refusal."""

    def document(self) -> Doc:
        """Return the body of the answer."""
        return {"fault": {"code": self.code, "text": self.message}}


def invalid(words: str) -> NimbusError:
    return NimbusError(400, "invalid", words)


def not_there(words: str) -> NimbusError:
    return NimbusError(404, "no_such_thing", f"{words} does not exist")


def no_method() -> NimbusError:
    return NimbusError(405, "method-not-allowed", "the method is not allowed")


def no_capacity() -> NimbusError:
    return NimbusError(400, "sold_out", "there is no capacity for this type")


def over_quota() -> NimbusError:
    return NimbusError(400, "limit_reached", "the quota of machines is used up")


def bad_key() -> NimbusError:
    return NimbusError(401, "unauthorized", "the key is not valid")


def forbidden() -> NimbusError:
    return NimbusError(403, "forbidden", "the key may not do this")


def too_many_requests() -> NimbusError:
    return NimbusError(429, "too-many-requests", "slow down")


def injected(code: str, message: str) -> NimbusError:
    """Return a failure that a test asks for, by a status or by a code."""
    return (
        NimbusError(int(code), "injected", message) if code.isdecimal() else NimbusError(400, code, message)
    )
