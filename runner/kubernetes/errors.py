"""Refusals of an API server, one class per cause."""

from __future__ import annotations

from orch.runner.errors import RunnerError
from orch.spec.errors import ExitCode


class KubernetesError(RunnerError):
    """An API server refused a call, or did not answer. `reason`: its word (`NotFound`), `status`: of HTTP."""

    exit_code = ExitCode.PROVISION

    def __init__(self, summary: str, *, reason: str = "", status: int = 0, **fields: str | None) -> None:
        super().__init__(summary, **fields)
        self.reason, self.status = reason, status


class ClusterUnknown(KubernetesError):
    """The kubeconfig cannot be read, or has no such context."""

    exit_code = ExitCode.CONFIG


class ClusterUnreachable(KubernetesError):
    """The API server does not answer: another try may be answered."""


class LoginRefused(KubernetesError):
    """The API server does not accept the credentials."""

    exit_code = ExitCode.CONFIG


class PermissionMissing(KubernetesError):
    """The credentials may not do this."""


class ObjectMissing(KubernetesError):
    """There is no such object, or no such kind of objects."""


class ObjectConflict(KubernetesError):
    """Somebody else changed the object, or owns a field of it, or it is there already."""

    exit_code = ExitCode.CONFLICT


class ObjectInvalid(KubernetesError):
    """The API server, or an admission webhook, refuses what an object is to be."""


class QuotaExceeded(KubernetesError):
    """A ResourceQuota of the namespace does not allow one more."""
