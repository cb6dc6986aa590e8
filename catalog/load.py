"""The data files as records: `catalog` reads them once, `read_prices` and `write_prices` know a list.

A price list that `orch offers refresh` wrote into the user's data folder is read instead of the shipped one.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from keyword import iskeyword
from pathlib import Path
from typing import Literal, cast

from orch.catalog.errors import BadCatalogFile
from orch.catalog.records import Catalog, GpuModel, InstanceType, Offer, PriceList
from orch.catalog.unpriced import with_reference_prices

SHIPPED = Path(__file__).parent
AWS_TYPES = SHIPPED / "types-aws.csv"
GIB = 1024


def folder_of(backend: str) -> str:
    """The name of a backend's folders: no word of Python can be one (`lambda_`)."""
    return f"{backend}_" if iskeyword(backend) else backend


def user_folder() -> Path:
    """Return the folder of refreshed lists: `<user data>/orch/catalog`; ORCHCTL_CATALOG overrides it."""
    override = os.environ.get("ORCHCTL_CATALOG")
    if override:
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_data_dir("orch")) / "catalog"


def catalog(folder: Path | None = None) -> Catalog:
    """Return all records, read once per process. `folder` holds refreshed lists, by default the user's.

    Raises BadCatalogFile for a file that does not read.
    """
    return _catalog(folder or user_folder())


@cache
def gpu_models() -> Mapping[str, GpuModel]:
    """The GPU models alone, by name: quick, for whoever needs no prices."""
    return {gpu.name: gpu for gpu in _gpus(SHIPPED / "gpus.csv")}


@cache
def _catalog(folder: Path) -> Catalog:
    gpus = gpu_models()
    types = {(each.backend, each.name): each for each in _types(SHIPPED / "types.csv", gpus)}
    head, rows = _read(AWS_TYPES)
    types |= {(each.backend, each.name): each for each in _aws_types(rows, gpus)}
    gcp = gcp_siblings()
    types |= {(each.type.backend, each.type.name): each.type for each in gcp}
    lists: dict[str, PriceList] = {}
    for shipped in sorted(SHIPPED.glob("prices-*.csv")):
        own = folder / shipped.name
        path = own if own.is_file() else shipped
        backend = shipped.stem.removeprefix("prices-")
        lists[backend] = read_prices(path, backend, types, gcp if backend == "gcp" else ())
    for backend, own in _of_other_packages():
        types |= {(each.backend, each.name): each for each in _types(own / "types.csv", gpus)}
        lists[backend] = read_prices(own / "prices.csv", backend, types)
    return Catalog(gpus, types, lists, {"aws": tuple(head["regions"].split())})


def _of_other_packages() -> Iterator[tuple[str, Path]]:
    """Backends of other packages that bring machine types and prices (`Backend.catalog`)."""
    from orch.spec.models.backends import installed

    for name, entry in installed().items():
        try:
            folder = getattr(entry.load(), "catalog", None)
        except Exception:  # noqa: BLE001 - whoever uses that backend is told by the registry
            continue
        if folder is not None:
            yield name, Path(folder)


@cache
def _named_fabrics(backend: str) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """The fabrics that a backend names, by type and region; nothing where it names none."""
    path = SHIPPED / folder_of(backend) / "fabrics.csv"
    fabrics: dict[tuple[str, str], tuple[str, ...]] = {}
    for row in _read(path)[1] if path.is_file() else ():
        key = (row["type"], row["region"])
        fabrics[key] = (*fabrics.get(key, ()), row["fabric"])
    return fabrics


@cache
def gcp_siblings() -> tuple[Sibling, ...]:
    """GCP types that are parts and multiples of others. Raises BadCatalogFile."""
    path = SHIPPED / "siblings-gcp.csv"
    named = {each.name: each for each in _types(SHIPPED / "types.csv", gpu_models()) if each.backend == "gcp"}
    try:
        return tuple(siblings(read_rows(path), named))
    except (KeyError, ValueError, TypeError) as error:
        raise _bad(path, f"{type(error).__name__}: {error}") from error


def price_file(backend: str) -> str:
    """Name of a backend's list in any folder."""
    return f"prices-{backend}.csv"


