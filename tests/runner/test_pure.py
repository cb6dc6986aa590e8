"""Hostfiles, quoting, launcher text, placement: decisions without a node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from kit.ledgers.pureruns import compiled, fleet, node

from orch.runner.errors import BadTask, HostfileIncomplete, NoFit
from orch.runner.launch.launcher import hostfile, internal_addresses, quote_word
from orch.runner.placement.availability import NodeAvailability
from orch.runner.placement.node_fit import blocks_needed
from orch.runner.placement.placement import place_task
from orch.runner.plan.environment import host_names
from orch.runner.plan.run_plan import Elastic, RankPort
from orch.spec.access import OtherAccess
from orch.spec.models import Task
from orch.spec.state import FleetState, Gpus

# --- hostfile


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("openmpi", "10.0.0.1 slots=8\n10.0.0.2 slots=4\n"),
        ("deepspeed", "10.0.0.1 slots=8\n10.0.0.2 slots=4\n"),
        ("mpich", "10.0.0.1:8\n10.0.0.2:4\n"),
        ("intel", "10.0.0.1:8\n10.0.0.2:4\n"),
        ("plain", "10.0.0.1\n10.0.0.2\n"),
    ],
)
def test_hostfiles_have_their_dialect(dialect, text: str):
    assert hostfile(["10.0.0.1", "10.0.0.2"], [8, 4], dialect) == text


def test_a_hostfile_without_counts_is_bare_addresses():
    assert hostfile(["10.0.0.1", "10.0.0.2"], None) == "10.0.0.1\n10.0.0.2\n"


def test_every_node_without_an_internal_address_is_named():
    nodes = [node(0), node(1, internal_ip=None), node(2, internal_ip=None)]
    with pytest.raises(HostfileIncomplete, match=r"nodes n\[1-2\] have no internal address"):
        internal_addresses(nodes)


def test_one_node_without_an_internal_address_talks_to_itself():
    assert internal_addresses([node(0, internal_ip=None)]) == ("127.0.0.1",)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ({"commands": ["true"]}, "10.0.0.1\n10.0.0.2\n"),
        ({"torchrun": "t.py"}, "10.0.0.1 slots=1\n10.0.0.2 slots=1\n"),
        ({"mpirun": {"program": "a", "nproc_per_node": 3}}, "10.0.0.1 slots=3\n10.0.0.2 slots=3\n"),
        ({"mpirun": {"program": "a", "mpi": "mpich"}}, "10.0.0.1:1\n10.0.0.2:1\n"),
    ],
)
def test_the_hostfile_follows_the_launcher(task: dict[str, object], text: str):
    assert compiled(fleet(node(0), node(1)), nodes=2, **task).plan.hostfile == text


def test_the_hostfile_counts_accelerators_for_plain_commands_too():
    gpus = fleet(*(node(i, gpus=Gpus(count=8)) for i in (0, 1)))
    assert compiled(gpus, nodes=2, commands=["true"]).plan.hostfile == "10.0.0.1 slots=8\n10.0.0.2 slots=8\n"


# --- quoting


@pytest.mark.parametrize(
    "word", ["plain", "", "a b", "it's", "`id`", "$(id)", "a;b", "--x=*", "end\\", '"', "a\nb"]
)
def test_words_reach_the_program_unchanged(word: str):
    text = f"printf %s {quote_word(word)}"
    assert subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout == word


def test_variables_in_words_are_filled_by_the_jobs_environment():
    text = f"printf %s {quote_word('$A/${B}x$(c)')}"
    done = subprocess.run(
        ["sh", "-c", text], env={"A": "it's", "B": "b b"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "it's/b bx$(c)"


# --- launchers


def test_torchrun_is_static_by_default_and_knows_every_number():
    script = compiled(fleet(node(0), node(1)), nodes=2, torchrun="train.py --epochs 3").plan.ranks[1].script
    assert script.endswith(
        "exec $orch_torchrun \\\n"
        "  --nnodes=2 \\\n"
        "  --nproc_per_node=1 \\\n"
        "  --node_rank=1 \\\n"
        "  --max_restarts=0 \\\n"
        "  --monitor_interval=0.2 \\\n"
        "  --rdzv_id=job \\\n"
        "  --rdzv_backend=static \\\n"
        '  --rdzv_endpoint=10.0.0.1:"$MASTER_PORT" \\\n'
        "  --rdzv_conf=timeout=900 \\\n"
        "  train.py --epochs 3\n}\n"
    )


@pytest.mark.parametrize(
    ("block", "there", "not_there"),
    [
        (
            {"max_restarts": 2},
            ["--rdzv_backend=c10d", "--max_restarts=2", "join_timeout=900"],
            ["--node_rank"],
        ),
        ({"nnodes": "1..2"}, ["--nnodes=1:2", "--rdzv_backend=c10d"], ["--node_rank"]),
        ({"nproc_per_node": 4}, ["--nproc_per_node=4"], []),
        ({"rdzv": {"port": 1234, "host": 1}}, ["--rdzv_endpoint=10.0.0.2:1234"], ["MASTER_PORT"]),
        ({"extra": ["--log_dir", "a b"]}, ["--log_dir \\\n  'a b'"], []),
        ({"program": "./binary"}, ["--no_python ./binary"], []),
        ({"program": None, "module": "pkg.train"}, ["-m pkg.train"], []),
    ],
)
def test_torchrun_flags_follow_the_block(block: dict[str, object], there: list[str], not_there: list[str]):
    script = (
        compiled(fleet(node(0), node(1)), nodes=2, torchrun={"program": "train.py", **block})
        .plan.ranks[0]
        .script
    )
    assert all(text in script for text in there), script
    assert not any(text in script for text in not_there), script


def test_an_elastic_torchrun_may_lose_nodes_down_to_its_least():
    on = fleet(node(0), node(1))
    block = {"program": "t.py", "nnodes": "1..2", "rdzv": {"host": 1}}
    assert compiled(on, nodes=2, torchrun=block).plan.elastic == Elastic(least=1, rendezvous_rank=1)
    assert compiled(on, nodes=2, torchrun={**block, "nnodes": "2..2"}).plan.elastic is None
    assert compiled(on, nodes=2, torchrun="t.py").plan.elastic is None


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (
            {"mpi": "mpich"},
            "-f FILE -bind-to none -launcher ssh -launcher-exec /run/orch/bin/ssh -iface eth7 "
            "-genvnone -genv A b -x y -n 4 ./a.out",
        ),
        ({"mpi": "mpich", "bind_to": "core"}, "-f FILE -bind-to core -launcher ssh"),
        ({"mpi": "mpich", "np": 3}, "-x y -n 3 ./a.out"),
        # Intel MPI Library Developer Reference, "Global Hydra Options" and "Environment Variables for Process
        # Pinning".
        (
            {"mpi": "intel"},
            "-machinefile FILE -bootstrap ssh -bootstrap-exec /run/orch/bin/ssh -genv I_MPI_PIN disable "
            "-iface eth7 -genvnone -genv A b -x y -n 4 ./a.out",
        ),
        ({"mpi": "intel", "bind_to": "socket"}, "-genv I_MPI_PIN_DOMAIN socket -iface"),
        ({"mpi": "openmpi", "bind_to": "core"}, "--hostfile FILE -np 4 --map-by slot --bind-to core --mca"),
    ],
)
def test_each_mpi_gets_its_own_flags_and_lines(block: dict[str, object], words: str, tmp_path: Path):
    task = {"program": "./a.out", "extra": "-x y", "export": ["A"], "nproc_per_node": 2, **block}
    # What the job itself reads is its own affair.
    script = (
        compiled(fleet(node(0), node(1)), nodes=2, mpirun={**task, "hostfile": "plain"}).plan.ranks[0].script
    )
    (tmp_path / "ssh").touch(0o755)
    (tmp_path / "mpirun").write_text(
        '#!/bin/sh\nfor w; do case $w in */machines) cat "$w" >&2; w=FILE;; esac; printf "%s\\n" "$w"; done'
    )
    (tmp_path / "mpirun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "A": "b", "ORCH_IFNAME": "eth7"}
    text = script.replace("/run/orch/bin/ssh", f"{tmp_path}/ssh").replace(
        "/run/orch/state/ssh", str(tmp_path)
    )
    done = subprocess.run(["sh", "-c", text], env=environment, capture_output=True, text=True, check=True)
    told = " ".join(done.stdout.split()).replace(f"{tmp_path}/ssh", "/run/orch/bin/ssh")
    assert words in told
    line = "{} slots={}\n" if block["mpi"] == "openmpi" else "{}:{}\n"
    assert done.stderr == "".join(line.format(f"10.0.0.{n}", 2) for n in (1, 2))


def test_mpirun_orders_ranks():
    plan = compiled(fleet(node(0), node(1)), nodes=2, mpirun="./a.out").plan
    assert (plan.startup_order, plan.stop_criteria) == ("workers-first", "master-done")
    assert "mpirun" not in plan.ranks[1].script.replace("mpirun needs", "")


@pytest.mark.parametrize("task", [{"mpirun": "./a.out"}, {"torchrun": "t.py"}, {"commands": ["true"]}])
def test_ranks_of_every_distributed_run_log_in_to_each_other(task: dict[str, object]):
    assert compiled(fleet(node(0), node(1)), nodes=2, **task).plan.ssh_between
    assert not compiled(fleet(node(0)), **task).plan.ssh_between


def test_a_port_of_the_task_is_one_of_rank_0():
    plan = compiled(fleet(node(0), node(1)), nodes=2, commands=["true"], ports=["8080:80", "*:22"]).plan
    assert [rank.ports for rank in plan.ranks] == [(RankPort(job=80, local=8080), RankPort(job=22)), ()]


def test_nodes_are_called_by_their_names_in_jobs_where_those_are_host_names():
    assert host_names("job", ["gpu-1", "gpu2.lan", "10.0.0.3", "x_y", "a" * 64]) == (
        *("gpu-1", "gpu2.lan"),
        *("job-2", "job-3", "job-4"),
    )


def test_scripts_are_valid_shell():
    for task in ({"torchrun": "t.py"}, {"mpirun": "./a.out"}, {"commands": ["echo a # b", "cat <<E\nx\nE"]}):
        for rank in compiled(fleet(node(0), node(1)), nodes=2, **task).plan.ranks:
            done = subprocess.run(
                ["sh", "-n"], input=rank.script, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr


def test_values_of_a_job_are_filled_in_per_rank():
    plan = compiled(
        fleet(node(0), node(1)),
        nodes=2,
        commands=["echo ${{ orch.node_rank }} ${{ dstack.run_name }} $$"],
        working_dir="/w/${{ orch.node_rank }}",
    ).plan
    assert [rank.script for rank in plan.ranks] == ["{ echo 0 job $$\n}\n", "{ echo 1 job $$\n}\n"]
    assert [rank.working_dir for rank in plan.ranks] == ["/w/0", "/w/1"]


def test_the_same_request_gives_the_same_bytes():
    def once() -> str:
        return compiled(fleet(node(0), node(1)), nodes=2, torchrun="t.py").plan.model_dump_json()

    assert once() == once()


def test_a_variable_with_a_bad_name_is_refused():
    with pytest.raises(BadTask, match=r"a\.b"):
        compiled(fleet(node(0), env={"a.b": "1"}), commands=["true"])


# --- placement


def test_ranks_follow_the_topology():
    nodes = [
        node(0, topology=("b",)),
        node(1, topology=("a", "1")),
        node(2, topology=("b",)),
        node(3, topology=("a", "0")),
    ]
    seats = place_task(Task(commands=("x",), nodes=4), fleet(*nodes))
    assert [seat.node.name for seat in seats] == ["n3", "n1", "n0", "n2"]


def test_idle_nodes_come_before_occupied_ones():
    task = Task(commands=("x",), nodes=2)
    seats = place_task(
        task,
        fleet(*(node(i) for i in range(4))),
        {"n0": NodeAvailability(busy=1), "n2": NodeAvailability(busy=1)},
    )
    assert [seat.node.name for seat in seats] == ["n1", "n3"]


@pytest.mark.parametrize(("gpu", "blocks"), [(None, 1), ("1", 1), ("2", 2), ("8", 8), ("3..", 3)])
def test_a_job_takes_the_fewest_blocks_that_hold_it(gpu: str | None, blocks: int):
    resources = {} if gpu is None else {"gpu": gpu}
    task = Task.model_validate({"commands": ["x"], "resources": resources})
    assert blocks_needed(task.resources, node(0, gpus=Gpus(count=8), blocks=8)) == blocks


def test_a_distributed_job_takes_all_blocks():
    seats = place_task(Task(commands=("x",), nodes=2), fleet(node(0, blocks=4), node(1, blocks=4)))
    assert [seat.blocks for seat in seats] == [4, 4]


@pytest.mark.parametrize(
    ("task", "on", "why"),
    [
        ({"nodes": 3}, fleet(node(0), node(1)), "it has 2 nodes, the task needs 3"),
        ({"nodes": 3}, fleet(node(0)), "it has 1 node, the task needs 3"),
        ({"nodes": 2}, fleet(node(0), node(1), placement="any"), "placement: cluster"),
        ({"resources": {"gpu": 1}}, fleet(node(0)), "node n0 has 0 GPUs, the task asks for 1"),
        ({"resources": {"cpu": 99}}, fleet(node(0)), "node n0 has 8 CPUs, the task asks for 99"),
        ({"resources": {"gpu": "H100:1"}}, fleet(node(0, gpus=Gpus(count=8, name="A100"))), "has A100 GPUs"),
        (
            {"resources": {"gpu": "H100:16", "memory": "96GB", "cpu": "arm:8.."}},
            fleet(node(0, gpus=Gpus(count=8, name="A100"), memory_mib=98_303, arch="x86")),
            "of what the task asks for, node n0 has 8 of 16 GPUs, 98303MB of 98304MB memory, "
            "the architecture x86, not arm, A100 GPUs, not H100\n"
            "  hint: provision a fitting fleet, or change `resources` of the task",
        ),
    ],
)
def test_what_does_not_fit_is_told(task: dict[str, object], on: FleetState, why: str):
    with pytest.raises(NoFit) as caught:
        place_task(Task.model_validate({"commands": ["x"], **task}), on)
    assert why in caught.value.text()


@pytest.mark.parametrize(
    ("task", "hint"),
    [
        ({"nodes": 3}, "`placement: cluster` and enough nodes, or lower `nodes`"),
        ({"resources": {"gpu": 8}}, "a fitting fleet, or change `resources.gpu` of the task"),
        (
            {"nodes": 2, "resources": {"gpu": 8}},
            "a fleet whose nodes each have what the task asks for, or change `resources.gpu` of the task",
        ),
        ({"nodes": 2, "resources": {"memory": "9TB"}}, "or change `resources.memory` of the task"),
    ],
)
def test_the_hint_is_about_what_does_not_fit(task: dict[str, object], hint: str):
    with pytest.raises(NoFit) as caught:
        place_task(Task.model_validate({"commands": ["x"], **task}), fleet(node(0), node(1)))
    assert hint in (caught.value.hint or "")
    assert ("placement" in hint) is ("placement" in (caught.value.hint or ""))


def test_a_pod_that_is_not_there_yet_is_told_as_its_fleets():
    slot = node(0, gpus=Gpus(count=8, name="H100")).model_copy(
        update={"name": "h100-0", "access": OtherAccess.model_validate({"kind": "kubernetes"})}
    )
    task = Task.model_validate({"commands": ["x"], "resources": {"gpu": "A100:8"}})
    with pytest.raises(NoFit, match="does not fit") as caught:
        place_task(task, fleet(slot))
    assert caught.value.detail == "a pod of fleet h100 has H100 GPUs, the task asks for A100"


def test_the_language_s_default_minimums_exclude_no_node():
    assert place_task(Task(commands=("x",)), fleet(node(0, cpus=1, memory_mib=512)))


# --- checkpoints


@pytest.mark.parametrize(
    ("backend", "path", "volumes", "mounts", "told"),
    [
        ("aws", "/saved/run", ["/data:/saved"], [{"path": "/data"}], []),
        ("aws", "/data/run", [], [{"path": "/data"}], []),
        ("ssh", "/saved/run", ["/data:/saved"], [], []),
        (
            "aws",
            "/saved/run",
            ["/data:/saved"],
            [{"path": "/dat"}],
            ["a folder of the node itself"],
        ),
        ("aws", "/saved", [{"name": "own", "path": "/saved", "instance": True}], [], ["and goes with it"]),
        ("local", "/saved", ["/data:/sav"], [], ["it is in the container alone"]),
        ("local", "/saved", ["/data:/saved"], [], ["and other nodes do not have it"]),
        ("aws", "/data", [], [{"path": "/data", "read_only": True}], ["/data is mounted read-only"]),
    ],
)
def test_a_checkpoint_folder_that_a_later_attempt_does_not_find_is_told(
    backend: str, path: str, volumes: list[object], mounts: list[dict[str, object]], told: list[str]
) -> None:
    on = fleet(node(0), node(1), backend=backend, mounts=mounts)
    warnings = compiled(on, image="i", nodes=2, volumes=volumes, checkpoint=path).warnings
    assert len(warnings) == len(told)
    for warning, words in zip(warnings, told, strict=True):
        assert warning.startswith(f"ORCH263: what is saved in {path} is not there for a later attempt: ")
        assert words in warning


def test_the_folder_of_the_only_local_node_is_there_for_each_attempt() -> None:
    alone = compiled(
        fleet(node(0), backend="local"), image="i", volumes=["/data:/saved"], checkpoint="/saved"
    )
    assert alone.warnings == ()


def test_a_policy_that_nobody_can_watch_is_told() -> None:
    policy = {"min_gpu_utilization": 10, "time_window": "1h"}
    for more, told in (
        ({"gpus": Gpus(count=8, vendor="nvidia")}, 0),
        ({"gpus": Gpus(count=8, vendor="amd")}, 0),
        ({"gpus": Gpus(count=8, vendor="tenstorrent")}, 1),
    ):
        run = compiled(fleet(node(0, **more)), image="i", utilization_policy=policy)
        assert len(run.warnings) == told
    simulated = fleet(node(0, gpus=Gpus(count=8, vendor="nvidia")), simulated=True)
    (warning,) = compiled(simulated, image="i", utilization_policy=policy).warnings
    assert warning.startswith("`utilization_policy` is not watched on n0")
