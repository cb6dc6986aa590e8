"""A review as one HTML file that needs nothing else: all rows, and the plan as a graph.

It loads nothing and runs no script, and its policy forbids both to whatever might be in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orch.review.markdown import (
    COST_HEADS,
    MARKS,
    VERDICT_WORDS,
    basis_line,
    cost_line,
    cost_notes,
    cost_row,
)
from orch.review.model import OPS, Review, StackReview
from orch.review.picture import words
from orch.templates import render

_ROW = 26
"""Height of a row of the graph, in pixels; the columns' places and widths follow."""
_COLUMNS = ((8, 210), (258, 130), (428, 560))
_LETTERS = 78
"""What fits the last column."""


@dataclass(frozen=True)
class Box:
    """A box of the graph, in pixels."""

    x: int
    y: int
    width: int
    text: str
    op: str


@dataclass(frozen=True)
class Edge:
    """A line of the graph, as a path of SVG that holds numbers alone."""

    path: str


@dataclass(frozen=True)
class Graph:
    """Stacks, their operations, and the groups of resources of each, from left to right."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def html(review: Review) -> str:
    """The page. The same review gives the same bytes."""
    return render(
        "review.html.j2",
        review=review,
        verdict=VERDICT_WORDS[review.verdict],
        cost=cost_line(review),
        cost_heads=COST_HEADS,
        costs=[cost_row(stack, cost) for stack, cost in review.costs()],
        notes=list(cost_notes(review)),
        basis=basis_line(review),
        graph=graph(review),
        marks=MARKS,
        words=words,
        verdicts=VERDICT_WORDS,
        ops=[op for op in OPS if op != "same"],
    )


def graph(review: Review) -> Graph:
    """The graph of all stacks that change or have no plan."""
    boxes: list[Box] = []
    edges: list[Edge] = []
    row = 0
    for stack in review.stacks:
        rows = list(_rows(stack))
        if not rows:
            continue
        top = row
        for op, texts in rows:
            first = row
            for text in texts:
                boxes.append(_box(2, row, text, op))
                edges.append(_edge(1, first, row))
                row += 1
            boxes.append(_box(1, first, f"{MARKS.get(op, '!')} {op}", op))
            edges.append(_edge(0, top, first))
        boxes.append(_box(0, top, stack.title, stack.verdict))
    width = _COLUMNS[-1][0] + _COLUMNS[-1][1] + 8
    return Graph(width, row * _ROW + 8, tuple(boxes), tuple(edges))


def _rows(stack: StackReview) -> Iterator[tuple[str, list[str]]]:
    """Operations of a stack, each with its groups of resources."""
    if stack.failure is not None:
        yield "failed", [stack.failure.summary]
    for op in OPS:
        groups = [each for each in stack.groups if each.op == op]
        if groups:
            yield op, [_text(each.kind, each.names, each.number) for each in groups]


def _text(kind: str, names: str, number: int) -> str:
    return f"{kind} {names}" + (f" x{number}" if number > 1 else "")


def _box(column: int, row: int, text: str, op: str) -> Box:
    x, width = _COLUMNS[column]
    letters = _LETTERS if column == len(_COLUMNS) - 1 else width // 8
    shown = text if len(text) <= letters else f"{text[: letters - 1]}…"
    return Box(x, row * _ROW + 6, width, shown, op)


def _edge(column: int, start: int, end: int) -> Edge:
    """From the right side of a box to the left side of one in the next column."""
    x, width = _COLUMNS[column]
    y1, y2 = start * _ROW + 16, end * _ROW + 16
    right, left = x + width, _COLUMNS[column + 1][0]
    middle = (right + left) // 2
    return Edge(f"M{right} {y1} C{middle} {y1} {middle} {y2} {left} {y2}")
