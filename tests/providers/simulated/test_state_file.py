"""The account's file: many processes at once, deaths at any moment, and the knobs that make calls fail."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit.engine.forkserver import Forked
from kit.support import fork_server, until

from orch.rehearsal.__main__ import main
from orch.rehearsal.account import SimulationError
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.aws.api.errors import AwsError

LAUNCHER = """
import sys
from orch.rehearsal.aws.account import Cloud
cloud = Cloud(sys.argv[1])
params = {"InstanceType": "m7i.large", "ImageId": sys.argv[2], "SubnetId": sys.argv[3]}
for _ in range(int(sys.argv[4])):
    cloud.call("RunInstances", params)
"""


def launcher(account: Any, times: int) -> Forked:
    words = ["-c", str(account.cloud.path), account.image, account.subnet, str(times)]
    return fork_server().start(LAUNCHER, words, os.environ, (os.dup(0), os.dup(1), os.dup(2)))


def instances(account: Any) -> int:
    """How many there are, without reading them all."""
    with closing(sqlite3.connect(account.cloud.path, timeout=60)) as file:
        return int(file.execute("SELECT count(*) FROM things WHERE kind = 'instance'").fetchone()[0])


def test_several_processes_write_at_once_and_nothing_is_lost_or_twice(account: Any) -> None:
    processes = [launcher(account, 20) for _ in range(4)]
    assert [process.wait(120) for process in processes] == [0] * 4
    docs = account.cloud.instances()
    assert len(docs) == 80
    assert len({doc["PrivateIpAddress"] for doc in docs.values()}) == 80
    numbers = [call.number for call in account.cloud.calls]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_process_killed_while_it_writes_leaves_whole_calls_only(account: Any) -> None:
    account.subnet = account.add_subnet("10.0.64.0/18", "us-east-1a")
    account.cloud.turn(quotas={"L-1216C47A": 100_000})
    for _ in range(5):
        before = instances(account)
        process = launcher(account, 3000)
        until(lambda seen=before: instances(account) > seen + 3, 120, "a few launches")
        process.send_signal(signal.SIGKILL)
        process.wait()
    docs = account.cloud.instances()
    done = [call for call in account.cloud.calls if call.action == "RunInstances" and call.done]
    assert len(docs) == len(done)
    free = account.call("DescribeSubnets", SubnetIds=[account.subnet])["Subnets"][0][
        "AvailableIpAddressCount"
    ]
    assert free == 2**14 - 5 - len(docs)


def test_the_same_seed_gives_the_same_ids_and_another_one_others(tmp_path: Path) -> None:
    def vpc(name: str, seed: str) -> str:
        cloud = Cloud.create(tmp_path / name, seed=seed)
        return cloud.call("CreateVpc", {"CidrBlock": "10.0.0.0/16"})["Vpc"]["VpcId"]

    first, again, other = vpc("a", "1"), vpc("b", "1"), vpc("c", "2")
    assert first == again != other
    assert re.fullmatch(r"vpc-0[0-9a-f]{16}", first)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SimulationError):
        Cloud(tmp_path / "none.db")


def test_a_refused_call_changes_nothing_but_the_log(account: Any, refused: Any) -> None:
    before = account.cloud.everything()
    refused(account.call, "CreateVpc", CidrBlock="10.0.0.0/8")
    assert account.cloud.everything() == before
    last = account.cloud.calls[-1]
    assert (last.action, last.error, last.done) == ("CreateVpc", "InvalidVpc.Range", True)


def test_calls_fail_where_they_are_told_to(account: Any, refused: Any) -> None:
    now = len(account.cloud.calls)
    account.cloud.turn(
        failures=[
            {"code": "InternalError", "at": now + 2},
            {"code": "Unavailable", "action": "RunInstances", "nth": 2},
        ]
    )
    account.launch()
    assert refused(account.call, "DescribeVpcs").code == "InternalError"
    error = refused(account.launch)
    assert (error.code, error.status) == ("Unavailable", 503)
    account.launch()
    assert len(account.cloud.instances()) == 2


def test_a_call_takes_as_long_as_it_is_told_to(account: Any) -> None:
    account.cloud.turn(latency_s={"RunInstances": 4.0})
    began = time.monotonic()
    account.call("DescribeVpcs")
    assert time.monotonic() - began < 3.9
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: account.launch(), range(8)))
    assert 4.0 <= time.monotonic() - began < 20.0, "calls wait beside each other, not one after another"


def test_too_many_calls_are_throttled_until_the_bucket_fills(account: Any, refused: Any) -> None:
    account.cloud.turn(clock=1000.0, rate={"DescribeVpcs": {"burst": 2, "per_second": 1}})
    account.call("DescribeVpcs")
    account.call("DescribeVpcs")
    error = refused(account.call, "DescribeVpcs")
    assert (error.code, error.status) == ("RequestLimitExceeded", 503)
    account.call("DescribeSubnets")
    account.cloud.turn(clock=1001.0)
    account.call("DescribeVpcs")


def test_a_hook_runs_at_its_call_with_the_effect_there_or_not(account: Any, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    look = f"{sys.executable} -m orch.rehearsal {account.cloud.path} show instance"
    count = f"{look} | grep -c InstanceId"
    command = f'echo "$ORCH_SIM_ACTION $ORCH_SIM_CALL $({count})" >> {seen}'
    now = len(account.cloud.calls)
    hooks = [{"at": now + 1, "when": when, "command": command} for when in ("before", "after")]
    account.cloud.turn(hooks=hooks)
    account.launch()
    account.launch()
    assert seen.read_text().splitlines() == [f"RunInstances {now + 1} 0", f"RunInstances {now + 1} 1"]


def test_a_caller_killed_before_the_call_is_not_killed_there_again(account: Any) -> None:
    now = len(account.cloud.calls)
    account.cloud.turn(hooks=[{"at": now + 2, "when": "before", "command": 'kill -9 "$ORCH_SIM_PID"'}])
    assert launcher(account, 3).wait(120) == -signal.SIGKILL
    assert len(account.cloud.instances()) == 1
    assert [call.done for call in account.cloud.calls[-2:]] == [True, False]
    assert launcher(account, 3).wait(120) == 0
    assert len(account.cloud.instances()) == 4


def test_an_unknown_action_is_refused(account: Any) -> None:
    with pytest.raises(AwsError, match="InvalidAction"):
        account.call("MakeCoffee")


def test_a_dry_run_says_that_it_would_have_succeeded(account: Any, refused: Any) -> None:
    assert refused(account.call, "CreateVpc", CidrBlock="10.9.0.0/16", DryRun=True).code == "DryRunOperation"


# -- the command line --------------------------------------------------------------------------------------


COMMAND_LINE = "import runpy; runpy.run_module('orch.rehearsal', run_name='__main__')"


def command(account: Any, *words: str) -> Any:
    words = ("orch.rehearsal", str(account.cloud.path), *words)
    code, out, err = fork_server().call(words, Path.cwd(), os.environ, code=COMMAND_LINE)
    return json.loads(out) if code == 0 else err


def test_the_command_line_changes_the_cloud_behind_the_back(account: Any) -> None:
    (instance,) = account.launch()
    assert command(account, "show")[instance] == "instance"
    command(account, "tag", account.vpc, "owner=somebody")
    command(account, "add-rule", account.group, "tcp", "22", "0.0.0.0/0")
    command(account, "terminate", instance)
    assert not account.cloud.instances()
    group = account.call("DescribeSecurityGroups", GroupIds=[account.group])["SecurityGroups"][0]
    assert group["IpPermissions"][0]["FromPort"] == 22
    assert command(account, "calls", "--last", "2")[0].split()[-2:] == ["drift", "ok"]


def test_the_command_line_turns_knobs_and_refuses_wrong_ones(account: Any) -> None:
    command(account, "set", "capacity.p5.48xlarge@us-east-1a=3", "capacity.*@us-east-1b=0", "pending_s=2")
    knobs = account.cloud.knobs
    assert knobs.capacity == {"p5.48xlarge@us-east-1a": 3, "*@us-east-1b": 0}
    assert knobs.pending_s == 2
    assert "nonsense" in command(account, "set", "nonsense=1")
    assert "InvalidInstanceID" in command(account, "terminate", "i-00000000000000000")


def test_the_account_may_be_read_in_part_and_a_word_that_cannot_be_read_is_told(
    account: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    os.close(read)  # as `| head` does when it has seen enough
    try:
        words = [sys.executable, "-m", "orch.rehearsal", str(account.cloud.path), "show"]
        done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
    for words in (["call", "RunInstances", "{not json"], ["set", "pending_s={"]):
        assert main([str(account.cloud.path), *words]) == 2
        assert "error: a word is not written as it must be" in capsys.readouterr().err
