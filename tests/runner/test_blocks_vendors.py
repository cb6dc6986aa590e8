"""Accelerators of each vendor in a container: all of a server's, and those of one block.

The server has device files of each vendor; behind each is /dev/null or a file, for nothing opens them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from kit.nodes.blocklab import begin, end_all, fleet, node, run
from kit.nodes.hostlab import HostLab
from kit.nodes.labserver import Server
from kit.nodes.nodelab import load_image

from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.state import Gpus


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    lab = HostLab(tmp_path_factory.mktemp("vendors"))
    try:
        server = lab.server("cards", lab.network())
        load_image(server.state().model_copy(update={"name": server.container}), "mpi")
        yield server
    finally:
        lab.remove()


def options(server: Server) -> dict[str, object]:
    """What Docker was asked for, of the newest job."""
    found = json.loads(server.run("docker inspect $(docker ps -q --latest)"))[0]
    host = found["HostConfig"]
    return {
        "devices": sorted(device["PathOnHost"] for device in host["Devices"] or ()),
        "groups": host["GroupAdd"],
        "runtime": host["Runtime"],
        "caps": host["CapAdd"],
        "mounts": sorted(bind for bind in host["Binds"] if ":/run/orch" not in bind),
        "env": [entry for entry in found["Config"]["Env"] if entry.startswith("HABANA_")],
    }


AMD = Gpus(count=4, vendor="amd", name="AMD Instinct MI300X", memory_mib=196592)
GAUDI = Gpus(count=8, vendor="intel", name="HL-225", memory_mib=98304)
WORMHOLE = Gpus(count=4, vendor="tenstorrent", name="n300 L")


def test_nvidia_jobs_on_a_host_without_the_toolkit_get_devices_and_the_drivers_folders(
    place: RunnerContext, server: Server, ended: None
):
    server.run(
        "for i in 0 1 2 3 ctl -uvm; do [ -e /dev/nvidia$i ] || mknod -m 666 /dev/nvidia$i c 1 3; done; "
        "mkdir -p /var/lib/nvidia/lib64 /var/lib/nvidia/bin"
    )
    folders = [f"/var/lib/nvidia/{name}:/usr/local/nvidia/{name}" for name in ("bin", "lib64")]
    on = fleet(node(server, blocks=2, gpus=Gpus(count=4, vendor="nvidia", name="H100", toolkit=False)))
    begin(place, on, "part", resources={"gpu": 2})
    part = options(server)
    assert (part["devices"], part["mounts"]) == (
        ["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"],
        folders,
    )
    end_all(place)
    begin(place, on, "all", resources={"gpu": 4})
    whole = options(server)
    assert (whole["devices"], whole["mounts"]) == (
        ["/dev/nvidia-uvm", *(f"/dev/nvidia{i}" for i in range(4)), "/dev/nvidiactl"],
        folders,
    )


@pytest.fixture
def amd(server: Server) -> Server:
    """Four GPUs, numbered by KFD and as render nodes the other way round, and one more card for a screen."""
    nodes = "".join(
        f"mkdir -p $t/{at}; printf 'simd_count 304\\ndrm_render_minor {minor}\\n' > $t/{at}/properties; "
        for at, minor in ((0, 0), (1, 131), (2, 130), (3, 129), (4, 128))
    )
    server.run(
        "groupadd -g 4242 render; [ -e /dev/kfd ] || mknod /dev/kfd c 1 3; chgrp 4242 /dev/kfd; "
        "mkdir -p /dev/dri; for i in 128 129 130 131 132; do"
        " [ -e /dev/dri/renderD$i ] || mknod -m 666 /dev/dri/renderD$i c 1 3; done; "
        f"mount -t tmpfs class /sys/class; t=/sys/class/kfd/kfd/topology/nodes; {nodes}"
    )
    return server


def test_amd_jobs_get_the_render_nodes_of_their_blocks(place: RunnerContext, amd: Server, ended: None):
    on = fleet(node(amd, blocks=4, gpus=AMD))
    begin(place, on, "one")
    begin(place, on, "two", resources={"gpu": 2})
    assert options(amd)["devices"] == ["/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/kfd"]
    listed = run(place, on, commands=["ls /dev/dri", "id -G"], user="1000", resources={"gpu": 1})
    assert listed[0] == "renderD130"
    assert "4242" in listed[1].split(), "a user who is not root may open the GPU"
    end_all(place)
    assert run(place, on, commands=["ls /dev/dri | wc -l"], resources={"gpu": 4}) == ["5"]


def test_amd_hosts_without_a_topology_count_render_nodes(place: RunnerContext, amd: Server, ended: None):
    amd.run("rm -r /sys/class/kfd")
    on = fleet(node(amd, blocks=4, gpus=AMD))
    begin(place, on, "one")
    assert options(amd)["devices"] == ["/dev/dri/renderD128", "/dev/kfd"]


def test_a_block_whose_accelerators_are_gone_is_told(place: RunnerContext, amd: Server, ended: None):
    amd.run("rm -r /sys/class/kfd; mkdir /root/dri; mv /dev/dri/renderD13* /root/dri")
    try:
        on = fleet(node(amd, blocks=1 + 3, gpus=AMD))
        begin(place, on, "one")
        begin(place, on, "two")
        row = begin(place, on, "three")
        row = lifecycle.drive(place, row)
        assert row.status == "failed"
        assert "accelerator 2 of block 2 is not there" in (row.message or "")
    finally:
        amd.run("mv /root/dri/* /dev/dri; rmdir /root/dri")


def test_gaudi_jobs_get_neighbouring_modules(place: RunnerContext, server: Server, ended: None):
    server.give_gaudi(8)
    # Indices and modules of a real server differ.
    tool = "#!/bin/sh\nprintf '%s\\n' '3, 6' '1, 4' '2, 7' '0, 5' '4, 2' '6, 0' '7, 3' '5, 1'\n"
    server.put("/usr/local/bin/hl-smi", tool, 0o755)
    try:
        on = fleet(node(server, blocks=4, gpus=GAUDI))
        begin(place, on, "one")
        found = options(server)
        assert (found["runtime"], found["env"]) == ("habana", ["HABANA_VISIBLE_DEVICES=6,5"])
        assert found["caps"] == ["SYS_NICE"]
        begin(place, on, "two", resources={"gpu": 4})
        assert options(server)["env"] == ["HABANA_VISIBLE_DEVICES=1,0,3,2"]
        end_all(place)
        begin(place, on, "all", resources={"gpu": 8})
        assert options(server)["env"] == ["HABANA_VISIBLE_DEVICES=all"]
        end_all(place)
        server.put("/usr/local/bin/hl-smi", "#!/bin/sh\nexit 1\n", 0o755)
        begin(place, on, "blind")
        assert options(server)["env"] == ["HABANA_VISIBLE_DEVICES=0,1"]
    finally:
        end_all(place)
        server.take_accelerators()


def test_tenstorrent_jobs_get_their_devices_and_the_huge_pages(
    place: RunnerContext, server: Server, ended: None
):
    server.run(
        "mkdir -p /dev/tenstorrent /dev/hugepages-1G; for i in 0 1 2 3; do"
        " mknod -m 666 /dev/tenstorrent/$i c 1 3; done"
    )
    on = fleet(node(server, blocks=2, gpus=WORMHOLE))
    begin(place, on, "one")
    begin(place, on, "two")
    found = options(server)
    assert found["devices"] == ["/dev/tenstorrent/2", "/dev/tenstorrent/3"]
    assert found["mounts"] == ["/dev/hugepages-1G:/dev/hugepages-1G"]
    end_all(place)
    assert run(place, on, commands=["ls -x /dev/tenstorrent"], resources={"gpu": 4}) == ["0  1  2  3"]