def read_prices(
    path: Path,
    backend: str,
    types: Mapping[tuple[str, str], InstanceType],
    besides: Sequence[Sibling] = (),
) -> PriceList:
    """A list: `# key: value` lines, then one row per type, region and price with its zones.

    `use1-az1:9.85` is a zone and its spot price, `-` the region as a whole. `besides`: types without rows
    of their own, offered where their siblings are. Raises BadCatalogFile.
    """
    head, rows = _read(path)
    offers: list[Offer] = []
    fabrics = _named_fabrics(backend)
    try:
        for row in rows:
            name, region, price, zones = row["type"], row["region"], row["price"], row["zones"]
            each = types[backend, name]
            for item in zones.split():
                zone, _, spot = item.partition(":")
                offers.append(
                    Offer(
                        each,
                        region or None,
                        None if zone == "-" else zone,
                        _float(price),
                        _float(spot),
                        fabrics=fabrics.get((name, region), ()),
                    )
                )
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise _bad(path, f"{type(error).__name__}: {error}") from error
    return PriceList(
        backend=backend,
        source=head.get("source", ""),
        as_of=head.get("as_of", "unknown"),
        note=head.get("note", ""),
        offers=with_reference_prices([*offers, *offered(besides, offers)]),
        refreshed=path.parent != SHIPPED,
        complete=frozenset(head.get("complete", "").split()),
    )


@cache
def _disk_prices() -> dict[tuple[str, str, str], float]:
    _, rows = _read(SHIPPED / "disks.csv")
    return {(row["backend"], row["type"], row["region"]): float(row["usd_per_gb_month"]) for row in rows}


def disk_price(
    backend: str, disk_type: str, region: str | None, size_gb: int, *, performance: bool
) -> float | None:
    """US dollars a month for a disk; None where the list does not know.

    `performance`: IOPS or throughput beyond what the size includes, which cost extra and are in no list here.
    """
    price = _disk_prices().get((backend, disk_type, region or ""))
    return None if price is None or performance else round(price * size_gb, 2)


def write_prices(path: Path, prices: PriceList) -> None:
    """Writes a list in the form that `read_prices` reads, atomically. Raises OSError."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for offer in prices.offers:
        key = (offer.type.name, offer.region or "", _money(None if offer.price_of else offer.price))
        spot = _money(offer.spot_price)
        rows.setdefault(key, []).append((offer.zone or "-") + (f":{spot}" if spot else ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with staged.open("w", newline="", encoding="utf-8") as file:
            for key, value in (("source", prices.source), ("as_of", prices.as_of), ("note", prices.note)):
                file.write(f"# {key}: {value}\n")
            if prices.complete:
                file.write(f"# complete: {' '.join(sorted(prices.complete))}\n")
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("type", "region", "price", "zones"))
            table.writerows((*key, " ".join(sorted(zones))) for key, zones in sorted(rows.items()))
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)


def _gpus(path: Path) -> Iterator[GpuModel]:
    for row in _read(path)[1]:
        yield GpuModel(
            name=row["model"],
            vendor=row["vendor"],
            kind=cast(Literal["gpu", "accelerator"], row["kind"]),
            compute_capability=_float(row["compute_capability"]),
            sizes_mib=tuple(int(size) * GIB for size in row["sizes_gb"].split()),
            arm_only=row["arm"] == "yes",
            aliases=tuple(row["aliases"].split()),
        )


def _types(path: Path, gpus: Mapping[str, GpuModel]) -> Iterator[InstanceType]:
    for row in _read(path)[1]:
        yield InstanceType(
            backend=row["backend"],
            name=row["type"],
            arch=cast(Literal["x86", "arm"], row["arch"]),
            vcpus=int(row["vcpus"]) if row["vcpus"] else None,
            memory_mib=_mib(row["memory_gib"]),
            gpu=gpus[row["gpu"]] if row["gpu"] else None,
            gpu_count=int(row["gpu_count"] or 0),
            gpu_memory_mib=_mib(row["gpu_memory_gib"]),
            form=row["form"],
        )


def _aws_types(rows: Iterable[Mapping[str, str]], gpus: Mapping[str, GpuModel]) -> Iterator[InstanceType]:
    for row in rows:
        memory = row["gpu_memory_mib"]
        yield InstanceType(
            backend="aws",
            name=row["type"],
            arch=cast(Literal["x86", "arm"], row["arch"]),
            vcpus=int(row["vcpus"]),
            memory_mib=int(row["memory_mib"]),
            gpu=gpus[row["gpu"]] if row["gpu"] else None,
            gpu_count=int(row["gpu_count"] or 0),
            gpu_memory_mib=int(memory) if memory else None,
            surveyed=False,
            home_price=_float(row["price"]),
        )


def read_rows(path: Path) -> Sequence[dict[str, str]]:
    """The rows of any data file of this form. Raises BadCatalogFile."""
    return _read(path)[1]


def _read(path: Path) -> tuple[dict[str, str], Sequence[dict[str, str]]]:
    """The `# key: value` lines at the top, and the rows."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(path, str(error)) from error
    comments = [line for line in lines if line.startswith("#")]
    pairs = (line.lstrip("# ").partition(": ") for line in comments)
    return {key: value for key, colon, value in pairs if colon}, _rows(lines[len(comments) :])


