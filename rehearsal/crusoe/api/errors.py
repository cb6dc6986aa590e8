"""Crusoe's errors: a status, and a code and a message that people read.

Source: crusoecloud/client-go swagger/v1/swagger.json; the code `out_of_stock` of an operation:
crusoecloud/terraform-provider-crusoe. What a quota, and a partition that is in use, are refused with is not
documented: their words here are made up.
"""

from __future__ import annotations

from orch.rehearsal.http_service import HttpRefusal
from orch.rehearsal.store import Doc


class CrusoeError(HttpRefusal):
    """A refusal. `token`: what stands in the message before the words."""

    def __init__(self, status: int, token: str, words: str = "") -> None:
        super().__init__(status, token, f"{token}: {words}" if words else token)

    def document(self) -> Doc:
        return {"code": str(self.status), "message": self.message}


def bad_request(words: str) -> CrusoeError:
    return CrusoeError(400, "bad_request", words)


def not_found(words: str) -> CrusoeError:
    return CrusoeError(404, "not_found", f"{words} not found")


def bad_credential(words: str) -> CrusoeError:
    return CrusoeError(401, "bad_credential", words)


def forbidden() -> CrusoeError:
    return CrusoeError(403, "unauthorized", "rpc error: code = PermissionDenied desc = not allowed")


def in_use(words: str) -> CrusoeError:
    return CrusoeError(409, "conflict", f"{words} is in use")


def over_quota(name: str, limit: int) -> CrusoeError:
    return bad_request(f"rpc error: code = ResourceExhausted desc = quota {name} exceeded: limit is {limit}")


def too_many_requests() -> CrusoeError:
    return CrusoeError(429, "too_many_requests")


def injected(code: str, message: str) -> CrusoeError:
    """A failure that a test asks for, by a status."""
    status = int(code) if code.isdecimal() else 500
    return CrusoeError(status, "internal_error" if status >= 500 else "bad_request", message)


OUT_OF_STOCK = {"code": "out_of_stock", "message": "the requested resource is out of stock"}
