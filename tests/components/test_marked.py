"""Whose a marked resource is: labels of GCP spell several names alike."""

from __future__ import annotations

import pytest

from orch.components.cloud.marked import MarkedResource, leftovers
from orch.components.file_systems import mounts_one_of
from orch.components.gcp.account.marked import Spelled


@pytest.mark.parametrize(
    ("label", "known", "mark", "sure"),
    [
        ("a_b_train_1a2b3c", ["a.b/train/1a2b3c"], "a.b/train/1a2b3c", True),
        ("a_b_train_1a2b3c", ["a_b/train/1a2b3c"], "a_b/train/1a2b3c", True),  # another project's
        ("a_b_train_1a2b3c", ["a_b/train/1a2b3c", "a.b/train/1a2b3c"], "a.b/train/1a2b3c", False),
        ("a_b_train_1a2b3c", [], "a.b/train/1a2b3c", False),
        ("a_b_volume_data_1a2b3c", [], "a.b/volume.data/1a2b3c", False),
        ("c_train_1a2b3c", [], "c_train_1a2b3c", True),
    ],
)
def test_a_label_is_a_mark_only_where_something_spells_it_out(
    label: str, known: list[str], mark: str, sure: bool
) -> None:
    row = MarkedResource("gcp", label, "filestore", "projects/p/x", "x", holds_data=True)
    read = Spelled("a.b", known).read(row)
    assert (read.mark, read.sure) == (mark, sure)
    found = leftovers([read], {}, ())
    assert bool(found.unsure) is not sure
    assert bool(found.of({mark})) is sure


@pytest.mark.parametrize(
    ("words", "names", "found"),
    [
        ("fs-0123", ("fs-0123",), True),
        ("fs-0123.fsx.us-east-1.amazonaws.com@tcp:/x fs-9", ("fs-0123",), True),
        ("fs-01234 10.0.0.21:/vol", ("fs-0123", "10.0.0.2"), False),
        ("10.0.0.2:/vol", ("10.0.0.2",), True),
        ("110.0.0.2:/vol", ("10.0.0.2",), False),
    ],
)
def test_a_mount_names_a_file_system_by_its_whole_id_or_address(
    words: str, names: tuple[str, ...], found: bool
) -> None:
    assert mounts_one_of(words, names) is found