def _rows(lines: Iterable[str]) -> Sequence[dict[str, str]]:
    return tuple(csv.DictReader(lines))


def _float(text: str) -> float | None:
    return float(text) if text else None


def _mib(gib: str) -> int | None:
    return round(float(gib) * GIB) if gib else None


def _money(price: float | None) -> str:
    return "" if price is None else f"{price:.6f}".rstrip("0").rstrip(".")


def _bad(path: Path, detail: str) -> BadCatalogFile:
    shipped = path.parent == SHIPPED
    return BadCatalogFile(
        "a file of the catalogue does not read",
        where=str(path),
        detail=detail,
        hint="install orch again" if shipped else "delete it, or write it anew with `orch offers refresh`",
    )


Parts = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Sibling:
    """A type. `like`: the one whose zones and networks it has; `parts`: what its price is the sum of, types
    by how many of each, nothing where it is not known; `disks`: its local SSDs."""

    type: InstanceType
    like: str
    parts: Parts
    disks: int


def siblings(rows: Sequence[Mapping[str, str]], types: Mapping[str, InstanceType]) -> Iterator[Sibling]:
    """Yield the types of a data file; `types` are the others. Raises KeyError, ValueError for a row that is
    wrong."""
    for row in rows:
        like = types[row["like"]]
        yield Sibling(
            InstanceType(
                backend=like.backend,
                name=row["type"],
                arch=like.arch,
                vcpus=int(row["vcpus"]),
                memory_mib=round(float(row["memory_gib"]) * 1024),
                gpu=like.gpu,
                gpu_count=int(row["gpu_count"] or 0),
                gpu_memory_mib=like.gpu_memory_mib,
            ),
            like.name,
            tuple(_part(word) for word in row["price"].split()),
            int(row["disks"] or 0),
        )


def offered(known: Sequence[Sibling], offers: Sequence[Offer]) -> Iterator[Offer]:
    """Offers of siblings: in the zones of the type that each is like, at the sum of its parts' prices."""
    priced: dict[str, dict[str, Offer]] = {}
    for offer in offers:
        priced.setdefault(offer.type.name, {})[offer.zone or ""] = offer
    for each in known:
        if each.type.name in priced:  # a list names it after all
            continue
        for zone, like in priced.get(each.like, {}).items():
            there = [(priced.get(name, {}).get(zone), count) for name, count in each.parts]
            price = _sum([(offer and offer.price, count) for offer, count in there])
            spot = _sum([(offer and offer.spot_price, count) for offer, count in there])
            yield Offer(each.type, like.region, like.zone, price, spot)


def _sum(parts: Sequence[tuple[float | None, float]]) -> float | None:
    total = 0.0
    for price, count in parts:
        if price is None:
            return None
        total += price * count
    return round(total, 6) if parts and total > 0 else None


def _part(word: str) -> tuple[str, float]:
    """`n2-standard-8:0.25`."""
    name, _, count = word.partition(":")
    return name, float(count)
