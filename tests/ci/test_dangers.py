"""Dangers that a pipeline tells: the comment of each is a file of `comments/`, and says so near its top.

`ORCHCTL_TEST_WRITE=1 pytest tests/ci/test_dangers.py` writes them anew. That of a plan edited by hand is
from a real `up --plan`: tests/e2e/test_saved_plans.py.
"""

from __future__ import annotations

import json

import pytest
from kit.forges.dangers import compare_comment, node_under_512_gpus
from kit.support import Folder

from orch.ci.comments import Footing, composed, stale
from orch.ci.findings import BadFindings, findings_comment, read_findings
from orch.review.markdown import markdown

HEAD, BASE = "4f" * 20, "b1" * 20


def test_a_fork_that_reads_the_environment_and_files_of_the_machine(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "of-the-pipeline")
    (folder.path / "fork").mkdir()
    folder.write(
        "fork/fleet.yml",
        "type: fleet\nname: lab\n"
        "tags:\n  note: ${{ env.DEPLOY_TOKEN }}\n"
        "ssh_config: {hosts: [gpu1], identity_file: ~/.ssh/id_ed25519}\n",
    )
    folder.write(
        "fork/train.yml",
        "type: task\nname: train\ncommands: [env]\nenv: [DEPLOY_TOKEN]\nfiles: [/etc/passwd]\n",
    )
    said = folder.orch("validate", "--untrusted", "--format", "json", "fork")
    assert said.code == 3
    folder.write("found.json", said.out)
    found = read_findings([str(folder.path / "found.json")], untrusted=True)
    assert found.conclusion == "failure"
    text = composed(findings_comment(found, "fork", fork=True), Footing(HEAD, BASE))
    assert "of-the-pipeline" not in text + json.dumps(said.out)
    compare_comment("fork-reads-the-environment", text, r"'DEPLOY\_TOKEN' is not read")


@pytest.mark.parametrize("hourly", ["NaN", "Infinity", "1e400"])
def test_a_cost_of_a_fork_is_a_number(folder: Folder, hourly: str) -> None:
    folder.write("found.json", f'{{"schema": 1, "fleet": "lab", "cost": {{"hourly": {hourly}}}}}')
    with pytest.raises(BadFindings, match="no JSON of orch"):
        read_findings([str(folder.path / "found.json")], untrusted=True)


def test_a_plan_whose_base_moved() -> None:
    posted = composed(markdown(node_under_512_gpus()), Footing(HEAD, BASE))
    text = stale(posted, "main moved on to 0a0a0a0a0a0a")
    assert text is not None
    assert stale(text, "main moved on again") is None
    compare_comment("stale-base", text, "This plan is stale: main moved on to 0a0a0a")
