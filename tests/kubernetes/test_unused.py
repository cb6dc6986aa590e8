"""When a rehearsed cluster ends by itself."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from orch.rehearsal.kubernetes import service
from orch.rehearsal.kubernetes.api import Api, ApiError


class Lists:
    """An API server that has these lists."""

    def __init__(self, **rows: list[Any]) -> None:
        self.rows = rows

    def items(self, path: str, **query: str) -> list[Any]:
        assert query == {"labelSelector": "app.kubernetes.io/managed-by=orch"}
        if "broken" in self.rows:
            raise ApiError(0, {"message": "it does not answer"})
        return self.rows.get(path.rpartition("/")[2], [])


def unused(folder: Path, **rows: list[Any]) -> bool:
    return service._unused(folder, cast("Api", Lists(**rows)))  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("lock", "used"):
        (tmp_path / name).touch()
    long_ago = time.time() - 1000
    os.utime(tmp_path / "used", (long_ago, long_ago))
    return tmp_path


def test_one_that_nobody_has_used_for_long_ends_where_nothing_of_orch_is_in_it(folder: Path) -> None:
    assert unused(folder)
    for kind in ("namespaces", "serviceaccounts", "persistentvolumeclaims", "jobs"):
        assert not unused(folder, **{kind: [{}]})
    assert not unused(folder, broken=[])
    (folder / "used").touch()
    assert not unused(folder)


def test_one_that_somebody_has_started_by_hand_goes_on_until_its_folder_is_gone(folder: Path) -> None:
    (folder / "used").unlink()
    assert not unused(folder)
    (folder / "lock").unlink()
    assert unused(folder)
