"""What only a launch refuses: properties without effect, and what is missing outside the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.spec.diagnostics import Severity
from orch.spec.loader.load import InvalidConfiguration, load_paths
from orch.spec.models import MODELS
from orch.spec.rules.unsupported import LAUNCHED, ROWS, not_acted_on

EXAMPLES = Path(__file__).parents[2] / "examples"


def codes(path: Path, **more: object) -> list[tuple[str, str]]:
    return [(each.code, each.severity.value) for each in load_paths([path], **more).diagnostics]  # type: ignore[arg-type]


def test_the_examples_of_this_version_can_be_launched() -> None:
    # Ansible's playbooks and what kubectl applies are no documents of orch.
    for path in sorted(
        set(EXAMPLES.rglob("*.yml"))
        - set(EXAMPLES.glob("ansible/*"))
        - {EXAMPLES / "kubernetes" / "rbac.yml"}
    ):
        assert not load_paths([path], environ={}, launch=True).failed, path


def test_a_document_can_be_asked_later_what_it_holds_in_vain(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text("type: fleet\nnodes: 1\ntopology: any\nttl:\nx-budget: 1\n")
    (document,) = load_paths([path]).documents
    assert [(each.code, each.span.line, each.path) for each in not_acted_on(document.draft)] == [
        ("ORCH118", 3, "topology")
    ]


def test_a_plan_can_refuse_what_it_would_not_show(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text("type: fleet\nnodes: 1\nidle_duration: 1h\n")
    assert [each.severity for each in load_paths([path]).documents[0].effective()] == [Severity.WARNING]
    path.write_text("type: fleet\nnodes: 1\nttl: 1h\n")
    with pytest.raises(InvalidConfiguration) as caught:
        load_paths([path]).documents[0].effective()
    assert [(each.code, each.span.line) for each in caught.value.diagnostics] == [("ORCH118", 3)]


def test_a_launch_of_one_kind_leaves_the_others_alone(tmp_path: Path) -> None:
    path = tmp_path / "both.yml"
    path.write_text(
        "type: fleet\nname: lab\nnodes: 1\nttl: 1h\n"
        "---\ntype: task\nname: job\ncommands: [a]\nsingleton: true\n"
    )
    assert [each.span.line for each in load_paths([path], launch=("fleet",)).diagnostics] == [4]
    assert [each.span.line for each in load_paths([path], launch=("task",)).diagnostics] == [9]
    assert load_paths([path]).diagnostics == ()


def test_switches_that_are_off_are_no_reason_to_refuse(tmp_path: Path) -> None:
    path = Path(__file__).parent / "good" / "orch-of-clouds" / "orch.yml"
    assert load_paths([path], launch=True).diagnostics == ()


def test_every_row_of_the_table_is_a_property_of_the_language() -> None:
    assert set(ROWS) == set(LAUNCHED)
    for kind, rows in ROWS.items():
        for row in rows:
            first = row.split(".")[0].removesuffix("[]")
            assert first in MODELS[kind].written(), row


@pytest.mark.parametrize(("launch", "severity"), [(False, "warning"), (True, "error")])
def test_what_is_missing_outside_is_an_error_only_in_a_launch(
    tmp_path: Path, launch: bool, severity: str
) -> None:
    path = tmp_path / "task.yml"
    path.write_text('type: task\nimage: ${{ env.GONE }}\nenv: ["T=${{ secrets.gone }}"]\n')
    found = codes(path, environ={}, secrets=["there"], launch=launch)
    assert ("ORCH173", severity) in found
    assert ("ORCH172", severity) in found


def test_secrets_nobody_looked_up_are_not_doubted(tmp_path: Path) -> None:
    path = tmp_path / "task.yml"
    path.write_text('type: task\nimage: x\nenv: ["T=${{ secrets.any }}"]\n')
    assert codes(path, environ={}) == []
