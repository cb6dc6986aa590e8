"""The example that measures interconnects: its table from two nodes, and what it reads in a log of NCCL."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from kit.support import ROOT, Folder

NCCL = ROOT / "examples" / "nccl"


@pytest.mark.timeout(900)  # the fleet may be brought up for it
def test_two_local_nodes_end_with_a_table_of_bandwidths_and_the_transport(quickstart: Folder) -> None:
    files = [shutil.copy(NCCL / name, quickstart.path) for name in ("local.yml", "busbw.py")]
    try:
        said = quickstart.orch("run", "local.yml", timeout=280)
    finally:
        for file in files:
            Path(file).unlink()
    assert said.code == 0, said.err
    lines = [line.partition("] ")[2] for line in said.out.splitlines() if line.startswith("[0 laptop-0]")]
    first = lines.index("# all_reduce of float32, 2 ranks on 2 nodes, gloo")
    nodes = quickstart.orch("fleet", "show", "laptop", "--json").json["fleets"][0]["nodes"]
    ends = [node["internal_ip"] for node in nodes]
    assert lines[first + 1] == "# transport: TCP from {} to {}".format(*ends)
    heads = lines[first + 2].replace(" [", "[").split()
    assert heads == ["size[B]", "time[us]", "algbw[GB/s]", "busbw[GB/s]", "wrong"]
    rows = [tuple(map(float, line.split())) for line in lines[first + 3 : -1]]
    assert [row[0] for row in rows] == [8 << power for power in range(20)]
    for size, microseconds, algbw, busbw, wrong in rows:
        assert microseconds > 0
        assert algbw == pytest.approx(size / microseconds / 1e3, rel=0.02, abs=1e-4)
        assert busbw == pytest.approx(algbw, abs=1e-4)  # 2 (n - 1) / n of two ranks is 1
        assert wrong == 0
    assert lines[-1] == f"# largest busbw {max(row[3] for row in rows):.4f} GB/s"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's program without PyTorch, which is in the job's image alone."""
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    monkeypatch.setattr(torch, "distributed", distributed, raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    spec = importlib.util.spec_from_file_location("busbw", NCCL / "busbw.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


# Lines as NCCL writes them; host names and numbers are made up.
@pytest.mark.quick
@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            "p5-0:81:90 [0] NCCL INFO Using network Libfabric\n"
            "p5-0:81:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA\n"
            "p5-0:81:90 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/3/GDRDMA\n"
            "p5-0:81:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n",
            "network Libfabric; channels of rank 0: NET/AWS Libfabric/GDRDMA (2), P2P/CUMEM (1)",
        ),
        (
            "gpu1:7:9 [0] NCCL INFO Using network Socket\n"
            "gpu1:7:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\n",
            "network Socket; channels of rank 0: NET/Socket (1)",
        ),
        (
            "mega-0:7:9 [0] NCCL INFO Using network FasTrak\n"
            "mega-0:7:9 [0] NCCL INFO Channel 02/0 : 8[0] -> 0[0] [receive] via NET/FasTrak/1(0)/GDRDMA\n",
            "network FasTrak; channels of rank 0: NET/FasTrak/GDRDMA (1)",
        ),
        ("", "network unknown: NCCL told none; channels of rank 0: none told"),
    ],
    ids=["efa", "sockets", "tcpxo", "silent"],
)
def test_the_transport_is_what_the_log_of_nccl_says(program: ModuleType, log: str, told: str) -> None:
    assert program.nccl_transport(log) == told
