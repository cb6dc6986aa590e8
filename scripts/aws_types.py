"""Writes catalog/types-aws.csv: every EC2 type that the hand-kept files do not have.

    python scripts/aws_types.py TABLE

TABLE is a CSV file with a row per type and the columns of `Row`, restated from the three files that SOURCES
names. The output is the same for the same table; read the difference before it is committed.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

CATALOG = Path(__file__).parent.parent / "catalog"
OUT = CATALOG / "types-aws.csv"
HEAD = """\
# EC2 types that types.csv and nics-aws.csv do not have, with what they carry. Written by scripts/aws_types.py: not to be edited.
# `gpu_memory_mib`: of one GPU; `price`: on demand in us-east-1, empty where it is not sold there. Which other regions and which zones have a type
# is not told: the account is asked. `cards`, `per_card`: network cards and interfaces each holds, empty: layout not known; `efa`: EFA interfaces at
# most; `gbps`: bandwidth of all cards, of types with EFA; `cluster`: whether a cluster placement group takes the type; `disks_gb`: local NVMe in all;
# `levels`: as in nics-aws.csv. Types with a part of a GPU (g6f, gr6f) are here without one: nodes get no driver for it.
# `regions` below: those of prices-aws.csv and the newer ones, where such a type may be.
# source: https://github.com/aws/karpenter-provider-aws @1d927085 (Apache-2.0), written by its authors from AWS's own API on 2026-07-20:
# source: website/content/en/v1.14/reference/instance-types.md, pkg/providers/instancetype/zz_generated.vpclimits.go, pkg/providers/pricing/zz_generated.pricing_aws.go
# source: cluster: EC2 user guide "Placement group rules and limitations"; levels: EC2 user guide "Prerequisites for Amazon EC2 topology"; memory of a Trainium: types.csv
# as_of: 2026-07-20
# regions: {regions}
"""  # noqa: E501 - lines of the file
COLUMNS = (
    "type", "arch", "vcpus", "memory_mib", "gpu", "gpu_count", "gpu_memory_mib", "price",
    "cards", "per_card", "efa", "gbps", "cluster", "disks_gb", "levels",
)  # fmt: skip

ARCHITECTURES = {"amd64": "x86", "arm64": "arm"}
# Regions of public accounts that prices-aws.csv has no row of. Source: AWS, "AWS Regions".
OTHER_REGIONS = {
    "ap-east-2", "ap-south-2", "ap-southeast-5", "ap-southeast-7", "ca-west-1", "eu-central-2",
    "il-central-1", "mx-central-1", "sa-east-1",
}  # fmt: skip
# What the table calls an accelerator, and its row of gpus.csv.
MODELS = {
    "a10g": "A10G",
    "inferentia": "Inferentia",
    "inferentia2": "Inferentia2",
    "l4": "L4",
    "l40s": "L40S",
    "qualcomm-ai100": "AI100",
    "radeon-pro-v520": "V520",
    "rtx-pro-4500": "RTXPRO4500",
    "rtx-pro-server-6000": "RTXPRO6000",
    "t4": "T4",
    "t4g": "T4G",
    "trainium": "Trainium",
    "v100": "V100",
}
# The table has no memory of Neuron devices.
MEMORY_MIB = {"trainium": "32768"}

# Burstable and flex types, and generations before placement groups.
APART = re.compile(r"(t\d|[a-z]\d+[a-z]*-flex|c1|m[123])[a-z]*\.")
THREE_LEVELS = re.compile(r"(g6e|g7e|hpc\d[a-z]+|p3dn|trn1n?)\.")

Row = Mapping[str, str]


def main(table: Path) -> int:
    kept = {row["type"] for row in _rows(CATALOG / "types.csv") if row["backend"] == "aws"}
    regions = sorted(OTHER_REGIONS | {row["region"] for row in _rows(CATALOG / "prices-aws.csv")})
    made = sorted((written(row) for row in _rows(table) if row["instance_type"] not in kept), key=_name)
    with OUT.open("w", newline="", encoding="utf-8") as file:
        file.write(HEAD.format(regions=" ".join(regions)))
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        out.writerows([row[column] for column in COLUMNS] for row in made)
    print(f"{OUT.name}: {len(made)} types")
    return 0


def written(row: Row) -> dict[str, str]:
    """The row of one type."""
    count = int(row["accelerator_count"] or 0)
    cards, per_card = layout(row)
    efa = int(row["efa"] or 0)
    price = row["us_east_1_on_demand_usd"]
    return {
        "type": row["instance_type"],
        "arch": ARCHITECTURES[row["arch"]],
        "vcpus": row["vcpus"],
        "memory_mib": row["memory_mib"],
        "gpu": MODELS[row["accelerator"]] if count else "",
        "gpu_count": str(count or ""),
        "gpu_memory_mib": row["accelerator_memory_mib"] or MEMORY_MIB.get(row["accelerator"], "")
        if count
        else "",
        "price": f"{float(price):.6f}".rstrip("0").rstrip(".") if price else "",
        "cards": cards,
        "per_card": per_card,
        "efa": str(efa or ""),
        "gbps": str(int(row["network_mbps"] or 0) // 1000 or "") if efa else "",
        "cluster": "" if APART.match(row["instance_type"]) else "yes",
        "disks_gb": row["local_nvme_gb"],
        "levels": "3" if efa and THREE_LEVELS.match(row["instance_type"]) else "",
    }


def layout(row: Row) -> tuple[str, str]:
    """Network cards and interfaces of each; nothing where they differ, or are fewer than EFA needs."""
    count, _, each = row["interfaces_per_card"].partition("x")
    plain = count == row["network_cards"] and each.isdigit() and row["default_card"] == "0"
    return (count, each) if plain and int(count) >= int(row["efa"] or 0) else ("", "")


def _name(row: Row) -> tuple[str, str]:
    family, _, size = row["type"].partition(".")
    return family, size


def _rows(path: Path) -> Iterator[dict[str, str]]:
    lines = path.read_text("utf-8").splitlines()
    yield from csv.DictReader(line for line in lines if not line.startswith("#"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
