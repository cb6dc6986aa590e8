"""Plans on Crusoe beyond the cases of `golden/`: types, running fleets, start-up scripts."""

from __future__ import annotations

from kit.clouds.crusoe_cases import Case

from orch.components.crusoe.candidates import machines
from orch.components.crusoe.startup import MOST, startup_script


def test_each_type_has_a_plan() -> None:
    assert {Case.of(name).plan().instance_type for name in Case.planned()} == set(machines()) - {
        "c1a.176x",
        "c1a.4x",
        "c1a.8x",
    }


def test_a_running_fleet_stays_in_its_network_whatever_its_price_and_the_stock() -> None:
    case = Case.of("h200")
    first = case.plan()
    case.data["pins"] = dict(first.pins)
    case.data["networks"] = {first.zone: 0}
    second = case.plan()
    assert (second.zone, second.ib_network, second.image) == (first.zone, first.ib_network, first.image)
    assert second.layout_unchanged
    assert "a partition never moves" in " ".join(second.reasons)


def test_each_type_with_infiniband_has_its_cards_and_its_topology() -> None:
    known = {
        kind: Case.of(kind.partition("-")[0] if "a100" not in kind else "a100-sxm").plan() for kind in FAST
    }
    for kind, made in known.items():
        assert made.fabric is not None
        env = made.fabric.env
        newer = kind.startswith(("b200", "b300"))
        assert env["NCCL_IB_HCA"].count("mlx5_") == (8 if newer else 1)
        assert env["NCCL_IB_HCA"].startswith("mlx5_5:1" if newer else "^mlx5_0:1")
        family = kind.rpartition(".")[0]
        assert env["NCCL_TOPO_FILE"] == f"/etc/crusoe/nccl_topo/{family}-cloud-hypervisor.xml"


FAST = [kind for kind, each in machines().items() if each.hcas and not kind.startswith("mi")]


def test_the_script_of_a_node_fits_and_has_what_its_type_needs() -> None:
    local, attached = Case.of("h200").plan().cloud_init, Case.of("l40s").plan().cloud_init
    for text in (local, attached):
        assert len(startup_script(text.replace("@@", ""))) < MOST
    assert "8 InfiniBand devices" in local
    assert "mdadm" in local
    assert "InfiniBand devices" not in attached
    assert "orch-data" in attached
