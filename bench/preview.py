"""A preview without changes of the quickstart fleet, against the same preview of a bare Pulumi program."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.measure import BIN, ROOT, Figure, side_by_side, timed
from orch.stacks.engine import install as engines
from orch.stacks.project.project import find
from orch.stacks.stack.state import project_file

RUNS = 7

BARE = '''"""As many resources of the same provider, registered by hand."""

import pulumi


class Made(pulumi.CustomResource):
    def __init__(self, kind, name, props, outputs, opts):
        super().__init__(kind, name, {**props, **dict.fromkeys(outputs)}, opts)


class Group(pulumi.ComponentResource):
    def __init__(self):
        super().__init__("bare:index:Group", "bare")


group = Group()
opts = pulumi.ResourceOptions(parent=group)
Made("orch:local:Network", "net", {"name": "orch-bench-bare", "stack": "bench"}, ["subnet", "gateway"], opts)
for i in range(3):
    keys = ["client_private_key", "client_public_key", "host_seed"]
    Made("orch:index:Keys", f"keys-{i}", {"name": f"keys-{i}"}, keys, opts)
'''


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mine, bare = folder / "mine", folder / "bare"
        shutil.copytree(ROOT / "examples" / "quickstart", mine)
        (mine / "orch.yml").write_text("project: bench-mine\n")
        bare.mkdir()
        (bare / "orch.yml").write_text("project: bench-bare\n")
        (bare / "Pulumi.yaml").write_text(project_file("bench-bare", ".orch/config"))
        (bare / "__main__.py").write_text(BARE)
        project = find(bare)
        project.prepare()
        engine = engines.require()
        env = {**os.environ, **project.environment(engine)}
        pulumi, orch = [str(engine.command), "--non-interactive"], str(BIN / "orch")
        try:
            timed([orch, "up", "fleet.yml", "--yes"], cwd=mine)
            timed([*pulumi, "stack", "init", "bare"], cwd=bare, env=env)
            timed([*pulumi, "up", "--yes", "--skip-preview", "--stack", "bare"], cwd=bare, env=env)
            ours, theirs = side_by_side(
                lambda: timed([orch, "preview", "fleet.yml"], cwd=mine),
                lambda: timed([*pulumi, "preview", "--stack", "bare"], cwd=bare, env=env),
                RUNS,
            )
        finally:
            timed([*pulumi, "destroy", "--yes", "--skip-preview", "--stack", "bare"], cwd=bare, env=env)
            timed([orch, "down", "fleet.yml", "--yes"], cwd=mine)
    yield Figure(
        "preview without changes",
        tuple(ours),
        tuple(theirs),
        "`pulumi preview` of a bare program, 5 resources each",
        2.0,
    )
