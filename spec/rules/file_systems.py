"""What the clouds take of a shared file system that is created with its fleet: sizes and throughputs.

Sizes are in GiB, as the clouds count them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from orch.spec.document.draft import Draft
from orch.spec.models import Fleet
from orch.spec.models.blocks import Mount
from orch.spec.rules.rule import Findings, Rule

CREATED: Mapping[str, str] = {
    "efs": "aws",
    "fsx-lustre": "aws",
    "filestore": "gcp",
    "lambda-filesystem": "lambda",
}
"""Kinds that orch creates, each with its backend."""
ELASTIC: Mapping[str, str] = {"efs": "an EFS", "lambda-filesystem": "a file system of Lambda"}
"""Kinds without a size, which hold what is written to them, as people call one."""

LUSTRE_LEAST, LUSTRE_STEP = 1200, 2400
LUSTRE_THROUGHPUTS = (125, 250, 500, 1000)
EFS_FASTEST = 3414
# The two ranges of a zonal Filestore, each with its step: an instance stays in the range it was created in.
FILESTORE_RANGES = ((1024, 9984, 256), (10_240, 102_400, 2560))
_DEFAULTS: Mapping[str, tuple[int | None, int | None]] = {
    "efs": (None, None),
    "fsx-lustre": (LUSTRE_LEAST, LUSTRE_THROUGHPUTS[0]),
    "filestore": (FILESTORE_RANGES[0][0], None),
    "lambda-filesystem": (None, None),
}


def created_size(mount: Mount) -> int | None:
    """The size of a file system that is created, in GiB; None for one that has none.

    AWS writes 1200 GiB of FSx as 1.2 TiB: such a number of TB counts so. Raises ValueError with the sizes
    there are for one that the cloud does not take.
    """
    written = mount.create.size_mib if mount.create else None
    if written is None:
        return _DEFAULTS[mount.type][0]
    gib = written / 1024
    if mount.type == "fsx-lustre":
        for size in (gib, round(written / 1024**2 * 1000, 2)):
            if size == LUSTRE_LEAST or (size >= LUSTRE_STEP and size % LUSTRE_STEP == 0):
                return int(size)
        raise ValueError("1200GB, 2400GB and multiples of 2400GB")
    if not any(low <= gib <= high and gib % step == 0 for low, high, step in FILESTORE_RANGES):
        raise ValueError("1TB to 9.75TB in steps of 256GB, and 10TB to 100TB in steps of 2.5TB")
    return int(gib)


def created_throughput(mount: Mount) -> int | None:
    """The throughput of a file system that is created: of an EFS in MiB/s, None for one that follows its
    load; of an FSx for Lustre in MB/s per TiB; None for a Filestore, where it follows from the size."""
    written = mount.create.throughput if mount.create else None
    return _DEFAULTS[mount.type][1] if written is None else written


def filestore_range(size: int) -> int:
    """Return the index of the range of sizes of a Filestore: 0 or 1.

    It does not leave the range that it was created in. Source: Filestore documentation, "Zonal service tier",
    limitations.
    """
    return next(index for index, (_, high, _) in enumerate(FILESTORE_RANGES) if size <= high)


def created_file_systems_are_possible(draft: Draft) -> Findings:
    """Sizes and throughputs that the cloud takes.

    Sources: FSx API reference, CreateFileSystem (`StorageCapacity`) and CreateFileSystemLustreConfiguration
    (`PerUnitStorageThroughput`), for the deployment type PERSISTENT_2; EFS API reference, CreateFileSystem
    (`ProvisionedThroughputInMibps`); Filestore documentation, "Zonal service tier".
    """
    for index, mount in enumerate(cast(Fleet, draft.partial).mounts):
        if mount.create is None or mount.type not in CREATED:
            continue
        at = ("mounts", index, "create")
        size, throughput = mount.create.size_mib, mount.create.throughput
        if mount.type in ELASTIC and size is not None:
            yield draft.diagnostic(
                "ORCH274",
                (*at, "size"),
                f"{ELASTIC[mount.type]} has no size",
                detail="it holds what is written to it, and costs as much as that",
                hint="remove `size`",
            )
        elif size is not None:
            try:
                created_size(mount)
            except ValueError as sizes:
                yield draft.diagnostic(
                    "ORCH274",
                    (*at, "size"),
                    f"no {mount.type} has this size",
                    detail=f"its sizes are {sizes}",
                    hint=f"write `size: {LUSTRE_LEAST}GB`"
                    if mount.type == "fsx-lustre"
                    else "write `size: 1TB`",
                )
        if throughput is not None and (problem := _throughput_problem(mount, throughput)) is not None:
            summary, hint = problem
            yield draft.diagnostic("ORCH274", (*at, "throughput"), summary, hint=hint)


def _throughput_problem(mount: Mount, throughput: int) -> tuple[str, str] | None:
    """Return the problem of a throughput and what to write; None if it is valid."""
    if mount.type == "fsx-lustre" and throughput not in LUSTRE_THROUGHPUTS:
        each = ", ".join(map(str, LUSTRE_THROUGHPUTS[:-1]))
        return (
            f"no fsx-lustre has {throughput} MB/s per TiB",
            f"write {each} or {LUSTRE_THROUGHPUTS[-1]}",
        )
    if mount.type == "efs" and throughput > EFS_FASTEST:
        return (
            f"an EFS has at most {EFS_FASTEST} MiB/s",
            "write less, or remove `throughput`: then it follows the load",
        )
    return None


RULES = (Rule(("mounts",), created_file_systems_are_possible),)
