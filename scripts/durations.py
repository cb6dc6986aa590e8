"""Compare what tests took with the budgets of their folders: `scripts/durations.py REPORT.xml ...`.

A report is what `pytest --junitxml` writes. A budget is in seconds of test processes: what four of them on
two cores took beside other work, and more than half as much again. The budgets are in tests/durations.json.
The exit code is 1 if a folder exceeds its budget.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as tree
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

BUDGETS = Path(__file__).resolve().parent.parent / "tests" / "durations.json"


def seconds_by_file(reports: Iterable[Path]) -> Counter[str]:
    """Return the seconds that the tests of each file took: tests/cli/test_main.py -> 12.3."""
    seconds: Counter[str] = Counter()
    for report in reports:
        for case in tree.parse(report).iter("testcase"):
            module = str(case.get("classname")).split(".")
            while module and not module[-1].startswith("test_"):
                module.pop()  # a class of tests
            seconds["/".join(module) + ".py"] += float(case.get("time") or 0)
    return seconds


def exceeded(seconds: Mapping[str, float], budgets: Mapping[str, float]) -> list[str]:
    """Return a line for each folder that took longer than its budget or has none, with its slowest files."""
    lines: list[str] = []
    for folder, spent in by_folder(seconds).items():
        budget = budgets.get(folder, 0)
        if spent > budget:
            own = Counter({file: took for file, took in seconds.items() if folder_of(file) == folder})
            slowest = ", ".join(f"{file} {took:.0f} s" for file, took in own.most_common(3))
            lines.append(f"{folder}: {spent:.0f} s, its budget is {budget:.0f} s; the slowest: {slowest}")
    return lines


def by_folder(seconds: Mapping[str, float]) -> Counter[str]:
    """Return the seconds of each folder of tests/."""
    total: Counter[str] = Counter()
    for file, spent in seconds.items():
        total[folder_of(file)] += spent
    return total


def folder_of(file: str) -> str:
    """Return the folder that has a budget: tests/runner for tests/runner/health/test_rules.py."""
    return "/".join(file.split("/")[: 2 if file.count("/") > 1 else 1])


def main(reports: list[str]) -> int:
    """Print a table of all folders, and what exceeds its budget."""
    budgets = json.loads(BUDGETS.read_text("utf-8"))
    seconds = seconds_by_file(map(Path, reports))
    for folder, spent in by_folder(seconds).most_common():
        print(f"{folder:24} {spent:7.0f} s of {budgets.get(folder, 0):6.0f}")
    for file, spent in seconds.most_common(15):
        print(f"  {spent:7.0f} s  {file}")
    lines = exceeded(seconds, budgets)
    for line in lines:
        print(f"too slow: {line}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
