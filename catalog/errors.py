"""What can go wrong with the catalogue, one class per cause."""

from __future__ import annotations

from orch.spec.errors import ExitCode, OrchError


class CatalogError(OrchError):
    """The root of the catalogue's errors."""

    exit_code = ExitCode.PROVISION


class BadCatalogFile(CatalogError):
    """A data file that does not read: a refreshed one was edited or cut short."""


class NotRefreshable(CatalogError):
    """No price API is asked for this backend."""

    exit_code = ExitCode.USAGE


class NoSdk(CatalogError):
    """A cloud cannot be asked: the library that asks it is not installed."""

    exit_code = ExitCode.CONFIG


class RefreshFailed(CatalogError):
    """The cloud was not reached, knows no credentials, or refused them."""
