"""What was kept of a run's use: how a look is written down, and what several looks say over time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from orch.runner.ledger.history.metric_samples import EVERY_S, Sample
from orch.runner.metrics.figures import Figures, Rate, figures
from orch.runner.metrics.reading import Device, Reading, Target, Use
from orch.runner.node_api.connector import NodeResult

# What a node tells is not trusted: one that tells of very many devices or interfaces is left out.
MOST_BYTES = 32_768
# Samples that are no further apart are of one watch: now and then one is late, or is lost.
SEEN_S = 3 * EVERY_S
_READING = TypeAdapter(Reading)
_READINGS = TypeAdapter(tuple[Reading | None, ...])


def packed(results: Sequence[NodeResult[Reading]]) -> str | None:
    """A look at the ranks of a run as text; None where no node answered. What the whole of a node uses is
    left out, a rank that did not answer is null."""
    texts = [_packed(result.value) if result.value is not None else "null" for result in results]
    return None if all(text == "null" for text in texts) else f"[{','.join(texts)}]"


def _packed(reading: Reading) -> str:
    try:
        data = _READING.dump_json(replace(reading, node=Use()), exclude_defaults=True)
    except ValueError:  # a name of an interface that is no text
        return "null"
    return data.decode() if len(data) <= MOST_BYTES else "null"


@dataclass(frozen=True)
class Moment:
    """What each rank used at a moment, in seconds since the epoch; rates are since the moment before, so many
    seconds earlier."""

    at: float
    seconds: float
    rows: tuple[Figures, ...]


def moments(targets: Sequence[Target], samples: Iterable[Sample]) -> tuple[Moment, ...]:
    """What the ranks of an attempt used; a sample that cannot be read is left out.

    Counters are kept, not rates: what was used between two samples that are far apart is their mean.
    """
    found: list[Moment] = []
    before: list[NodeResult[Reading]] = [NodeResult(target.node) for target in targets]
    for sample in samples:
        try:
            readings = _READINGS.validate_json(sample.readings)
        except ValidationError:
            continue
        if len(readings) != len(targets):
            continue
        now = [NodeResult(target.node, each) for target, each in zip(targets, readings, strict=True)]
        seconds = sample.at - found[-1].at if found else 0.0
        found.append(Moment(sample.at, seconds, figures(targets, before, now)))
        before = [new if new.value is not None else old for old, new in zip(before, now, strict=True)]
    return tuple(found)


def over_time(found: Sequence[Moment]) -> tuple[Figures, ...]:
    """A row for each rank: the mean of what it used of CPU, network and accelerators, the most of memory.

    A moment counts in the mean for the time before it: they are not equally far apart."""
    weights = [moment.seconds for moment in found]
    by_rank = zip(*(moment.rows for moment in found), strict=True)
    return tuple(_over_time(list(zip(rows, weights, strict=True))) for rows in by_rank)


def spans(found: Sequence[Moment], count: int) -> tuple[tuple[Moment, ...], ...]:
    """The moments of so many equal parts of the time from the first to the last.

    A part that is shorter than the time between two samples has the next moment, which tells what was used
    before it. It has none where nobody saw to the run for longer.
    """
    if not found:
        return ()
    first, length = found[0].at, (found[-1].at - found[0].at) / count
    parts: list[list[Moment]] = [[] for _ in range(count)]
    for moment in found:
        parts[min(count - 1, int((moment.at - first) / length)) if length > 0 else 0].append(moment)
    following: Moment | None = None
    for index in reversed(range(count)):
        if parts[index]:
            following = parts[index][0]
        elif following is not None and following.seconds <= SEEN_S:
            parts[index] = [following]
    return tuple(map(tuple, parts))


def _over_time(rows: Sequence[tuple[Figures, float]]) -> Figures:
    known = [(row, weight) for row, weight in rows if row.problem is None]
    if not known:
        return rows[-1][0]
    return replace(
        known[-1][0],
        cores=_mean((row.cores, weight) for row, weight in known),
        memory_bytes=_most(row.memory_bytes for row, _ in known),
        network=_mean_rate([(row.network, weight) for row, weight in known]),
        fabric=_mean_rate([(row.fabric, weight) for row, weight in known]),
        devices=_devices(known),
    )


def _devices(rows: Sequence[tuple[Figures, float]]) -> tuple[Device, ...] | None:
    by_index: dict[int, list[tuple[Device, float]]] = {}
    for row, weight in rows:
        for device in row.devices or ():
            by_index.setdefault(device.index, []).append((device, weight))
    found = [
        Device(
            index,
            _mean((device.percent, weight) for device, weight in seen),
            _most(device.memory_bytes for device, _ in seen),
            seen[-1][0].memory_total_bytes,
        )
        for index, seen in sorted(by_index.items())
    ]
    return tuple(found) or None


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    if not total:
        return sum(value for value, _ in known) / len(known) if known else None
    return sum(value * weight for value, weight in known) / total


def _mean_rate(rates: Sequence[tuple[Rate | None, float]]) -> Rate | None:
    known = [(rate, weight) for rate, weight in rates if rate is not None]
    received = _mean((rate.received, weight) for rate, weight in known)
    sent = _mean((rate.sent, weight) for rate, weight in known)
    return None if received is None or sent is None else Rate(received, sent)
