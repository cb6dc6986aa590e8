"""Which transport NCCL used, by its own log: lines of real ones, host names and addresses replaced."""

from __future__ import annotations

import pytest

from orch.catalog.fabrics import fabric, fabrics
from orch.runner.verify.job.nccl_log import Transport, read

# Recorded 2026-11-26: PyTorch 2.11+cu130 on one NVIDIA H100 80GB HBM3, driver 580.159.04, no fabric.
SOCKET = """\
vm:503:503 [0] NCCL INFO ENV/Plugin: Could not find: libnccl-env.so
vm:503:503 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.2<0>
vm:503:503 [0] NCCL INFO cudaDriverVersion 13000
vm:503:503 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
vm:503:503 [0] NCCL INFO Comm config Blocking set to 1
vm:503:503 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
vm:503:503 [0] NCCL INFO NET/IB : No device found.
vm:503:503 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:192.0.2.2<0>
vm:503:503 [0] NCCL INFO Failed to initialize NET plugin IB
vm:503:503 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0>
vm:503:503 [0] NCCL INFO Initialized NET plugin Socket
vm:503:503 [0] NCCL INFO Assigned NET plugin Socket to comm
vm:503:503 [0] NCCL INFO Using network Socket
vm:503:503 [0] NCCL INFO Channel 00/64 : 0
vm:503:503 [0] NCCL INFO Check P2P Type isAllDirectP2p 1 directMode 0 isAllCudaP2p 1
vm:503:503 [0] NCCL INFO 64 coll channels, 64 collnet channels, 0 nvls channels, 64 p2p channels
"""
# NVIDIA/nccl issue 1597 (p5en, aws-ofi-nccl); the channels: nccl-tests on p4d (awsome-distributed-training).
EFA = """\
8h200-2:6831:6840 [0] NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)
8h200-2:6831:6840 [0] NCCL INFO NET/OFI NIC group 7 device #0 0000:a3:00.0
8h200-2:6831:6840 [0] NCCL INFO NET/OFI Creating one domain per process
8h200-2:6831:6840 [0] NCCL INFO NET/OFI Support for DMA-BUF registrations: false
8h200-2:6831:6840 [0] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so.
8h200-2:6831:6840 [0] NCCL INFO Using network Libfabric
[1,4]<stdout>:w0:30:70 [4] NCCL INFO Channel 03 : 4[901c0] -> 7[a01d0] via P2P/IPC/read
[1,1]<stdout>:w0:27:72 [1] NCCL INFO Channel 00 : 1[101d0] -> 8[101c0] [send] via NET/AWS Libfabric/0/GDRDMA
w1:31:68 [6] NCCL INFO Channel 03 : 7[a01d0] -> 14[a01c0] [receive] via NET/AWS Libfabric/3/GDRDMA
"""
# aws-ofi-nccl 1.16.2 on p4d.24xlarge, a public guide to training on EKS.
EFA_1_16 = """\
node-0-0:188:585 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
node-0-0:188:585 [0] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v10)
node-0-0:188:585 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.16.2
node-0-0:188:585 [0] NCCL INFO NET/OFI Setting provider_filter to efa
node-0-0:188:585 [0] NCCL INFO NET/OFI Using transport protocol SENDRECV (platform set)
node-0-0:188:585 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 1 nics)
node-0-0:188:585 [0] NCCL INFO Initialized NET plugin Libfabric
node-0-0:188:585 [0] NCCL INFO Assigned NET plugin Libfabric to comm
node-0-0:188:585 [0] NCCL INFO Using network Libfabric
"""
# The warning of aws-ofi-nccl issue 1020, whose container lacks /dev/infiniband, with what NCCL takes then.
EFA_LOST = """\
n90:1929:1937 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.14.0
n90:1929:1937 [0] rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available
n90:1929:1937 [0] NCCL INFO NET/IB : No device found.
n90:1929:1937 [0] NCCL INFO NET/Socket : Using [0]enp71s0:192.0.2.90<0> [1]docker0:172.17.0.1<0>
n90:1929:1937 [0] NCCL INFO Using network Socket
"""
OFI_OVER_TCP = """\
n0:1:2 [0] NCCL INFO NET/OFI Selected Provider is tcp;ofi_rxm (found 2 nics)
n0:1:2 [0] NCCL INFO Using network AWS Libfabric
"""
# A guide to Perlmutter at NERSC: Slingshot, by the same plugin.
SLINGSHOT = """\
nid1:1:2 [0] NCCL INFO NET/Plugin: Loaded net plugin AWS Libfabric (v6)
nid1:1:2 [0] NCCL INFO NET/OFI Selected Provider is cxi
nid1:1:2 [0] NCCL INFO Using network AWS Libfabric
nid1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] [send] via NET/AWS Libfabric/0/GDRDMA/Shared
"""
# NVIDIA-NeMo/Automodel pull request 3032, and siderolabs/docs issue 566 for the channels.
INFINIBAND = """\
n0:301607:301607 [6] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [RO]; OOB eth0
n0:301607:301607 [6] NCCL INFO Initialized NET plugin IB
n0:301607:301607 [6] NCCL INFO Assigned NET plugin IB to comm
n0:301607:301607 [6] NCCL INFO GIN/Plugin: Could not find: libnccl-gin.so
n0:301607:301607 [6] NCCL INFO Using network IB
n0:301607:301607 [6] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
n0:301607:301607 [6] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
n0:301607:301607 [6] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
"""
# NVIDIA/nccl-tests issue 185: RoCE is told of a device. Channels without GPUDirect: NVIDIA/nccl issue 1412.
ROCE = """\
d4:460770:460842 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB eth0
d4:460770:460842 [0] NCCL INFO Using non-device net plugin version 0
d4:460770:460842 [0] NCCL INFO Using network IB
swat1-04:2017630:2017699 [5] NCCL INFO Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3
swat1-04:2017630:2017697 [7] NCCL INFO Channel 00/0 : 7[7] -> 6[6] via P2P/direct pointer/read
"""
# NVIDIA/nccl issue 1814: HPC-X's plugin has a name of its own.
IB_PLUGIN = """\
host:987:1260 [7] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:192.0.2.1<0>
host:987:1260 [7] NCCL INFO Using network IBext_v8
host:987:1260 [7] NCCL INFO Channel 03/0 : 47[7] -> 39[7] [receive] via NET/IBext_v8/2/GDRDMA
host:987:1260 [7] NCCL INFO Channel 03/0 : 47[7] -> 46[6] via SHM/direct/direct
"""
# Google Cloud, "Collect and understand NCCL logs" (A3 Ultra); the channels: a benchmark of A4 nodes on Ray.
GIB = """\
a3ultra-vm-0:606:642 [ 6 ] NCCL INFO Using network gIB
a3ultra-vm-0:606:642 [ 6 ] NCCL INFO NET/gIB : Initializing gIB v1.0.2
worker-pbkpw:3590:3799 [2] NCCL INFO Channel 02/0 : 10[2] -> 2[2] [receive] via NET/gIB/2/GDRDMA
"""
# A public lab on A3 Mega and A3 High nodes, 2026-07; the channel is written as other plugins do.
FASTRAK = """\
mega-0:1:2 [0] NCCL INFO Using network FasTrak
mega-0:1:2 [0] NCCL INFO Initializing network FasTrak, version: 1.0.17
mega-0:1:2 [0] NCCL INFO Channel 02/0 : 8[0] -> 0[0] [receive] via NET/FasTrak/1(0)/GDRDMA
"""
TCPX = "high-0:1:2 [0] NCCL INFO Using network GPUDirectTCPX_v7\n"


