"""The example of a policy in Rego: its fields are those of plans, and conftest judges real ones by it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import Rehearsed
from kit.forges.dangers import compiled, node, plan
from kit.forges.gotools import tool
from kit.support import ROOT

from orch.cli.output.plan import plan_json
from orch.stacks.plans.saved_plan import Operation, StackPlan

REGO = ROOT / "examples" / "policies" / "rego"


def test_it_names_fields_that_plans_have() -> None:
    text = (REGO / "plan.rego").read_text()
    after = compiled(2)
    data = plan_json(plan([node("delete", 2), node("same", 0)], after, 3))
    of_stack = {*data, *(f"cost.{each}" for each in data["cost"])}
    named = set(re.findall(r"stack\.((?:cost\.)?\w+)", text))
    assert named == {"changes", "operations", "cost.delta", "delta", "per", "policies"}
    assert named <= of_stack | set(StackPlan.model_fields)
    assert set(re.findall(r"change\.(\w+)", text)) <= set(data["changes"][0])
    assert set(re.findall(r"operation\.(\w+)", text)) <= set(Operation.model_fields)


def judged(file: Path) -> tuple[int, list[str]]:
    """The exit code of conftest, and what it refuses a plan for."""
    words = [tool("conftest"), "test", file, "--policy", REGO, "--output", "json"]
    done = subprocess.run([str(each) for each in words], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return done.returncode, [each["msg"] for result in results for each in result.get("failures", ())]


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_conftest_judges_what_orch_writes(tmp_path: Path, engine: None) -> None:
    there: Rehearsed = Rehearsed.make(tmp_path)
    there.fleet(1, instance_types=["c7i.8xlarge"], placement="any")
    there.fleet(3, name="dear")
    said = there.preview()
    assert said.code == 0, said.err
    (tmp_path / "cheap.json").write_text(said.out)
    assert judged(tmp_path / "cheap.json") == (0, [])
    said = there.orch("preview", ".", "--rehearse", "--json")
    assert said.code == 0, said.err
    (tmp_path / "all.json").write_text(said.out)
    said = there.orch("preview", ".", "--rehearse", "--out", "plan.json")
    assert said.code == 0, said.err
    for name in ("all.json", "plan.json"):
        code, refused = judged(tmp_path / name)
        assert code == 1
        assert [re.sub(r"[0-9.]+", "N", each) for each in refused] == ["dear: the plan adds $N an hour"]
    # What one plan deletes, in both forms.
    gone = plan([node("delete", 1), node("delete", 2), node("same", 0)], compiled(1), 3)
    (tmp_path / "gone.json").write_text(json.dumps(plan_json(gone)))
    assert judged(tmp_path / "gone.json") == (1, ["p5: 2 resources are deleted or replaced: p5-1, p5-2"])
    operations = [{"op": each.op, "urn": each.urn} for each in gone.changes]
    saved = {"stacks": [{"name": "p5", "delta": 0.0, "per": "hour", "operations": operations}]}
    (tmp_path / "saved.json").write_text(json.dumps(saved))
    assert judged(tmp_path / "saved.json") == (1, ["p5: 2 resources are deleted or replaced: p5-1, p5-2"])
