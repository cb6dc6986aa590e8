"""Compares an approved plan with one that was just made: every difference is a row. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orch.stacks.events.kinds import kind_of
from orch.stacks.events.notation import fold, name_of, type_of
from orch.stacks.plans.saved_plan import LATER, Operation, Price, RecordedState, StackPlan

MOST_ROWS = 40


@dataclass(frozen=True)
class Difference:
    """Difference between what was approved and what is now."""

    what: str
    approved: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.approved} -> {self.now}"


def inputs_differ(approved: StackPlan, now: StackPlan) -> list[Difference]:
    """Return differences of the inputs of plans: files, states. These are known without a plan of the
    engine."""
    return [*_files(approved, now), *_states(approved, now, frozenset())]


def differences(
    approved: StackPlan, now: StackPlan, own: frozenset[str] = frozenset()
) -> tuple[Difference, ...]:
    """Return all differences that prevent applying a plan. `own`: stacks that this very call has already
    brought up, as networks that several of its fleets share."""
    return (
        *_files(approved, now),
        *_states(approved, now, own),
        *_mappings("provider", approved.providers, now.providers, ignore_new=True),
        *_decisions(approved, now),
        *_prices(approved, now),
        *_drift(approved, now),
        *_operations(approved, now, own),
    )


def notes(approved: StackPlan, now: StackPlan) -> Iterator[str]:
    """Yield notes on differences that do not prevent applying a plan."""
    for name, listed in approved.prices.items():
        other = now.prices.get(name)
        if other is not None and other.digest != listed.digest:
            dates = (
                f"of {listed.as_of}" if listed.as_of == other.as_of else f"{listed.as_of} -> {other.as_of}"
            )
            yield f"the price list of {name} is another one ({dates}); no price of this plan differs"


def rows(found: Sequence[Difference]) -> str:
    """The rows as text, the first of them where there are many."""
    lines = [str(each) for each in found[:MOST_ROWS]]
    more = len(found) - len(lines)
    return "\n".join([*lines, *([f"… {more} more rows"] if more else [])])


def _files(approved: StackPlan, now: StackPlan) -> Iterator[Difference]:
    for file in sorted({*approved.files, *now.files}):
        before, after = approved.files.get(file), now.files.get(file)
        if before != after:
            yield Difference(f"file {file}", _short(before), _short(after))


def _short(digest: str | None) -> str:
    return "missing" if digest is None else digest[:12]


def _states(approved: StackPlan, now: StackPlan, own: frozenset[str]) -> Iterator[Difference]:
    if approved.lineage != now.lineage:
        pair = (
            ("as planned", "removed since, and made anew")
            if approved.lineage
            else ("not up", "brought up by another call since")
        )
        yield Difference(f"stack {approved.stack}", *pair)
    for name in sorted({*approved.states, *now.states} - own):
        before = approved.states.get(name, RecordedState(serial=None, resources={}))
        after = now.states.get(name, RecordedState(serial=None, resources={}))
        # A call that was killed is cleared up before a plan is applied: what it was at work on is no longer
        # recorded then, and what it had made is gone.
        if before.resources == after.resources and after.pending in ((), before.pending):
            continue
        changed = [
            name_of(urn)
            for urn in sorted({*before.resources, *after.resources})
            if before.resources.get(urn) != after.resources.get(urn)
        ]
        words = [f"{fold(sorted(set(changed)))} recorded otherwise"] if changed else []
        if after.pending != before.pending:
            words.append(
                f"a call is at work on {', '.join(after.pending)}" if after.pending else "that call ended"
            )
        yield Difference(f"state of {name}", _serial(before), f"{_serial(after)}: {'; '.join(words)}")


def _serial(state: RecordedState) -> str:
    return "serial unknown" if state.serial is None else f"serial {state.serial}"


def _mappings(
    noun: str, approved: Mapping[str, str], now: Mapping[str, str], *, ignore_new: bool = False
) -> Iterator[Difference]:
    for key in sorted({*approved, *now}):
        before, after = approved.get(key), now.get(key)
        if before != after and not (ignore_new and before is None):
            yield Difference(f"{noun} {key}", before or "none", after or "none")


def _decisions(approved: StackPlan, now: StackPlan) -> Iterator[Difference]:
    if approved.place != now.place:
        yield Difference(f"place of {approved.name}", approved.place or "none", now.place or "none")
    if set(approved.nodes) != set(now.nodes):
        yield Difference(f"nodes of {approved.name}", _folded(approved.nodes), _folded(now.nodes))
    yield from _mappings("image", approved.decisions.images, now.decisions.images)
    if approved.problems != now.problems:
        yield Difference(
            "hosts kept out", ", ".join(approved.problems) or "none", ", ".join(now.problems) or "none"
        )
    keys = {each.host: each.fingerprint for each in approved.new_keys}
    yield from _mappings("host key of", keys, {each.host: each.fingerprint for each in now.new_keys})


def _folded(names: Sequence[str]) -> str:
    return fold(sorted(names)) if names else "none"


def _prices(approved: StackPlan, now: StackPlan) -> Iterator[Difference]:
    before, after = _by_nodes(approved.priced), _by_nodes(now.priced)
    rows_before = len(before)
    for nodes in sorted({*before, *after}):
        old, new = before.get(nodes), after.get(nodes)
        if old is None or new is None or old.price != new.price:
            yield Difference(f"price of {nodes}", _dollars(old), _dollars(new))
            rows_before = -1
        elif (old.machine, old.market) != (new.machine, new.market):
            yield Difference(
                f"machine of {nodes}", f"{old.machine} {old.market}", f"{new.machine} {new.market}"
            )
    if rows_before >= 0 and approved.cost != now.cost:
        what = f"cost of {approved.title} by the {approved.per}"
        yield Difference(what, _amount(approved.cost), _amount(now.cost))


def _by_nodes(priced: Sequence[Price]) -> dict[str, Price]:
    return {each.nodes: each for each in priced}


def _dollars(price: Price | None) -> str:
    return "none" if price is None else f"{_amount(price.price)} an hour ({price.machine}, {price.place})"


def _amount(amount: float | None) -> str:
    return "not known" if amount is None else f"${amount:.4f}".removesuffix("00")


def _drift(approved: StackPlan, now: StackPlan) -> Iterator[Difference]:
    before = {(each.urn, each.path): each for each in approved.drift}
    after = {(each.urn, each.path): each for each in now.drift}
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old != new:
            told = new or old
            there = f"as registered ({told.registered})" if told and told.path else "there"
            yield Difference(
                f"drift of {name_of(key[0])} {key[1]}".rstrip(),
                f"found {old.observed}" if old else there,
                f"found {new.observed}" if new else there,
            )


def _operations(approved: StackPlan, now: StackPlan, own: frozenset[str]) -> Iterator[Difference]:
    """Rows of operations; resources of one kind that differ in the same way share one."""
    before = {each.urn: each for each in approved.operations}
    after = {each.urn: each for each in now.operations}
    same: dict[tuple[str, str, str], list[str]] = {}
    for urn in sorted({*before, *after}):
        if _stack_of(urn) in own:
            continue
        row = _operation(before.get(urn), after.get(urn))
        if row is not None:
            same.setdefault((kind_of(type_of(urn)), *row), []).append(name_of(urn))
    for (kind, old, new), names in same.items():
        yield Difference(f"{kind} {fold(sorted(set(names)))}", old, new)


def _stack_of(urn: str) -> str:
    return urn.split("::", maxsplit=1)[0].rpartition(":")[2]


def _operation(old: Operation | None, new: Operation | None) -> tuple[str, str] | None:
    """Return the difference of an operation, as text for both sides; None if it does not differ."""
    if old is None or new is None or old.op != new.op:
        return _words(old), _words(new)
    if old.replaces != new.replaces:
        return f"{old.op} for {', '.join(old.replaces)}", f"{new.op} for {', '.join(new.replaces)}"
    other = [
        key
        for key in sorted({*old.inputs, *new.inputs})
        if old.inputs.get(key) != new.inputs.get(key) and not old.inputs.get(key, "").startswith(LATER)
    ]
    if other:
        return old.op, f"{new.op} with another {', '.join(other)}"
    # Without this, what only the provider tells of a change (a value that it computes) would pass.
    if old.properties != new.properties:
        return _words(old), _words(new)
    return None


def _words(each: Operation | None) -> str:
    if each is None:
        return "no change"
    return f"{each.op} ({', '.join(each.properties)})" if each.properties else each.op
