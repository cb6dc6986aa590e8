"""A crash tells nothing that was given in confidence: neither on the terminal nor in the trace to report."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from orch.cli import outcome
from orch.cli.confidential import masked

CANARY = "hf_canary'42\"\\"


@pytest.mark.parametrize(
    "words",
    [["--env", f"T={CANARY}"], ["-e", f"T={CANARY}"], [f"--env=T={CANARY}"], [f"-eT={CANARY}"], ["-e", "T"]],
)
def test_a_crash_does_not_tell_what_env_was_given(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["orch", "run", "t.yml", *words])
    monkeypatch.setenv("T", CANARY)

    def crash() -> None:
        kept_here = {"T": CANARY}  # a local variable, which a trace with locals would show
        subprocess.run(["false", *sys.argv, f"{kept_here}"], check=True)

    with pytest.raises(SystemExit) as ended:
        outcome.run(crash)
    told = capsys.readouterr().err
    file = Path(re.findall(r"trace is in (\S+);", told)[0])
    trace = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    file.unlink()
    assert ended.value.code == 1
    assert "CalledProcessError" in trace
    assert "in crash" in trace
    assert "canary" not in told + trace


def test_the_caller_s_own_secrets_are_masked_by_their_names() -> None:
    environ = {"AWS_SECRET_ACCESS_KEY": "abc/defghi", "HOME": "/root/home", "HF_TOKEN": "tok"}
    text = "401 for abc/defghi at /root/home with tok"
    assert masked(text, [], environ) == "401 for (secret) at /root/home with tok"


def test_words_for_the_job_are_none_of_orch_s_options() -> None:
    assert masked("epochs", ["orch", "run", "t.yml", "--", "-epochs"], {}) == "epochs"


def test_the_command_line_that_all_users_see_is_covered() -> None:
    """A run lasts for days; its command line is shown to everybody by `ps`."""
    code = (
        "import sys; from orch.cli.confidential import cover_arguments; cover_arguments(); "
        "print(open('/proc/self/cmdline', 'rb').read().split(bytes(1))[3:-1], sys.argv[1:])"
    )
    words = ["run", "t.yml", "--env", "T=hf_é", "-eU=b=c", "--env=V=x", "--env", "W", "--", "-e", "X=1"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    covered = [
        b"run",
        b"t.yml",
        b"--env",
        b"T=*****",
        b"-eU=***",
        b"--env=V=*",
        b"--env",
        b"W",
        b"--",
        b"-e",
        b"X=1",
    ]
    assert done.stdout.strip() == f"{covered} {words}"
