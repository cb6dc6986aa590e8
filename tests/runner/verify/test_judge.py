"""What a verification must find: floors, former results, the nodes among themselves, and the interconnect."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest

from orch.catalog.load import SHIPPED, catalog
from orch.catalog.nccl_floors import KEPT, anchor, anchors
from orch.runner.verify.judge import Terms, VerifiedNode, judge
from orch.runner.verify.report import Key, Report, shown_rows, size_text
from orch.runner.verify.results import (
    Collective,
    End,
    Figure,
    PairFigure,
    RankPlace,
    Results,
    Skipped,
    Start,
    UsedTransport,
)

GIB = 1 << 30
P5 = "p5.48xlarge"


def fleet(nodes: int = 2, kind: str | None = P5, *, gpus: int = 8, interconnect: str = "efa") -> Terms:
    described = tuple(VerifiedNode(f"n-{number}", kind, gpus) for number in range(nodes))
    transports = {"efa": ("efa",), "ethernet": ("socket",)}.get(interconnect, ())
    return Terms("lab", described, interconnect, transports)


def results(terms: Terms, *, backend: str = "nccl", family: str = "efa", cards: int = 8) -> Results:
    """What a program tells of a good fleet, before anything was measured."""
    ranks = tuple(
        RankPlace(kind="rank", rank=rank, node=rank // cards, card="NVIDIA H100 80GB HBM3")
        for rank in range(len(terms.nodes) * cards)
    )
    network = {"efa": "AWS Libfabric", "socket": "Socket", "ib": "IB"}[family]
    used = tuple(
        UsedTransport(
            kind="transport",
            rank=each.rank,
            network=network,
            family=family,
            provider="efa" if family == "efa" else None,
            gpu_direct=True,
            channels={"NET/AWS Libfabric/GDRDMA": 8},
        )
        for each in ranks
    )
    return Results(
        Start.model_validate(
            {
                "kind": "start",
                "v": 1,
                "backend": backend,
                "library": "NCCL 2.27.3" if backend == "nccl" else "gloo",
                "torch": "2.9.0",
                "ranks": len(ranks),
                "nodes": len(terms.nodes),
            }
        ),
        ranks,
        transports=used if backend == "nccl" else (),
        seconds=End(kind="end", seconds=1.0).seconds,
    )


def collective(busbw: float, size: int = 2 * GIB, measure: str = "all_reduce", wrong: int = 0) -> Collective:
    return Collective.model_validate(
        {
            "kind": "collective",
            "measure": measure,
            "size": size,
            "seconds": 1.0,
            "algbw": busbw,
            "busbw": busbw,
            "wrong": wrong,
        }
    )


def figures(measure: str, values: Mapping[int, float], *, of_nodes: bool = False) -> tuple[Figure, ...]:
    place = "node" if of_nodes else "rank"
    return tuple(
        Figure.model_validate({"kind": "figure", "measure": measure, place: at, "value": value, "unit": "u"})
        for at, value in values.items()
    )


def texts(report: Report) -> list[str]:
    return [each.text for each in report.shortfalls]


# -- floors


def test_the_floors_are_anchors_of_types_that_the_catalogue_knows() -> None:
    known = [each.name for each in catalog().types.values()]
    from fnmatch import fnmatchcase

    for each in anchors(SHIPPED / "nccl_floors.csv"):
        assert any(fnmatchcase(name, each.instance_type) for name in known), each
        assert each.floor == pytest.approx(0.85 * each.busbw)
        assert each.source


def test_a_floor_is_of_exactly_its_type_number_of_nodes_collective_and_size() -> None:
    found = anchor(P5, 2, "all_reduce", 2 * GIB)
    assert found is not None
    assert (found.busbw, KEPT) == (443, 0.85)
    assert anchor("gpu-h100-sxm_8gpu-128vcpu-1600gb", 2, "all_reduce", GIB) is not None
    for other in (
        ("p5.4xlarge", 2, "all_reduce", 2 * GIB),
        (P5, 4, "all_reduce", 2 * GIB),
        (P5, 2, "all_gather", 2 * GIB),
        (P5, 2, "all_reduce", GIB),
    ):
        assert anchor(*other) is None


def test_bandwidth_below_the_floor_of_its_type_falls_short_and_above_it_is_fine() -> None:
    terms = fleet()
    good = judge(replace(results(terms), collectives=(collective(380.0),)), terms)
    assert good.fine
    assert (good.rows[0].judgement, good.rows[0].limit) == ("ok", pytest.approx(376.55))
    assert "awsome-distributed-training" in good.rows[0].basis
    assert good.sentence == (
        "fleet lab is fine: 2 nodes; all_reduce of 2 GiB 380 GB/s; NCCL 2.27.3: AWS Libfabric, provider efa; "
        "channels NET/AWS Libfabric/GDRDMA"
    )
    low = judge(replace(results(terms), collectives=(collective(370.0),)), terms)
    assert [(each.code, each.kind, each.nodes) for each in low.shortfalls] == [
        ("ORCH444", "figure", ("n-0", "n-1"))
    ]
    assert low.sentence.startswith(
        "fleet lab falls short: all_reduce of 2 GiB reaches 370 GB/s of 376.6: 0.85 of 443"
    )


def test_each_size_that_has_a_floor_is_held_to_its_own() -> None:
    terms = fleet()
    sweep = (collective(300.0, GIB), collective(400.0, 2 * GIB), collective(401.0, 16 * GIB))
    report = judge(replace(results(terms), collectives=sweep), terms)
    assert [row.judgement for row in report.rows] == ["no floor", "ok", "low"]
    assert shown_rows(report.rows) == report.rows[1:]


@pytest.mark.parametrize(
    "terms",
    [
        fleet(4),
        fleet(2, None),
        replace(fleet(), simulated=True),
        replace(fleet(), nodes=(VerifiedNode("a", P5, 8), VerifiedNode("b", "p5e.48xlarge", 8))),
    ],
    ids=["more nodes", "no type", "a rehearsal", "several types"],
)
def test_without_a_floor_for_this_very_fleet_none_is_made_up_and_that_is_told(terms: Terms) -> None:
    report = judge(replace(results(terms), collectives=(collective(1.0),)), terms)
    assert report.fine
    assert (report.rows[0].judgement, report.rows[0].limit) == ("no floor", None)
    assert "(nothing known to compare it with)" in report.sentence


def test_what_was_asked_for_comes_before_the_catalogue_and_that_before_former_results() -> None:
    former: dict[Key, list[float]] = {("all_reduce", "", 2 * GIB): [100.0, 104.0, 96.0]}
    measured = (collective(90.0, GIB), collective(90.0))
    asked = replace(fleet(), min_busbw=80.0, min_busbw_by="asked", former=former)
    report = judge(replace(results(asked), collectives=measured), asked)
    assert [(row.limit, row.basis) for row in report.rows][1] == (80.0, "asked")
    assert report.fine
    catalogued = replace(fleet(), former=former)
    assert not judge(replace(results(catalogued), collectives=measured), catalogued).fine
    own = replace(fleet(3), former=former)
    report = judge(replace(results(own), collectives=measured), own)
    assert (report.rows[1].limit, report.rows[1].judgement) == (85.0, "ok")
    assert report.rows[1].basis == "0.85 of 100, the median of 3 former results"
    report = judge(replace(results(own), collectives=(collective(84.0),)), own)
    assert [row.judgement for row in report.rows] == ["low"]


def test_the_bandwidth_that_is_asked_for_is_of_all_reduce_or_of_what_was_run_without_it() -> None:
    terms = replace(fleet(4), min_busbw=50.0)
    both = (collective(60.0), collective(20.0, measure="alltoall"))
    assert judge(replace(results(terms), collectives=both), terms).fine
    assert not judge(replace(results(terms), collectives=both[1:]), terms).fine


def test_containers_of_one_machine_are_held_to_less_and_not_compared_with_each_other() -> None:
    former: dict[Key, list[float]] = {("all_reduce", "", 2 * GIB): [1.0]}
    terms = replace(fleet(2, None, gpus=0, interconnect="ethernet"), one_machine=True, former=former)
    found = replace(
        results(terms, backend="gloo", cards=1),
        collectives=(collective(0.2),),
        figures=figures("cpu", {0: 4.0, 1: 1.0}, of_nodes=True),
    )
    report = judge(found, terms)
    assert report.fine
    assert "nodes are not compared with each other: they are containers of one machine" in report.notes
    assert not judge(replace(found, collectives=(collective(0.02),)), terms).fine


def test_values_that_come_out_wrong_fail_whatever_the_bandwidth() -> None:
    terms = fleet()
    report = judge(replace(results(terms), collectives=(collective(500.0, wrong=3),)), terms)
    assert texts(report) == ["all_reduce of 2 GiB: 3 values came out wrong"]
    assert report.rows[0].judgement == "wrong"


# -- cards and nodes


def test_a_card_that_is_slower_than_its_like_is_named_with_its_node() -> None:
    terms = fleet()
    values = dict.fromkeys(range(16), 700.0) | {11: 580.0, 3: 640.0}
    report = judge(replace(results(terms), figures=figures("gemm", values)), terms)
    assert texts(report) == ["n-1 card 3: gemm 580 u of 595: 0.85 of 700, the median of 16 cards"]
    assert (report.shortfalls[0].kind, report.shortfalls[0].nodes) == ("card", ("n-1",))


def test_of_two_cards_the_slower_one_is_found_too() -> None:
    terms = fleet()
    report = judge(
        replace(results(terms, cards=1), figures=figures("memory", {0: 3_000.0, 1: 1_500.0})), terms
    )
    assert [each.nodes for each in report.shortfalls] == [("n-1",)]


def test_a_node_that_is_slower_than_its_like_is_named_and_one_of_another_type_is_no_like() -> None:
    terms = fleet(4)
    values = {0: 3.0, 1: 3.1, 2: 3.0, 3: 1.9}
    found = replace(results(terms), figures=figures("cpu", values, of_nodes=True))
    assert [(each.kind, each.nodes) for each in judge(found, terms).shortfalls] == [("node", ("n-3",))]
    other = replace(terms, nodes=(*terms.nodes[:3], VerifiedNode("n-3", "p4d.24xlarge", 8)))
    assert judge(found, other).fine


def test_a_card_that_reached_more_before_falls_short_although_it_is_alone() -> None:
    former: dict[Key, list[float]] = {("gemm", "n-0 card 0", 0): [700.0, 710.0, 690.0]}
    terms = replace(fleet(1), former=former)
    report = judge(replace(results(terms, cards=1), figures=figures("gemm", {0: 500.0})), terms)
    assert texts(report) == ["n-0 card 0: gemm 500 u of 595: 0.85 of 700, the median of 3 former results"]
    assert judge(replace(results(terms, cards=1), figures=figures("gemm", {0: 690.0})), terms).fine


# -- pairs


def pairs(nodes: int, slow: Mapping[tuple[int, int], float]) -> tuple[PairFigure, ...]:
    return tuple(
        PairFigure(kind="pair", round=1, a=a, b=b, bandwidth=slow.get((a, b), 40.0), again=again)
        for a, b in itertools.combinations(range(nodes), 2)
        for again in (False, True)
    )


def test_a_slow_node_and_a_slow_link_are_named() -> None:
    terms = fleet(8)
    slow = {pair: 10.0 for pair in itertools.combinations(range(8), 2) if 5 in pair} | {(1, 2): 4.0}
    report = judge(replace(results(terms), pairs=pairs(8, slow)), terms)
    assert texts(report) == [
        "node n-5 is slow with any partner: 10 GB/s where others reach 40",
        "the link between n-1 and n-2 is slow: 4 GB/s where others reach 40",
    ]
    assert [(each.kind, each.nodes) for each in report.shortfalls] == [
        ("node", ("n-5",)),
        ("link", ("n-1", "n-2")),
    ]
    assert [(row.subject, row.judgement) for row in report.rows] == [
        ("", "no floor"),
        ("n-5", "low"),
        ("n-1 <-> n-2", "low"),
    ]


def test_a_pair_that_was_slow_once_only_is_shown_with_what_it_reached_then() -> None:
    terms = fleet(8)
    slow = pairs(8, {(1, 2): 4.0})
    report = judge(
        replace(results(terms), pairs=(*(each for each in slow if not each.again), *pairs(8, {})[1::2])),
        terms,
    )
    assert report.fine
    assert [(row.subject, row.value, row.judgement) for row in report.rows[1:]] == [
        ("n-1 <-> n-2", 40.0, "ok")
    ]


def test_the_one_pair_of_two_nodes_is_held_to_what_it_reached_before() -> None:
    former: dict[Key, list[float]] = {("pairs", "", 0): [40.0]}
    terms = replace(fleet(2), former=former)
    assert judge(replace(results(terms), pairs=pairs(2, {})), terms).fine
    (short,) = judge(replace(results(terms), pairs=pairs(2, {(0, 1): 30.0})), terms).shortfalls
    assert (short.kind, short.nodes) == ("link", ("n-0", "n-1"))
    assert short.text.startswith("n-0 and n-1: 30 GB/s of 34: 0.85 of 40")


# -- the interconnect


def test_a_fall_back_to_sockets_is_a_failure_of_the_nodes_that_did_whatever_the_bandwidth() -> None:
    terms = fleet(4)
    found = results(terms)
    used = tuple(
        each.model_copy(update={"network": "Socket", "family": "socket", "provider": None})
        if each.rank // 8 in (1, 2)
        else each
        for each in found.transports
    )
    report = judge(replace(found, transports=used, collectives=(collective(9_999.0),)), terms)
    assert [(each.code, each.nodes, each.text) for each in report.shortfalls] == [
        ("ORCH445", ("n-1", "n-2"), "n-[1-2] used Socket, not efa")
    ]
    assert report.sentence == "fleet lab falls short: n-[1-2] used Socket, not efa"


def test_a_process_whose_log_tells_nothing_proves_no_interconnect() -> None:
    terms = fleet()
    found = results(terms)
    report = judge(replace(found, transports=found.transports[:8]), terms)
    assert texts(report) == ["n-1 used nothing that its log tells, not efa"]


def test_one_node_uses_no_interconnect_and_without_a_rule_that_is_told() -> None:
    alone = fleet(1)
    assert judge(results(alone, family="socket"), alone).fine
    unknown = fleet(2, interconnect="instant-cluster")
    report = judge(results(unknown, family="ib"), unknown)
    assert report.fine
    assert "which transport `instant-cluster` is was not asserted: there is no rule for it" in report.notes


def test_on_plain_ethernet_anything_quicker_is_only_told() -> None:
    terms = fleet(interconnect="ethernet")
    report = judge(results(terms, family="ib"), terms)
    assert report.fine
    assert "n-[0-1] used IB, not ethernet" in report.notes


def test_accelerators_that_the_image_does_not_see_were_not_verified() -> None:
    terms = fleet()
    report = judge(results(terms, backend="gloo", cards=1), terms)
    assert texts(report) == ["PyTorch of the image sees no accelerators on n-[0-1]: they were not verified"]
    assert judge(results(terms, backend="gloo", cards=1), replace(terms, simulated=True)).fine


def test_a_fabric_without_gpu_direct_is_told() -> None:
    terms = fleet()
    found = results(terms)
    used = tuple(each.model_copy(update={"gpu_direct": False}) for each in found.transports)
    report = judge(replace(found, transports=used), terms)
    assert report.fine
    assert "no channel of n-[0-1] has GPUDirect RDMA" in report.notes


def test_what_was_skipped_and_what_could_not_be_read_is_told() -> None:
    terms = fleet()
    skipped = tuple(
        Skipped.model_validate({"kind": "skipped", "measure": measure, "why": why, "node": node})
        for measure, why, node in (
            ("all_reduce", "there is one process", None),
            ("alltoall", "there is one process", None),
            ("disk", "too little is free in /tmp", 1),
        )
    )
    report = judge(replace(results(terms), skipped=skipped, unread=2), terms)
    assert report.notes == (
        "skipped: all_reduce, alltoall: there is one process",
        "skipped: disk of n-1: too little is free in /tmp",
        "2 lines of the nodes' output could not be read",
    )


def test_of_very_many_cards_people_see_the_ends_and_what_falls_short() -> None:
    terms = fleet(4)
    values = {rank: 700.0 + rank for rank in range(32)} | {9: 300.0, 20: 400.0}
    report = judge(replace(results(terms), figures=figures("gemm", values)), terms)
    assert len(report.rows) == 32
    assert [(row.subject, row.judgement) for row in shown_rows(report.rows)] == [
        ("n-1 card 1", "low"),
        ("n-2 card 4", "low"),
        ("n-3 card 7", "ok"),
    ]


def test_a_rehearsal_says_that_its_containers_are_not_its_machines() -> None:
    terms = replace(fleet(), simulated=True, one_machine=True)
    (note,) = judge(results(terms, backend="gloo", cards=1), terms).notes
    assert note.startswith("a rehearsal: ")


def test_sizes_are_told_in_the_largest_whole_unit() -> None:
    assert [size_text(size) for size in (2 * GIB, 4 << 20, 64 << 10, 1_000)] == [
        "2 GiB",
        "4 MiB",
        "64 KiB",
        "1000 bytes",
    ]