@pytest.mark.parametrize(
    ("log", "family", "expected"),
    [
        (SOCKET, "socket", Transport("Socket", None, ("eth0",), (), "2.28.9+cuda13.0")),
        (
            EFA,
            "efa",
            Transport("Libfabric", "efa", (), (("NET/AWS Libfabric/GDRDMA", 2), ("P2P/IPC/read", 1))),
        ),
        (EFA_1_16, "efa", Transport("Libfabric", "efa", version="2.27.3+cuda12.9")),
        (
            EFA_LOST,
            "socket",
            Transport(
                "Socket",
                None,
                ("enp71s0", "docker0"),
                warnings=("NET/OFI OFI fi_getinfo() call failed: No data available",),
            ),
        ),
        (OFI_OVER_TCP, "socket", Transport("AWS Libfabric", "tcp;ofi_rxm")),
        (SLINGSHOT, "cxi", Transport("AWS Libfabric", "cxi", (), (("NET/AWS Libfabric/GDRDMA/Shared", 1),))),
        (
            INFINIBAND,
            "ib",
            Transport(
                "IB",
                None,
                ("mlx5_0:1/IB", "mlx5_1:1/IB", "mlx5_2:1/IB"),
                (("NET/IB/GDRDMA", 2), ("P2P/CUMEM", 1)),
            ),
        ),
        (
            ROCE,
            "ib",
            Transport("IB", None, ("mlx5_10:1/RoCE", "mlx5_11:1/RoCE"), (("NET/IB", 1), ("P2P/direct", 1))),
        ),
        (
            IB_PLUGIN,
            "ib",
            Transport(
                "IBext_v8", None, ("mlx5_0:1/IB",), (("NET/IBext_v8/GDRDMA", 1), ("SHM/direct/direct", 1))
            ),
        ),
        (GIB, "gib", Transport("gIB", None, (), (("NET/gIB/GDRDMA", 1),))),
        (FASTRAK, "tcpxo", Transport("FasTrak", None, (), (("NET/FasTrak/GDRDMA", 1),))),
        (TCPX, "tcpx", Transport("GPUDirectTCPX_v7")),
        ("", None, Transport()),
    ],
    ids=[
        *("one H100", "EFA", "EFA, plugin 1.16", "EFA that is not found", "libfabric over TCP", "Slingshot"),
        *("InfiniBand", "RoCE", "HPC-X", "gIB", "FasTrak", "TCPX", "silent"),
    ],
)
def test_a_log_tells_the_network_its_devices_and_the_kinds_of_channels(
    log: str, family: str | None, expected: Transport
) -> None:
    found = read(log.splitlines())
    assert found == expected
    assert found.family == family


