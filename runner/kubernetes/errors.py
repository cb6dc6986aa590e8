"""What goes wrong between orch and an API server, one class per cause.

What a server says is text of a stranger: it is shortened here, and control characters are made visible where
an error is shown (`OrchError.text`). Credentials are remembered when they are read, so they are masked.
"""

from __future__ import annotations

from typing import Any, ClassVar

from orch.runner.errors import RunnerError
from orch.spec.errors import ExitCode

LONGEST_TEXT = 1200
"""Characters of a server's message that an error shows."""


class KubernetesError(RunnerError):
    """The root of what goes wrong between orch and an API server. `passing`: it may be over by itself, or
    when somebody logs in again."""

    passing: ClassVar[bool] = False

    exit_code = ExitCode.HOSTS


class BadKubeconfig(KubernetesError):
    """The kubeconfig, or what it says of the cluster or the user, cannot be used."""

    exit_code = ExitCode.CONFIG


class CredentialsUnavailable(KubernetesError):
    """The program or the file that has the user's credentials gives none."""

    passing = True


class ClusterUnreachable(KubernetesError):
    """No API server answers: waiting may help."""

    passing = True


class CertificateRefused(ClusterUnreachable):
    """The API server's certificate is not one that the kubeconfig trusts: waiting does not help."""

    passing = False


class ApiRefusal(KubernetesError):
    """The API server answered, and did not do it. `status`: its HTTP status, `reason`: its word for why."""

    def __init__(self, summary: str, *, status: int = 0, reason: str = "", **fields: str | None) -> None:
        super().__init__(summary, **fields)
        self.status = status
        self.reason = reason


class Unauthorized(ApiRefusal):
    """The API server does not know the credentials (401)."""

    passing = True


class Forbidden(ApiRefusal):
    """The user may not do this (403)."""


class QuotaExceeded(ApiRefusal):
    """A ResourceQuota of the namespace leaves no room (403)."""

    passing = True


class AdmissionDenied(ApiRefusal):
    """A webhook, a policy or another admission plugin of the cluster refuses the object. `by`: which."""

    def __init__(self, summary: str, *, by: str = "", **fields: Any) -> None:
        super().__init__(summary, **fields)
        self.by = by


class NotFound(ApiRefusal):
    """There is no such object (404)."""


class UnknownApi(NotFound):
    """The cluster has no such kind of objects: its API group or version is not installed (404)."""


class Conflict(ApiRefusal):
    """The object is there already, or was changed by another (409)."""

    passing = True


class ManagedByOthers(Conflict):
    """Fields of an applied object belong to other managers. `managers`: who, and which fields of theirs."""

    def __init__(
        self, summary: str, *, managers: tuple[tuple[str, tuple[str, ...]], ...] = (), **fields: Any
    ) -> None:
        super().__init__(summary, **fields)
        self.managers = managers


class Expired(ApiRefusal):
    """The version of a list is no longer kept (410): it is read anew."""


class Invalid(ApiRefusal):
    """The API server takes no such object (400, 422). `fields`: what is wrong, with why."""

    def __init__(self, summary: str, *, fields: tuple[tuple[str, str], ...] = (), **words: Any) -> None:
        super().__init__(summary, **words)
        self.fields = fields


class TooManyRequests(ApiRefusal):
    """The API server asks for patience (429), for longer than was waited."""

    passing = True


class ServerError(ApiRefusal):
    """The API server, or what it asks in turn, broke (5xx)."""

    passing = True


def shortened(text: object) -> str:
    """A server's text, cut where it is too long to show."""
    whole = str(text or "").strip()
    return whole if len(whole) <= LONGEST_TEXT else f"{whole[:LONGEST_TEXT]} …"
