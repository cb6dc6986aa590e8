"""Errors of building images, one class per cause."""

from __future__ import annotations

from orch.spec.errors import ExitCode, OrchError


class ImageError(OrchError):
    """Root of this package's errors."""

    exit_code: ExitCode = ExitCode.PROVISION


class UnknownImage(ImageError):
    """A name under `orch/` that this version has no folder for."""

    exit_code: ExitCode = ExitCode.CONFIG


class DockerUnavailable(ImageError):
    """The docker command is missing, or its daemon does not answer."""


class BaseUnavailable(ImageError):
    """Neither Docker Hub nor a Debian mirror provides a base image."""


class FolderStays(ImageError):
    """The folder of a local volume could not be removed."""


class BuildFailed(ImageError):
    """`docker build` ended with an error."""
