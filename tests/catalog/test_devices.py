"""What drivers call their devices, and which model that is."""

from __future__ import annotations

import pytest

from orch.catalog.devices import model_of, nominal_mib


@pytest.mark.parametrize(
    ("device", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("Quadro RTX 6000", "RTX6000"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("HL-225", None),
        ("", None),
    ],
)
def test_a_device_is_of_the_model_its_driver_names(device: str, model: str | None):
    found = model_of(device)
    assert (found.name if found else None) == model


@pytest.mark.parametrize(
    ("device", "reported", "sold"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, 80 * 1024),
        ("NVIDIA A100-SXM4-40GB", 40960, 40 * 1024),
        ("NVIDIA H200", 143771, 141 * 1024),
        ("AMD Instinct MI300X", 196592, 192 * 1024),
        ("HL-225", 98304, 98304),
        ("NVIDIA H100 80GB HBM3", 20000, 20000),
    ],
)
def test_memory_counts_as_what_the_card_is_sold_with(device: str, reported: int, sold: int):
    assert nominal_mib(device, reported) == sold
