"""Whose a marked resource is: labels of GCP spell several names alike, names of other clouds tell it."""

from __future__ import annotations

import pytest

from orch.components.file_systems import mounts_one_of
from orch.components.gcp.account.marked import Spelled
from orch.components.marks.marked import MarkedResource, cloud_name, is_ours, leftovers, mark_of


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


SPEC = {"type": "h200", "disks": [1, 2]}
LONGEST = "l" + "-x" * 20


def test_a_name_tells_what_was_asked_for_and_whose_it_is() -> None:
    plain = cloud_name("lab-0", "p/lab/0a1b2c", SPEC)
    assert plain == cloud_name("lab-0", "p/lab/0a1b2c", dict(reversed(SPEC.items())))
    assert plain.startswith("lab-0-0a1b2c-")
    others = {
        cloud_name("lab-0", "p/lab/0a1b2d", SPEC),
        cloud_name("lab-0", "q/lab/0a1b2c", SPEC),
        cloud_name("lab-0", "p/lab/0a1b2c", {**SPEC, "type": "h100"}),
        cloud_name("lab-0", "p/lab/0a1b2c"),
    }
    assert len({plain, *others}) == 5


@pytest.mark.parametrize("stack", ["lab", "my-fleet", "lab-", "a-0-0a1b2c-12345678", LONGEST])
@pytest.mark.parametrize("rest", ["-0", "-1023-disk", "-bastion-ssh", "-3-0123ab"])
@pytest.mark.parametrize("most", [None, 63, 64])
def test_a_name_tells_its_mark_to_its_own_project_alone(stack: str, rest: str, most: int | None) -> None:
    mark = f"p/{stack}/0a1b2c"
    name = cloud_name(f"{stack}{rest}", mark, SPEC, most=most)
    assert len(name) <= (most or 99)
    assert is_ours(name)
    assert mark_of(name, "p") == mark
    assert mark_of(name, "q") is None
    assert mark_of(f"z{name[1:]}", "p") is None
    # Where names are cut, those of a stack stay apart.
    assert name != cloud_name(f"{stack}{rest}1", mark, SPEC, most=most)


@pytest.mark.parametrize("name", ["lab-3", "somebody-s", cloud_name("data", "p/volume.data/0a1b2c")])
def test_a_name_of_others_or_of_what_holds_data_is_none_of_these(name: str) -> None:
    assert not is_ours(name)
    assert mark_of(name, "p") is None
