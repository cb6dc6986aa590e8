"""What a model is written as reads as the same model."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import samples
from kit.dump import dump

from orch.spec.loader.load import Document, load_paths
from orch.spec.models import Fleet, Nodes, Task

HERE = Path(__file__).parent
FILES = sorted(path for folder in ("good", "reference", "launch") for path in (HERE / folder).rglob("*.yml"))
ENVIRON = {"HOME": "/root", "TAG": "1.4"}


def read(path: Path) -> tuple[Document, ...]:
    return load_paths([path], environ=ENVIRON).require().documents


def again(document: Document, folder: Path) -> Document:
    path = folder / document.file.name
    path.write_text(dump(document.model))
    (found,) = read(path)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_every_good_document_reads_back_equal(path: Path, tmp_path: Path) -> None:
    for document in read(path):
        written = again(document, tmp_path)
        assert written.model == document.model
        assert written.model.model_fields_set == document.model.model_fields_set | {"type"} & set(
            type(document.model).model_fields
        )
        assert dump(written.model) == dump(document.model)


def test_sizes_durations_and_ranges_are_canonical() -> None:
    fleet = Fleet.model_validate(
        {
            "name": "pool",
            "nodes": "4",
            "idle_duration": "90m",
            "resources": {"memory": "32768MB", "gpu": "8:H100"},
        }
    )
    assert dump(fleet) == (
        "type: fleet\n"
        "name: pool\n"
        "nodes:\n  min: 0\n  target: 4\n  max: 4\n"
        "resources:\n  memory: 32GB..\n  gpu:\n    name:\n    - H100\n    count: 8..8\n"
        "idle_duration: 1h30m\n"
    )


@settings(max_examples=samples.some(200, 4), deadline=None)
@given(
    low=st.integers(0, 50),
    more=st.integers(0, 50),
    most=st.one_of(st.none(), st.integers(0, 50)),
    spare=st.sampled_from([0, 0, 1, 3]),
    idle=st.one_of(st.none(), st.integers(0, 10**7)),
    words=st.lists(
        st.text(
            st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters="$"), min_size=1
        ).filter(str.strip),
        max_size=3,
    ),
)
def test_any_model_built_in_python_reads_back_equal(
    *,
    tmp_path_factory: pytest.TempPathFactory,
    low: int,
    more: int,
    most: int | None,
    spare: int,
    idle: int | None,
    words: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("built")
    high = None if most is None else low + more + most
    nodes = Nodes(min=low, target=low + more, max=high, spare=spare if high != 0 else 0)
    for model in (
        Fleet(name="pool", nodes=nodes, idle_duration_s=idle),
        Task(name="train", image="x", commands=tuple(words)),
    ):
        path = folder / "built.yml"
        path.write_text(dump(model), encoding="utf-8")
        (found,) = read(path)
        assert found.model == model