def test_gpu_direct_is_told_where_there_are_channels_of_a_network() -> None:
    told = {name: read(log.splitlines()).gpu_direct for name, log in globals().items() if name.isupper()}
    assert told == {
        **dict.fromkeys(("EFA", "SLINGSHOT", "INFINIBAND", "IB_PLUGIN", "GIB", "FASTRAK"), True),
        "ROCE": False,
        **dict.fromkeys(("SOCKET", "EFA_1_16", "EFA_LOST", "OFI_OVER_TCP", "TCPX"), None),
    }


def test_a_socket_in_one_communicator_is_a_fall_back_whatever_the_others_use() -> None:
    assert read([*INFINIBAND.splitlines(), *SOCKET.splitlines()]).family == "socket"
    channel = "n0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0"
    assert read([*INFINIBAND.splitlines(), channel]).family == "socket"
    both = read([*INFINIBAND.splitlines(), *GIB.splitlines()])
    assert (both.network, both.family) == ("IB and gIB", "ib+gib")


def test_each_fabric_of_the_catalogue_has_a_transport_that_some_log_here_tells() -> None:
    logs = [log for name, log in globals().items() if name.isupper()]
    families = {read(log.splitlines()).family for log in logs}
    for name in fabrics():
        found = fabric(name)
        assert found is not None
        assert set(found.transports) <= families
        assert found.transports or name == "instant-cluster"


def test_a_log_of_very_many_kinds_of_channels_stays_small() -> None:
    lines = [f"n0:1:2 [0] NCCL INFO Channel 0 : 0 -> 1 via NET/x{number}y" for number in range(1_000)]
    assert len(read(lines).channels) == 32
