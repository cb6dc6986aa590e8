"""Loading: documents, defaults, places, folders, standard input, the environment."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orch.spec.diagnostics import Diagnostic, Severity, Span, render_human, render_json, strict
from orch.spec.errors import ExitCode
from orch.spec.loader.load import InvalidConfiguration, load_paths
from orch.spec.models import Fleet, Nodes, Range, Task, VolumeMount
from orch.spec.rules.environment import resolve_env

GOOD = Path(__file__).parent / "good"
GB = 1024


def fleet(tmp_path: Path, text: str) -> Fleet:
    path = tmp_path / "fleet.yml"
    path.write_text("type: fleet\nname: pool\n" + text)
    return load_paths([path], environ={}).require().fleets[0]


def task(tmp_path: Path, text: str, **environ: str) -> Task:
    path = tmp_path / "task.yml"
    path.write_text("type: task\n" + text)
    return load_paths([path], environ=environ).require().tasks[0]


@pytest.mark.parametrize(
    ("written", "nodes"),
    [
        ("nodes: 4", (4, 4, 4)),
        ("nodes: 0..8", (0, 0, 8)),
        ("nodes: ..8", (0, 0, 8)),
        ("nodes: 2..10", (2, 2, 10)),
        ("nodes: 2..", (2, 2, None)),
        ("nodes: {min: 2, target: 6, max: 10}", (2, 6, 10)),
        ("nodes: 4\nidle_duration: 1h", (0, 4, 4)),
        ("nodes: 4\nidle_duration:", (4, 4, 4)),
        ("nodes: 4..4\nidle_duration: 1h", (4, 4, 4)),
    ],
)
def test_nodes_have_a_minimum_a_target_and_a_maximum(
    tmp_path: Path, written: str, nodes: tuple[int, int, int | None]
) -> None:
    assert fleet(tmp_path, written).nodes == Nodes(min=nodes[0], target=nodes[1], max=nodes[2])


@pytest.mark.parametrize(
    ("written", "counts", "for_runs"),
    [
        ("{min: 4, max: 4, spare: 1}", (5, 5, 5), 4),
        ("{min: 2, target: 6, max: 10, spare: 2}", (4, 8, 12), 10),
        ("{min: 4, spare: 1}", (5, 5, None), None),
        ("{target: 4, max: 8, spare: 1}", (1, 5, 9), 8),
    ],
)
def test_spares_are_nodes_more(
    tmp_path: Path, written: str, counts: tuple[int, int, int | None], for_runs: int | None
) -> None:
    nodes = fleet(tmp_path, f"nodes: {written}").nodes
    assert nodes is not None
    assert (nodes.min, nodes.target, nodes.max) == counts
    assert nodes.for_runs == for_runs
    assert nodes.plain() == {"min": counts[0] - nodes.spare, **yaml.safe_load(written)} | {
        "target": counts[1] - nodes.spare
    }
    assert Nodes.model_validate(nodes.plain()) == nodes


def test_one_size_is_a_minimum_for_memory_and_exact_for_disk(tmp_path: Path) -> None:
    resources = fleet(tmp_path, "nodes: 2\nresources: {memory: 32GB, cpu: 4, disk: 200GB}").resources
    assert resources.memory_mib == Range(min=32 * GB)
    assert resources.cpu.count == Range(min=4)
    assert resources.disk_mib == Range(min=200 * GB, max=200 * GB)


def test_defaults_are_those_of_the_language(tmp_path: Path) -> None:
    read = fleet(tmp_path, "nodes: 1")
    assert read.resources.cpu.count == Range(min=2)
    assert read.resources.memory_mib == Range(min=8 * GB)
    assert read.resources.disk_mib == Range(min=100 * GB)
    assert read.resources.gpu.count == Range(min=0)
    assert (read.placement, read.backends, read.blocks, read.idle_duration_s) == (
        "any",
        (),
        1,
        259_200,
    )
    assert "resources" not in read.model_fields_set


def test_what_the_user_wrote_can_be_told_from_defaults(tmp_path: Path) -> None:
    resources = fleet(tmp_path, "nodes: 1\nresources: {memory: 8GB}").resources
    assert resources.model_fields_set == {"memory_mib"}


def test_scalars_are_read_from_their_source_text(tmp_path: Path) -> None:
    read = task(tmp_path, "image: 3.10\nuser: 1000:1000\nenv: {A: 0x1F, B: yes, C: 1e3, D: 24:00:00, E: ~}\n")
    assert read.image == "3.10"
    assert read.user == "1000:1000"
    assert read.env == {"A": "0x1F", "B": "yes", "C": "1e3", "D": "24:00:00", "E": None}


def test_launchers_take_one_line_or_a_mapping(tmp_path: Path) -> None:
    line = task(tmp_path, "torchrun: train.py --name 'a b' ${{ run.args }}").torchrun
    assert line is not None
    assert (line.program, line.args) == ("train.py", ("--name", "a b", "${{run.args}}"))
    module = task(tmp_path, "torchrun: -m pkg.train --x 1").torchrun
    assert module is not None
    assert (module.program, module.module, module.args) == (None, "pkg.train", ("--x", "1"))
    mapping = task(tmp_path, "mpirun: {program: ./ring, args: -b 8, np: 4}").mpirun
    assert mapping is not None
    assert (mapping.args, mapping.np, mapping.mpi) == (("-b", "8"), 4, "auto")


def test_files_and_volumes_have_short_forms(tmp_path: Path) -> None:
    read = task(tmp_path, "image: x\nfiles: [a.py, b:/c]\nvolumes: ['/mnt:/data/']")
    assert [(each.local_path, each.path) for each in read.files] == [("a.py", "a.py"), ("b", "/c")]
    assert read.volumes == (VolumeMount(instance_path="/mnt", path="/data"),)


def test_an_unnamed_fleet_takes_the_name_of_its_file_or_folder(tmp_path: Path) -> None:
    home = tmp_path / "a100-pool"
    home.mkdir()
    for name in ("gpus.yml", "cpus.dstack.yaml", ".dstack.yml"):
        (home / name).write_text("type: fleet\nnodes: 1\n")
    names = {each.name for each in load_paths([home]).require().fleets}
    assert names == {"gpus", "cpus", "a100-pool"}


def test_an_unnamed_run_stays_unnamed(tmp_path: Path) -> None:
    assert task(tmp_path, "image: x").name is None


def test_documents_of_a_file_keep_their_order_and_number() -> None:
    loaded = load_paths([GOOD / "everything.yml"], environ={"TAG": "1.4"}).require()
    assert [(each.index, each.kind) for each in loaded.documents] == [(0, "fleet"), (1, "task"), (2, "task")]
    assert [each.name for each in loaded.tasks] == ["train", "ring"]
    assert loaded.tasks[0].image == "train:1.4"


def test_a_property_knows_its_place() -> None:
    document = load_paths([GOOD / "quickstart.yml"]).documents[1]
    file = str(GOOD / "quickstart.yml")
    assert document.span("nodes") == Span(file, 9, 8, 9, 9)
    assert document.span("nodes", key=True) == Span(file, 9, 1, 9, 6)
    assert document.span("files[0]") == Span(file, 11, 9, 11, 17)
    assert document.span("resources.gpu") == document.span() == Span(file, 7, 1, 7, 11)
    assert load_paths([GOOD / "quickstart.yml"]).documents[0].span("backends[0]").line == 3


def test_a_later_stage_can_point_at_a_property() -> None:
    document = load_paths([GOOD / "quickstart.yml"]).documents[0]
    found = document.diagnostic("ORCH244", "nodes", "too many for this machine", hint="write `1`")
    file = GOOD / "quickstart.yml"
    assert render_human([found]) == (
        f"{file}:4:8: error ORCH244: too many for this machine\n"
        "  4 | nodes: 2\n"
        "    |        ^\n"
        "  hint: write `1`"
    )


def test_a_folder_gives_its_configurations_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "fleet.yml").write_text("type: fleet\nnodes: 1\n")
    (tmp_path / "orch.yml").write_text("project: demo\n")
    (tmp_path / "chart.yaml").write_text("{{ if .Values.x }}\n  a: b\n{{ end }}\n")
    (tmp_path / "ci.yml").write_text("jobs: []\n")
    (tmp_path / "notes.txt").write_text("type: fleet\n")
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: chart\nversion: 1.0.0\ntype: application\n")
    (tmp_path / "secret.yaml").write_text("apiVersion: v1\nkind: Secret\ntype: Opaque\n---\na: b\n")
    loaded = load_paths([tmp_path]).require()
    assert [each.kind for each in loaded.documents] == ["fleet", "project"]
    assert load_paths([tmp_path, tmp_path / "fleet.yml"]).require().documents == loaded.documents


@pytest.mark.parametrize("text", ["tpye: fleet\nnodes: 1\n", "nodes: 1\ntyp: fleet  # two of them\n"])
def test_a_misspelt_type_drops_no_document_of_a_folder_in_silence(tmp_path: Path, text: str) -> None:
    (tmp_path / "fleet.yml").write_text("type: fleet\nname: good\nnodes: 1\n")
    (tmp_path / "other.yml").write_text(text)
    (tmp_path / "chart.yaml").write_text("types: [fleet]\ntyped: yes\nkind: task\n")
    (found,) = load_paths([tmp_path]).diagnostics
    assert (Path(found.span.file).name, found.code, found.hint) == (
        "other.yml",
        "ORCH113",
        "did you mean 'type'?",
    )


def test_a_folder_without_configurations_says_so(tmp_path: Path) -> None:
    (found,) = load_paths([tmp_path]).diagnostics
    assert (found.code, found.summary) == ("ORCH107", "no configuration in this folder")


@pytest.mark.parametrize(
    ("name", "summary"),
    [("missing.yml", "there is no such file"), ("nul\0.yml", "this is not the path of a file")],
)
def test_a_file_that_cannot_be_had_is_one_error(name: str, summary: str) -> None:
    (found,) = load_paths([name]).diagnostics
    assert (found.code, found.summary) == ("ORCH100", summary)


def test_a_file_over_one_mebibyte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.yml"
    path.write_text("# " + "x" * 1024 * 1024)
    assert [each.code for each in load_paths([path]).diagnostics] == ["ORCH105"]


def test_a_file_in_utf_16_is_read(tmp_path: Path) -> None:
    path = tmp_path / "wide.yml"
    path.write_text("type: fleet\nnodes: 1\n", encoding="utf-16")
    assert load_paths([path]).require().fleets[0].name == "wide"


def test_standard_input_is_a_file_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"type: fleet\nnodes: 1\n")))
    (found,) = load_paths(["-"]).diagnostics
    assert str(found.span) == "<stdin>:1:1"
    assert (found.code, found.hint) == ("ORCH113", "add `name: NAME`")


def test_errors_of_all_files_come_in_order_of_file_and_line(tmp_path: Path) -> None:
    paths = [tmp_path / "two.yml", tmp_path / "one.yml"]
    for path in paths:
        path.write_text("type: fleet\nfoo: 1\nnodes: x\nbar: 2\n")
    places = [(Path(each.span.file).stem, each.span.line) for each in load_paths(paths).diagnostics]
    assert places == [("one", 2), ("one", 3), ("one", 4), ("two", 2), ("two", 3), ("two", 4)]


def test_a_document_without_errors_is_there_beside_one_with_errors(tmp_path: Path) -> None:
    path = tmp_path / "two.yml"
    path.write_text("type: fleet\nname: good\nnodes: 1\n---\ntype: fleet\nname: bad\nnodes: x\n")
    loaded = load_paths([path])
    assert loaded.failed
    assert [each.name for each in loaded.fleets] == ["good"]
    with pytest.raises(InvalidConfiguration) as caught:
        loaded.require()
    assert caught.value.exit_code is ExitCode.CONFIG
    assert caught.value.summary == "1 error in the configuration"


def test_a_variable_that_is_not_set_warns_and_stops_a_launch(tmp_path: Path) -> None:
    path = tmp_path / "task.yml"
    path.write_text("type: task\nimage: x\nshell: ${{ env.WITH }}\nnodes: ${{ env.NODES }}\n")
    assert not load_paths([path], environ={}).failed
    assert load_paths([path], environ={}, launch=True).failed
    (read,) = load_paths([path], environ={"WITH": "a$$b", "NODES": "3"}, launch=True).require().tasks
    assert (read.shell, read.nodes) == ("a$$b", 3)


def test_variables_are_taken_from_the_caller_and_missing_ones_pointed_at(tmp_path: Path) -> None:
    path = tmp_path / "task.yml"
    path.write_text("type: task\nimage: x\nenv:\n  - A=1\n  - TOKEN\n  - GONE\n")
    (document,) = load_paths([path]).documents
    assert isinstance(document.model, Task)
    found, missing = resolve_env(document.model.env, {"TOKEN": "t"}, document.draft)
    assert found == {"A": "1", "TOKEN": "t"}
    assert [(each.code, each.span.line, each.summary) for each in missing] == [
        ("ORCH173", 6, "environment variable GONE is not set")
    ]


def test_models_are_frozen_and_built_from_values_too() -> None:
    built = Task(nodes=2, commands=("ls",), max_duration_s=60)
    assert built.nodes == 2
    with pytest.raises(ValueError, match="frozen"):
        built.nodes = 3  # type: ignore[misc]


def test_the_excerpt_marks_wide_characters_and_hides_control_sequences(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text('type: fleet\nnodes: 1\nenv: {火火火: "\u202e", 1x: "a?"}\n')
    rendered = render_human(load_paths([path]).diagnostics)
    assert "\u202e" not in rendered
    assert [line.index("^") for line in rendered.splitlines() if "^" in line] == [12, 25]


def test_json_holds_the_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text("type: fleet\nplacment: cluster\nnodes: 1\n")
    record = json.loads(render_json(load_paths([path]).diagnostics))
    assert record["schema"] == 1
    assert record["diagnostics"] == [
        {
            "file": str(path),
            "line": 2,
            "column": 1,
            "end_line": 2,
            "end_column": 9,
            "path": "placment",
            "severity": "error",
            "code": "ORCH110",
            "summary": "unknown property 'placment' in a fleet",
            "detail": None,
            "hint": "did you mean 'placement'?",
            "replacement": "placement",
            "related": [],
        }
    ]


def test_strictness_makes_errors_of_warnings_alone() -> None:
    span = Span("f", 1, 1, 1, 1)
    given = [
        Diagnostic("ORCH192", span, "x", Severity.WARNING),
        Diagnostic("ORCH190", span, "x", Severity.NOTE),
    ]
    assert [each.severity for each in strict(given)] == [Severity.ERROR, Severity.NOTE]


def test_reading_a_file_loads_no_heavy_library() -> None:
    heavy = ("pulumi", "fabric", "docker", "sqlalchemy", "rich", "paramiko", "jinja2")
    code = (
        "import sys; from orch.spec.loader.load import load_paths; load_paths([sys.argv[1]]);"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(GOOD / "quickstart.yml")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_fleets_variables_without_a_value_are_the_callers(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text(
        "type: fleet\nenv: [TOKEN, A=1]\nssh_config:\n  user: u\n  hosts:\n"
        "    - {hostname: 10.0.0.1, env: [PROXY]}\n    - 10.0.0.2\ninit:\n  - {run: ls, env: {KEY: }}\n"
    )
    caller = {"TOKEN": "a$b", "PROXY": "p", "KEY": "k"}
    (fleet,) = load_paths([path], environ=caller).require().fleets
    assert fleet.ssh_config is not None
    assert fleet.env == {"TOKEN": "a$b", "A": "1"}
    assert [host.env for host in fleet.ssh_config.hosts] == [{"PROXY": "p"}, {}]
    assert [step.env for step in fleet.init] == [{"KEY": "k"}]
    missing = load_paths([path], environ={})
    assert [(each.code, each.severity.value, each.span.line) for each in missing.diagnostics] == [
        ("ORCH173", "warning", 2),
        ("ORCH173", "warning", 6),
        ("ORCH173", "warning", 9),
    ]
    assert load_paths([path], environ={}, launch=("fleet",)).failed
