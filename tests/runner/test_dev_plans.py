"""Dev environments as tasks: what of them is a task's, and what is their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.ledgers.pureruns import compiled, fleet, node

from orch.runner.launch.dev_environment import desktop_link, task_of, ticks
from orch.runner.ledger.run_folder import RunKeys, new_key_pair
from orch.runner.node.stage import stage_files
from orch.runner.plan.run_plan import DevPlan
from orch.spec.loader.load import load_paths
from orch.spec.models import DevEnvironment, Task

KEYS = RunKeys(new_key_pair(), (new_key_pair(), new_key_pair()))


def test_a_dev_environment_is_a_task_that_runs_init_and_stays(tmp_path: Path) -> None:
    (tmp_path / "dev.yml").write_text(
        "type: dev-environment\nname: lab\nide: zed\ninit: [pip install x]\ninactivity_duration: 2h\n"
        "python: 3.12\nnodes: 2\nports: ['8080:80']\nenv: {A: '$B'}\nvolumes: ['/a:/b']\nmax_duration: 1h\n"
        "resources: {gpu: 'A100:80GB:1', memory: 200GB}\nretry: {on_events: [error]}\n"
    )
    (document,) = load_paths([tmp_path / "dev.yml"], environ={}).require().documents
    assert isinstance(document.model, DevEnvironment)
    task, dev = task_of(document.model)
    assert dev == DevPlan(ide="zed", inactivity_s=7200)
    assert task.commands == ("pip install x", "exec sleep 2147483647")
    own = {"type", "commands"}
    shared = (document.model.model_fields_set & set(Task.model_fields)) - own
    assert {"python", "nodes", "ports", "env", "volumes", "max_duration_s", "retry"} < shared
    assert {name: getattr(task, name) for name in shared} == {
        name: getattr(document.model, name) for name in shared
    }
    assert task_of(task) == (task, None)


@pytest.mark.parametrize(
    ("ide", "link"),
    [
        ("vscode", "vscode://vscode-remote/ssh-remote+job/a%20b/c"),
        ("cursor", "cursor://vscode-remote/ssh-remote+job/a%20b/c"),
        ("windsurf", "windsurf://vscode-remote/ssh-remote+job/a%20b/c"),
        ("zed", "zed://ssh/job/a%20b/c"),
        (None, None),
    ],
)
def test_each_ide_has_its_link(ide: str | None, link: str | None) -> None:
    plan = compiled(fleet(node(0)), commands=["true"]).plan
    dev = DevPlan.model_validate({"ide": ide})
    assert desktop_link(plan.model_copy(update={"dev": dev}), "/a b/c") == link


def test_only_what_is_entered_has_a_way_in_and_only_ranks_log_in_to_each_other() -> None:
    plain = compiled(fleet(node(0)), commands=["true"]).plan
    assert not plain.has_keys
    alone = plain.model_copy(update={"dev": DevPlan()})
    pair = compiled(fleet(node(0), node(1)), nodes=2, commands=["true"]).plan
    both = pair.model_copy(update={"dev": DevPlan(inactivity_s=60)})
    files = {name: stage_files(plan, 0, {}, KEYS) for name, plan in (("alone", alone), ("both", both))}
    assert "ssh/serve.sh" not in files["alone"]
    assert "ssh/enter.sh" not in stage_files(pair, 0, {}, KEYS)
    assert {"ssh/serve.sh", "ssh/enter.sh"} < set(files["both"])
    assert "connected" not in files["alone"]["ssh/enter.sh"]
    # Who is connected to one rank is connected to all.
    assert f"for orch_rank in {both.run}-1; do" in files["both"]["ssh/enter.sh"]


@pytest.mark.parametrize("inactivity_s", [1, 4, 30, 3600, 10**6])
def test_there_are_several_looks_before_the_end_and_several_signs_for_each(inactivity_s: int) -> None:
    look_s, sign_s = ticks(inactivity_s)
    assert 1 <= sign_s <= look_s <= 15
    assert inactivity_s < 12 or (look_s * 4 <= inactivity_s and sign_s * 3 <= look_s)
