"""Reads moments of a command line: days, times and ages."""

from __future__ import annotations

import datetime

import typer

UTC = datetime.timezone.utc


def moment_of(text: str, now: float | None = None) -> datetime.datetime:
    """The moment of `--since`: a time, or an age before `now`, in seconds since the epoch; by default this
    machine's. Raises BadParameter."""
    from orch.spec.grammar.values import Problem, parse_duration

    try:
        age = parse_duration(text)
    except Problem:
        age = None
    try:
        if age is not None:
            present = datetime.datetime.now(UTC) if now is None else datetime.datetime.fromtimestamp(now, UTC)
            return present - datetime.timedelta(seconds=age)
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is neither a time nor an age", param_hint="--since") from None


def moment_in_words(text: str, now: float, option: str) -> float:
    """A day or time, of UTC unless it says otherwise, or an age before now. Raises BadParameter."""
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        try:
            return moment_of(text, now).timestamp()
        except typer.BadParameter as error:
            raise typer.BadParameter(error.message, param_hint=option) from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        return aware.astimezone(UTC).timestamp()
    except OverflowError as error:  # the first day of all, east of Greenwich
        raise typer.BadParameter(f"{text!r} is no time of UTC", param_hint=option) from error
