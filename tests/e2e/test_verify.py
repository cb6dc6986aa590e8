"""A fleet of real nodes is verified: what the kernel slows down is found and named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.nodes.stocked import stocked
from kit.support import Folder, Said, containers, docker, fleet_yaml

from orch import images
from orch.runner.verify.verification import FILES, PROGRAM

LIMIT = ("tbf", "rate", "5mbit", "burst", "64kb", "latency", "100ms")


@contextmanager
def slow_node(container: str) -> Iterator[None]:
    """All that a node sends goes at 5 Mbit/s."""
    docker("exec", container, "tc", "qdisc", "add", "dev", "eth0", "root", *LIMIT)
    try:
        yield
    finally:
        docker("exec", container, "tc", "qdisc", "del", "dev", "eth0", "root")


@contextmanager
def slow_link(container: str, address: str) -> Iterator[None]:
    """What a node sends to this address goes at 20 Mbit/s, all else at full speed."""
    tc = ("exec", container, "tc")
    docker(*tc, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "20")
    try:
        for number, rate, quantum in (("1:20", "100gbit", "60000"), ("1:10", "20mbit", "1500")):
            words = ("class", "add", "dev", "eth0", "parent", "1:", "classid", number)
            docker(*tc, *words, "htb", "rate", rate, "quantum", quantum)
        match = ("u32", "match", "ip", "dst", f"{address}/32", "flowid", "1:10")
        docker(*tc, "filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", *match)
        yield
    finally:
        docker(*tc, *["qdisc", "del", "dev", "eth0", "root"])


def node_of(folder: Folder, fleet: str, number: int) -> str:
    """The container of a node."""
    return next(name for name in containers(folder, fleet) if name.endswith(f"-{number}"))


def verify(folder: Folder, fleet: str, *words: str) -> Said:
    return folder.orch("verify", fleet, "--pairs", *words, timeout=600)


@pytest.mark.timeout(1800)  # the fleet may be brought up for it
def test_a_link_that_got_slow_falls_short_of_former_results_and_is_fine_once_it_is_mended(
    quickstart: Folder,
) -> None:
    only = ("--runs", "all_reduce,cpu", "--size", "1M")
    said = verify(quickstart, "laptop", *only)
    assert said.code == 0, said.out + said.err
    assert "orch-verify:" not in said.out + said.err
    heads, *rows = said.out.splitlines()
    assert heads.split() == ["MEASURE", "OF", "SIZE", "REACHED", "AT", "LEAST", "VERDICT"]
    assert [row.split()[0] for row in rows[:4]] == ["all_reduce", "cpu", "cpu", "pairs"]
    assert rows[-1].startswith("fleet laptop is fine: 2 nodes; all_reduce of 1 MiB ")
    assert rows[-1].endswith("gloo over TCP")

    with slow_node(node_of(quickstart, "laptop", 1)):
        said = verify(quickstart, "laptop", *only, "--json")
    assert said.code == 8, said.out + said.err
    report = said.json
    assert (report["schema"], report["fleet"], report["fine"]) == (1, "laptop", False)
    assert {(each["code"], each["kind"], *each["nodes"]) for each in report["shortfalls"]} == {
        ("ORCH444", "figure", "laptop-0", "laptop-1"),
        ("ORCH444", "link", "laptop-0", "laptop-1"),
    }
    assert report["sentence"].startswith("fleet laptop falls short: laptop-0 and laptop-1: ")
    assert "former result" in report["sentence"]

    # What fell short is no former result: the mended link is not held to it, and neither is it excused by it.
    said = verify(quickstart, "laptop", *only)
    assert said.code == 0, said.out + said.err
    assert "low" not in said.out
    runs = [run["run"] for run in quickstart.orch("ps", "-a", "--json").json["runs"]]
    assert sum(name.startswith("verify-") for name in runs) >= 3


def test_nodes_that_a_run_holds_are_not_verified_and_wrong_words_are_told(quickstart: Folder) -> None:
    quickstart.write(
        "held.yml", "type: task\nname: held-up\nnodes: 2\nimage: orch/job\ncommands: [sleep 200]\n"
    )
    assert quickstart.orch("run", "held.yml", "--detach").code == 0
    try:
        said = verify(quickstart, "laptop")
        assert said.code == 9, said.err
        assert "held-up" in said.err
    finally:
        assert quickstart.orch("stop", "held-up", "--abort").code == 0
    for words, code, told in (
        (("nothing",), 3, "the fleet nothing is not up"),
        (("laptop", "--runs", "all_reduce,gem"), 2, "'gem': choose from all_reduce"),
        (("laptop", "--size", "1T"), 2, "write a size from 4K to 64G"),
        (("laptop", "--min-busbw", "0"), 2, "a bandwidth in GB/s is above 0"),
        (("laptop", "--image", "no image"), 2, "'no image' is not the name of an image"),
        (("laptop", "--node", "laptop-7"), 2, "no node named laptop-7 in laptop"),
    ):
        said = quickstart.orch("verify", *words)
        assert (said.code, told in said.err) == (code, True), said.err


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_slow_pair_and_a_slow_node_among_eight_are_found_in_four_rounds(tmp_path: Path) -> None:
    eight = Folder(tmp_path)
    eight.write("orch.yml", f"backends:\n  - {{type: local, node_image: '{stocked('job')}'}}\n")
    eight.write("fleet.yml", fleet_yaml("eight", 8))
    said = eight.orch("up", "fleet.yml", "--yes", timeout=600)
    assert said.code == 0, said.err
    try:
        nodes = eight.orch("fleet", "show", "eight", "--json").json["fleets"][0]["nodes"]
        address = next(node["internal_ip"] for node in nodes if node["name"] == "eight-6")
        only = ("--runs", "all_reduce", "--size", "256K", "--json")
        said = eight.orch("verify", "eight", "--pairs", *only, timeout=900)
        assert said.code == 0, said.out + said.err
        with slow_link(node_of(eight, "eight", 1), address), slow_node(node_of(eight, "eight", 4)):
            said = eight.orch("verify", "eight", "--pairs", *only, timeout=900)
        assert said.code == 8, said.out + said.err
        found = {(each["kind"], *each["nodes"]) for each in said.json["shortfalls"]}
        assert {("node", "eight-4"), ("link", "eight-1", "eight-6")} <= found
        assert {kind for kind, *_ in found} <= {"node", "link", "figure"}
        assert len([each for each in found if each[0] in ("node", "link")]) == 2
        log = (eight.path / ".orch" / "runs" / said.json["run"] / "logs" / "0.log").read_text()
        rounds = {line.partition('"round": ')[2].partition(",")[0] for line in log.splitlines()} - {""}
        assert rounds == {"1", "2", "3", "4"}
    finally:
        said = eight.orch("down", "fleet.yml", "--yes", timeout=300)
        assert said.code == 0, said.err


def test_the_program_runs_by_hand_with_nothing_else_of_orch(tmp_path: Path) -> None:
    for name in FILES:
        shutil.copy(PROGRAM / name, tmp_path)
    words = (
        "torchrun --nproc_per_node=2 verify_program.py --pairs --runs all_reduce,gemm,cpu,disk --size 256K"
    )
    image = images.ensure("job", progress=print)
    mount = f"{tmp_path}:/verify:ro"
    told = docker(
        "run",
        "--rm",
        "--network=none",
        "-v",
        mount,
        "-w",
        "/verify",
        "--entrypoint",
        "sh",
        image,
        "-c",
        words,
    )
    lines = [line.split() for line in told.splitlines()]
    assert [line[0] for line in lines] == [
        *("start", "rank", "rank", "all_reduce", "all_reduce", "skipped", "cpu", "disk_write", "disk_read"),
        *("skipped", "end"),
    ]
