"""A crash tells nothing that was given in confidence: neither on the terminal nor in the trace to report."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.models import OptionInfo

from orch.cli import errors
from orch.cli.redaction import _VALUED, masked  # pyright: ignore[reportPrivateUsage]
from orch.cli.runs.run import run
from orch.spec.confidential import remember

CANARY = "hf_canary'42\"\\"


@pytest.mark.parametrize(
    "words",
    [
        ["--env", f"T={CANARY}"],
        ["-e", f"T={CANARY}"],
        [f"--env=T={CANARY}"],
        [f"-eT={CANARY}"],
        ["-e", "T"],
        ["-de", f"T={CANARY}"],
        [f"-deT={CANARY}"],
        [f"-e=T={CANARY}"],
        ["-n", "--", "-e", f"T={CANARY}"],
        ["-dn", "--", "-e", f"T={CANARY}"],
        ["--fleet", "--", "--env", f"T={CANARY}"],
        ["-ne", "-e", f"T={CANARY}"],
    ],
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
        errors.run(crash)
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


@pytest.mark.parametrize("words", [["name", CANARY], ["--", "name", CANARY], ["name", "--", CANARY]])
def test_a_crash_does_not_tell_the_secret_that_was_to_be_set(words: list[str]) -> None:
    assert masked(f"at {CANARY!r}", ["orch", "secret", "set", *words], {}) == "at '(secret)'"


def test_a_crash_does_not_tell_a_secret_that_was_decrypted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["orch", "run", "t.yml"])
    value = f"{CANARY}-decrypted"
    remember([value])

    def crash() -> None:
        subprocess.run(["false", value], check=True)

    with pytest.raises(SystemExit):
        errors.run(crash)
    told = capsys.readouterr().err
    file = Path(re.findall(r"trace is in (\S+);", told)[0])
    trace = file.read_text()
    file.unlink()
    assert "in crash" in trace
    assert "canary" not in told + trace
    errors.tell(f"warning: {value}")
    errors.say(f"told: {value}")
    shown = capsys.readouterr()
    assert (shown.err, shown.out) == ("warning: (secret)\n", "told: (secret)\n")


def test_words_for_the_job_are_none_of_orch_s_options() -> None:
    assert masked("epochs", ["orch", "run", "t.yml", "--", "-epochs"], {}) == "epochs"


def test_the_command_line_that_all_users_see_is_covered() -> None:
    """A run lasts for days; its command line is shown to everybody by `ps`."""
    code = (
        "import sys; from orch.cli.redaction import cover_arguments; cover_arguments(); "
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


@pytest.mark.parametrize(
    "words", [["-de", "T=hidden"], ["-deT=hidden"], ["-n", "--", "-e", "T=hidden"], ["-ne", "-eT=hidden"]]
)
def test_it_is_covered_however_options_are_joined(words: list[str]) -> None:
    code = (
        "from orch.cli.redaction import cover_arguments; cover_arguments(); "
        "print(open('/proc/self/cmdline').read())"
    )
    command = [sys.executable, "-c", code, "run", "t.yml", *words]
    assert "hidden" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_secret_that_is_set_by_a_word_is_covered_too() -> None:
    code = (
        "from orch.cli.redaction import cover_arguments; cover_arguments(); "
        "print(open('/proc/self/cmdline').read())"
    )
    for words in (["set", "name", "hidden value"], ["set", "--", "name", "hidden value"]):
        done = subprocess.run(
            [sys.executable, "-c", code, "secret", *words], capture_output=True, text=True, check=True
        )
        assert "hidden" not in done.stdout
        assert "name" in done.stdout


def test_every_option_that_takes_a_word_beside_env_is_known_to_the_masking() -> None:
    options = [each for name, each in get_type_hints(run, include_extras=True).items() if name != "arguments"]
    taking = {
        word
        for each in options
        for told in getattr(each, "__metadata__", ())
        if isinstance(told, OptionInfo) and bool not in get_args(each)
        for word in (told.default, *(told.param_decls or ()))
        if str(word).startswith("-")
    }
    assert taking - {"--env", "-e"} == _VALUED
