"""Quantities of Kubernetes (`500m`, `64`, `512Gi`): exact numbers from text, and back. Pure.

Source: k8s.io/apimachinery pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

_QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:[eE]([+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_FACTORS: Mapping[str, Fraction] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: Fraction(1024**power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_BYTES = ("memory", "ephemeral-storage", "hugepages-")
MIB = 1024**2


def quantity(text: object) -> Fraction:
    """The number that a quantity is. Raises ValueError for what is none."""
    found = _QUANTITY.fullmatch(str(text).strip())
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    number, exponent, unit = found.groups()
    try:
        return Fraction(number) * (Fraction(10) ** int(exponent) if exponent else _FACTORS[unit or ""])
    except ValueError:
        raise ValueError(f"{text!r} is no quantity") from None


def amount(text: object) -> Fraction:
    """The same, 0 for what is no quantity: an API server keeps none that is not valid."""
    try:
        return quantity(text)
    except ValueError:
        return Fraction(0)


def rendered(resource: str, value: Fraction) -> str:
    """A quantity of a resource, rounded down: whole MiB of what counts bytes, thousandths of a CPU, else a
    whole number."""
    if resource.startswith(_BYTES):
        return f"{int(value // MIB)}Mi"
    if resource == "cpu" and value.denominator != 1:
        return f"{int(value * 1000)}m"
    return str(int(value))


def sums(lists: Iterable[Mapping[str, str]]) -> dict[str, Fraction]:
    """Return the sum of several lists of resources, by resource."""
    total = dict[str, Fraction]()
    for each in lists:
        for name, text in each.items():
            total[name] = total.get(name, Fraction(0)) + amount(text)
    return total
