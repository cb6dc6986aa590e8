"""Addresses that verbs listen on."""

from __future__ import annotations

import typer

from orch.cli.errors import UsageError

Address = tuple[str, int]


def address_of(text: str, option: str) -> Address:
    """`[HOST:]PORT` of an option; 127.0.0.1 without HOST. Raises BadParameter."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise typer.BadParameter(f"{text!r} is not [HOST:]PORT", param_hint=option)
    return host.strip("[]") or "127.0.0.1", int(port)


def cannot_listen(who: str, address: Address, option: str, error: OSError) -> UsageError:
    return UsageError(
        f"{who} cannot listen on {address[0]}:{address[1]}",
        detail=error.strerror or str(error),
        hint=f"choose another port with `{option} [HOST:]PORT`; 0 takes any free one",
    )
