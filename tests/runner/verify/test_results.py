"""The results of a verification are read as somebody else's text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch.runner.verify.results import MOST_CHARACTERS, Results, is_result, line_of, read

START = {
    "v": 1,
    "kind": "start",
    "backend": "nccl",
    "library": "NCCL 2.28.9",
    "torch": "2.11.0",
    "ranks": 4,
    "nodes": 2,
}


def said(**fields: Any) -> str:
    return f"orch-verify: {json.dumps({'v': 1, **fields})}"


COLLECTIVE = {
    "kind": "collective",
    "measure": "all_reduce",
    "size": 1 << 20,
    "seconds": 0.01,
    "algbw": 0.1,
    "busbw": 0.15,
    "wrong": 0,
}
FIGURE = {"kind": "figure", "measure": "gemm", "rank": 1, "value": 700.5, "unit": "TFLOP/s", "by_size": {}}
PAIR = {"kind": "pair", "round": 1, "a": 1, "b": 0, "bandwidth": 40.0, "again": False}


def test_what_the_program_prints_is_read_and_what_the_job_prints_beside_it_is_left() -> None:
    found = read(
        [
            "WARNING:torch.distributed.run:",
            said(**START),
            said(kind="rank", rank=0, node=0, card="NVIDIA H100 80GB HBM3", memory_mib=81079),
            said(**COLLECTIVE),
            said(**FIGURE),
            said(**PAIR),
            said(**{**PAIR, "again": True, "bandwidth": 50.0}),
            said(kind="skipped", measure="pairs", why="there is one node"),
            said(kind="transport", rank=0, network="IB", family="ib", channels={"NET/IB": 2}, devices=["a"]),
            said(kind="end", seconds=12.5),
        ]
    )
    assert found.ended
    assert (found.seconds, found.unread) == (12.5, 0)
    assert [(each.rank, each.node, each.card) for each in found.ranks] == [(0, 0, "NVIDIA H100 80GB HBM3")]
    assert found.measured_pairs(again=False) == {(0, 1): 40.0}
    assert found.measured_pairs(again=True) == {(0, 1): 50.0}
    assert [each.busbw for each in found.collectives] == [0.15]
    assert [each.value for each in found.figures] == [700.5]
    assert found.transports[0].channels == {"NET/IB": 2}
    assert found.skipped[0].why == "there is one node"


@pytest.mark.parametrize(
    "text",
    [
        "orch-verify:",
        "orch-verify: {",
        "orch-verify: []",
        "orch-verify: " + "[" * 3_000,
        "orch-verify: null",
        said(kind="unknown"),
        said(**{**START, "v": 2}),
        said(**{**START, "ranks": 0}),
        said(**{**START, "ranks": 10**12}),
        said(**{**START, "backend": "carrier pigeon"}),
        said(**{**COLLECTIVE, "measure": "../../etc"}),
        said(**{**COLLECTIVE, "busbw": "100"}),
        said(**{**COLLECTIVE, "busbw": -1.0}),
        said(**{**COLLECTIVE, "busbw": 1e300}),
        "orch-verify: " + json.dumps({**COLLECTIVE, "busbw": float("nan")}),
        "orch-verify: " + json.dumps({**COLLECTIVE, "busbw": float("inf")}),
        said(**{**COLLECTIVE, "size": 1 << 60}),
        said(**{**COLLECTIVE, "wrong": True}),
        said(**{**FIGURE, "rank": -1}),
        said(**{**FIGURE, "unit": "x" * 2_000}),
        said(**{**FIGURE, "filler": "x" * MOST_CHARACTERS}),
        said(kind="transport", rank=0, channels={str(number): 1 for number in range(65)}),
    ],
)
def test_a_line_that_is_none_of_the_programs_counts_as_unread(text: str) -> None:
    assert is_result(text)
    assert line_of(text) is None
    assert read([text]) == Results(unread=1)


def test_what_is_told_twice_counts_once_and_the_first_is_kept() -> None:
    found = read(
        [
            said(**FIGURE),
            said(**{**FIGURE, "value": 9e9}),
            said(**PAIR),
            said(**{**PAIR, "a": 0, "b": 1, "bandwidth": 9e9}),
            said(kind="end", seconds=1.0),
            said(kind="end", seconds=2.0),
        ]
    )
    assert [each.value for each in found.figures] == [700.5]
    assert found.measured_pairs(again=False) == {(0, 1): 40.0}
    assert (found.seconds, found.unread) == (1.0, 3)


def test_escape_sequences_of_a_node_are_shown_as_what_they_are() -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07"
    found = read(
        [
            said(kind="error", rank=0, text=hostile, warnings=[hostile]),
            said(kind="transport", rank=1, network=hostile, devices=[hostile], channels={hostile: 1}),
            said(kind="skipped", measure="disk", why=hostile, node=0),
        ]
    )
    assert found.errors[0].text == "<1b>[2J<1b>]0;owned<07>"
    words = (found.errors[0].warnings[0], found.transports[0].network, *found.transports[0].devices)
    assert {*words, *found.transports[0].channels, found.skipped[0].why} == {"<1b>[2J<1b>]0;owned<07>"}


def test_results_without_an_end_did_not_end() -> None:
    assert not read([said(**START), said(**COLLECTIVE)]).ended
    assert not read([said(kind="end", seconds=1.0)]).ended
