"""The environment of a rank: one case per file in environments/, every value written out."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from orch.runner.plan.environment import RankNode, RunFacts, RunNodes, rank_environment, wants_slurm
from orch.spec.grammar.hosts import fold

CASES = sorted((Path(__file__).parent / "environments").glob("*.yml"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_the_environment_is_exactly_as_written(case: Path):
    given: dict[str, Any] = yaml.safe_load(case.read_text())
    nodes = tuple(RankNode(**node) for node in given["nodes"])
    run = RunFacts(**given["run"], nodes=RunNodes(given["name"], nodes))
    found = rank_environment(run, given["rank"])
    expected: dict[str, str] = given["expected"]
    # Every row of the contract exists under both prefixes; the file writes it once.
    expected |= {
        key.replace("DSTACK_", "ORCH_", 1): value
        for key, value in expected.items()
        if key.startswith("DSTACK_")
    }
    values = dict(found.values)
    if "only" in given:
        values = {key: value for key, value in values.items() if key.startswith(tuple(given["only"]))}
    for key in ("DSTACK_JOB_ID", "ORCH_JOB_ID"):
        if key in values:
            assert str(uuid.UUID(values.pop(key))) == found.values["ORCH_JOB_ID"]
            expected.pop(key, None)
    assert values == expected
    assert list(found.ignored) == given.get("refused", [])


def test_there_is_at_least_one_case():
    assert len(CASES) >= 4


def test_job_ids_differ_by_rank_and_attempt_and_are_stable():
    nodes = RunNodes("n", (RankNode("a", "10.0.0.1"), RankNode("b", "10.0.0.2")))

    def job_id(rank: int, attempt: int) -> str:
        run = RunFacts(1, "r", "f", "local", nodes, attempt=attempt)
        return rank_environment(run, rank).values["ORCH_JOB_ID"]

    assert len({job_id(rank, attempt) for rank in (0, 1) for attempt in (0, 1)}) == 4
    assert job_id(1, 1) == job_id(1, 1)


def test_the_old_slurm_job_variable_is_never_set():
    run = RunFacts(1, "r", "f", "local", RunNodes("n", (RankNode("a", "10.0.0.1"),)), slurm=True)
    assert "SLURM_JOBID" not in rank_environment(run, 0).values


@pytest.mark.parametrize(
    ("setting", "texts", "wanted"),
    [
        ("auto", ["python x.py"], False),
        ("auto", ["srun", "echo $SLURM_PROCID"], True),
        (True, [], True),
        (False, ["echo $SLURM_PROCID"], False),
    ],
)
def test_slurm_variables_follow_the_text_unless_told(setting: str | bool, texts: list[str], wanted: bool):
    assert wants_slurm(setting, texts) is wanted


def test_names_fold():
    assert fold(["t-0", "t-1", "t-3"]) == "t-[0-1,3]"
