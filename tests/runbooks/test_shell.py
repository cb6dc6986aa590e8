"""Values in text for a shell: what could read one as commands is refused, what is accepted runs none."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orch.cli.runbooks.verb_words import wrong_words
from orch.runbooks.library import LIBRARY
from orch.runbooks.parse import parse
from orch.runbooks.plan import planned
from orch.runbooks.shell import shell_text
from orch.spec.document.text import Source
from orch.spec.grammar.values import Problem
from orch.spec.loader.load import InvalidConfiguration

X = "${{ params.x }}"

FOUND = (
    f'sh -c "true; echo {X}"',
    f'sh -c "\necho {X}"',
    f'eval "true; echo {X}"',
    f'ssh h "true; echo {X}"',
    f"bash -c {X}",
    f'bash -o pipefail -c "echo {X}"',
    f'bash --norc -c "echo {X}"',
    f'su root -c "echo {X}"',
    f"bash <<EOF\necho {X}\nEOF",
    f"cat <<EOF | sh\necho {X}\nEOF",
    f'echo "{X}" | sh',
    f'trap "echo {X}" EXIT',
    f'watch "echo {X}"',
)
"""The forms that an attack found: each ran the value."""

SIBLINGS = (
    f"eval {X}",
    f"/bin/sh -c {X}",
    f"dash -ec {X}",
    f"zsh -c {X} sh",
    f"ksh -o errexit -c {X}",
    f"sh -s -- {X} < /dev/null",
    f"sh {X}",
    f". {X}",
    f"source ./{X}",
    f"{X}",
    f"{X} --version",
    f'"{X}" a',
    f"$(echo {X})",
    f'"$(printf %s {X})" a',
    f"env sh -c {X}",
    f"env -i A=1 bash -c {X}",
    f"nohup sh -c {X}",
    f"time sh -c {X}",
    f"nice -n 5 sh -c {X}",
    f"timeout 5 sh -c {X}",
    f"timeout -k 1 5 bash -c {X}",
    f"exec sh -c {X}",
    f"command eval {X}",
    f"sudo -n sh -c {X}",
    f"sudo A=1 sh -c {X}",
    f"setsid -w sh -c {X}",
    f"busybox sh -c {X}",
    f"xargs sh -c {X}",
    f"echo {X} | xargs sh -c",
    f"echo {X} | xargs -I@ sh -c @",
    f"find . -exec sh -c {X} \\;",
    f"awk {X} /dev/null",
    f"awk 'BEGIN {{ system(ENVIRON[\"ORCH_PARAM_X\"]) }}' # {X}",
    f"sed -e {X} /dev/null",
    f"echo {X} | sed 's/x/y/e'",
    f"python3 -c {X}",
    f"python3.11 -c {X}",
    f"perl -e {X}",
    f"node -e {X}",
    f'docker exec c sh -c "{X}"',
    f"docker exec c {X}",
    f"kubectl exec p -- sh -c {X}",
    f"kubectl exec p -- {X}",
    f"make {X}",
    f"parallel {X} ::: a",
    f"ssh h {X}",
    f"echo {X} | ssh h",
    f"echo {X} | orch ssh n0 -- sh",
    f"orch exec lab -- {X}",
    f"orch {X}",
    f"orch ssh n0 {X}",
    f"echo {X} | bash -s",
    f"echo {X} | tee f | sh",
    f"{{ echo {X}; }} | (sh)",
    f'echo {X} | while read -r l; do eval "$l"; done',
    f"echo {X} | while read -r l; do $l; done",
    f'echo {X} | {{ read -r l; sh -c "$l"; }}',
    f'x={X}; eval "$x"',
    f"x={X}; $x",
    f'x={X}; y=$x; sh -c "$y"',
    f'set -- {X}; eval "$1"',
    f'set -- {X}; "$@"',
    f"set {X}",
    f'for x in {X}; do sh -c "$x"; done',
    f'f() {{ eval "$1"; }}; f {X}',
    f'f() {{ "$@"; }}; f {X}',
    f"cat() {{ sh; }}; echo {X} | cat",
    f"sh -c 'eval \"$1\"' sh {X}",
    f"sh -c '$1' sh {X}",
    f"sh -c 'sh -c \"$1\"' sh {X}",
    f"sh -c 'eval \"$ORCH_PARAM_X\"'; echo {X}",
    f"trap 'eval \"$ORCH_PARAM_X\"' EXIT; echo {X}",
    f"eval 'eval \"$ORCH_PARAM_X\"'; echo {X}",
    f"echo {X} > f; sh f",
    f"echo {X} > f; . ./f",
    f"echo {X} > f; chmod +x f; ./f",
    f"echo {X} | tee f; bash f",
    f'echo {X} > f; sh -c "$(cat f)"',
    f"echo {X} > f; cat f | xargs -I@ sh -c @",
    f"echo {X} > f; xargs sh -c < f",
    f'echo {X} > "$HOME/f"; ./f',
    f"cat <<EOF > f\n{X}\nEOF\nsh ./f",
    f"echo $(({X}))",
    f"x={X}; echo $((x))",
    f"x={X}; echo $((x + 1))",
    f"[[ {X} -eq 1 ]]",
    f"test -v {X}",
    f"let {X}",
    f"declare {X}",
    f"declare -i y={X}",
    f"export {X}",
    f"printf -v {X} a",
    f"read -r {X}",
    f"unset {X}",
    f"alias a={X}",
    f"PATH={X}",
    f"PATH={X} ls",
    f"LD_PRELOAD={X} ls",
    f"export BASH_ENV={X}",
    f"ENV={X} sh -c 'true'",
    f"PS4={X}; set -x",
    f"GIT_SSH_COMMAND={X} git fetch",
    f"git -c {X} status",
    f"git fetch --upload-pack={X} origin",
    f"sort --compress-program={X} f",
    f"sort --compress-program {X} f",
    f"tar --to-command={X} -xf a",
    f'mytool "run {X}"',
    f"mytool 'a; b'{X}",
    f"mytool -c {X}",
    f"mytool --exec {X}",
    f"echo {X} | mytool",
    f"mytool <<EOF\n{X}\nEOF",
    f"mytool sh {X}",
    f"echo `echo {X}`",
    f"echo '{X}'",
    f"cat <<'EOF'\n{X}\nEOF",
    f"echo $'{X}'",
    f"echo ${{y:-{X}}}",
    f"echo a > {X}",
    f"sh < {X}",
    f"cat <(echo {X})",
    f"bash <<< {X}",
    f"$SUDO sh -c {X}",
    f"/bin/s? -c {X}",
    f"{{sh,-c,{X}}}",
    f"eval < /dev/null {X}",
    f"x={X}; rm $x",
    f"rm $(echo {X})",
    f"set -- {X}; mytool $1 $@",
    f"sh \\\n  -c \\\n  {X}",
    f"if true; then sh -c {X}; fi",
    f"case a in *) eval {X} ;; esac",
    f"(cd /; sh -c {X})",
    f"! sh -c {X}",
    f"x=$(sh -c {X})",
    f'echo "a $(eval {X})"',
    f"crontab - <<EOF\n* * * * * {X}\nEOF",
    f"echo {X} | at now",
    f"tmux new {X}",
    f"srun {X}",
    f"aws ssm send-command --parameters commands={X}",
    f"gcloud compute ssh n0 --command={X}",
)

LATER = (
    f"readonly -a a={X}",
    f"readonly -A a={X}",
    f"RANDOM={X}",
    f"for SECONDS in {X}; do :; done",
    f"for PATH in {X}; do ls; done",
    f"read PATH <<EOF\n{X}\nEOF",
    f'printf "-v{X}" hi',
    f"printf -v{X} %s hi",
    f"wait -n -p {X}",
    f"coproc {X}",
    f"setarch x86_64 {X}",
    f"linux64 {X}",
    f"choom -n 0 -- {X}",
    f"ssh-agent {X}",
    f"ip netns exec a {X}",
    f"tar -I {X} -cf a f",
    f"tar -I{X} -cf a f",
    f"wget --use-askpass={X} https://h/f",
    f"echo {X} | sort -o gg; sh gg",
    f"echo {X} | sort --output=gg; sh ./gg",
    f"echo {X} | sort -ogg; sh gg",
    f"echo {X} | uniq - gg; sh gg",
    f"echo {X} | xxd - gg; sh gg",
)
"""Forms by which a value was run, of a second attack: an index of a variable's name, a variable that is a
number, a program that starts another, a file that a command writes."""

NAMES = (
    f"docker logs {X}",
    f"docker logs -f --tail 5 --since=10m -- {X}",
    f"sudo -n docker inspect --format='{{{{.State.Status}}}}' {X} b",
    f"podman restart a-{X}",
    f"nc -z {X} 22",
    f"nc -v -z -w 2 {X} {X}",
    f"ncat -zv -- {X} 22",
    f"sed -n 1,5p /var/log/{X}",
    f"sed -n -E '/a|b/p' -- {X} | head -n 3",
    f"sed 's/a/b/g' {X}",
    f"python3 check.py --node {X}",
    f"timeout 5 python3.11 -u ./tools/check.py --node={X} {X}",
)
"""Forms of commands that read commands elsewhere, in which a value is the name of something."""

NO_NAMES = (
    f'docker logs "$(cat f)" {X}',
    f"docker logs $(cat f); echo {X}",
    f"docker logs $(echo {X})",
    f'x={X}; docker logs "$x"',
    f'docker logs "$1" {X}',
    f'docker logs "a {X}"',
    f"docker logs -{X}",
    f"docker logs {X}*",
    f"docker --config {X} logs c",
    f"docker -H tcp://h logs {X}",
    f"docker {X} logs",
    f"docker inspect --format={X} c",
    f"docker inspect -f {X} c",
    f"docker top c {X}",
    f"docker run {X}",
    f"docker cp {X} f",
    f"nc {X} 22",
    f"nc -l -z {X} 22",
    f"nc -z -e {X} h 22",
    f"nc -z -e /bin/sh {X} 22",
    f"nc -zc {X} 22",
    f"nc -z -x {X} h 22",
    f"nc -z h 22 {X}",
    f"sed -n {X} file",
    f"sed -- {X} file",
    f"sed -n 1,{X}p file",
    f"sed -n -e 1p -e {X} file",
    f"sed -f {X} file",
    f"sed -i 1d {X}",
    f"sed '1e ls' {X}",
    f"sed 's/a/b/w out' {X}",
    f"sed -n 1p -{X}",
    f"echo {X} | sed -n 1p | sed 's/a/b/e'",
    f"python3 -c {X} check.py",
    f"python3 -u -c check.py {X}",
    f"python3 -X {X} check.py",
    f"python3 -m check {X}",
    f"python3 - {X}",
    f"python3 /dev/stdin {X}",
    f"python3 {X}",
    f"python3 {X}.py",
    f"python3 ./{X}/check.py",
    f"python3 check.py -c {X}",
    f"python3 check.py --exec {X}",
    f"python3 check.py sh {X}",
    f'python3 check.py "import {X}"',
    f'python3 check.py "$(cat f)"; echo {X}',
    f"python3 /usr/lib/python3.11/timeit.py {X}",
    f"echo {X} | python3 check.py",
    f"echo {X} > check.py; python3 check.py",
    f'echo {X} > "$HOME/check.py"; python3 check.py',
    f"PYTHONPATH={X} python3 check.py",
)
"""Siblings of these, in which the program would read the value as code, as an option or as a command."""

ACCEPTED = (
    f"tar -xzf /data/{X}.tgz -C /data",
    f'for name in {X}; do echo "$name"; done',
    f"sort -u /data/{X} | head -n 3",
    f"curl -fsS -o /tmp/answer https://h/{X}",
    f"echo {X}",
    f'printf "%s\\n" "before {X} after"',
    f"mytool {X}",
    f"mytool --node={X} -- {X}",
    f"kubectl cordon {X}",
    f"kubectl logs -c {X} p",
    f"kubectl exec {X} -- nvidia-smi",
    f"systemctl restart {X}",
    f"nvidia-smi -i {X}",
    f"sudo -n systemctl restart {X}",
    f'timeout 5 orch cordon {X} --reason="a {X} b"',
    f"timeout {X} true",
    f"orch ps --fleet {X} | awk '{{print $1}}' | grep -v '^#' | sort -u",
    f"orch ps --fleet {X} | sed -n '1,5p' | sed 's/a/b/g' | tee log",
    f"orch unlock {X} < /dev/null",
    f'code=0; orch fleet show {X} > /dev/null 2>&1 || code=$?\ntest "$code" = 3',
    f"n=0; until orch check {X}; do n=$((n + 1)); test $n -lt 3; done",
    f'x={X}; mytool "$x"',
    f"kill $(cat pid); echo {X}",
    f"NODE={X}; export NODE; mytool",
    f"NODE={X} mytool",
    f'printf \'%s\\n\' {X} | while read -r l; do echo "got $l"; orch cordon "$l"; done',
    f"cat <<EOF > out\nnode: {X}\nEOF",
    f'x=$(kubectl get {X} -o name); echo "$x"',
    f'f() {{ echo "$1"; }}; f {X}',
    f'sh -c \'printf "<%s>" "$1"\' sh {X}',
    f"bash -o pipefail -c 'echo \"$1\" | wc -c' sh {X}",
    f"trap 'rm -f tmp' EXIT; echo {X}",
    f'if [ {X} = a ] && test -n "{X}"; then echo a; else echo b; fi',
    f"case {X} in a|b) echo yes ;; *) echo no ;; esac",
    f'for x in {X} b; do echo "$x"; done',
    f'set -- {X} b; echo "$1"',
    f"echo a # and {X}",
    f'curl -fsS -d "text={X}" https://h.example/',
    f"date > out; sh ./ready.sh out; echo {X}",
    f"cat < {X}",
    f"env -u A mytool {X}",
    f"git checkout {X}",
    f"cp -- {X} there",
    "echo '$${{ github.sha }}' 'no reference'; eval \"$HOME\"",
)


@pytest.mark.parametrize("text", [*FOUND, *SIBLINGS, *LATER, *NO_NAMES])
def test_what_could_read_a_value_as_commands_is_refused(text: str) -> None:
    with pytest.raises(Problem) as caught:
        shell_text(text)
    problem = caught.value
    assert problem.code == "ORCH415"
    assert problem.hint
    start, end = (int(each) for each in problem.at or (0, 0))
    assert 0 <= start < end <= len(text) + 1


@pytest.mark.parametrize("text", [*NAMES, *ACCEPTED])
def test_what_is_safe_is_accepted_and_a_shell_can_read_it(text: str) -> None:
    script = shell_text(text)
    for shell in ("bash", "sh"):
        done = subprocess.run([shell, "-n"], input=script.text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, (shell, done.stderr)


def test_the_place_is_the_value_s_line_also_after_letters_beyond_ascii() -> None:
    head = "---\nname: mine\nsummary: s\nparameters:\n  x: {type: string}\n---\n"
    body = f'```shell name=go repeat\necho "é中 {X}"; echo ü; sh -c "{X}"\n```\n'
    with pytest.raises(InvalidConfiguration) as caught:
        parse(Source.of("mine.md", head + body))
    (found,) = caught.value.diagnostics
    line = body.split("\n")[1]
    assert (found.span.line, found.span.column) == (8, line.rindex("${{") + 1)
    assert found.hint == "pass it as an argument: `sh -c '… \"$1\" …' sh ${{ … }}`"


@pytest.mark.parametrize("name", sorted(each.stem for each in LIBRARY.glob("*.md") if each.stem != "README"))
def test_the_library_is_accepted(name: str) -> None:
    parse(Source.of(f"{name}.md", (LIBRARY / f"{name}.md").read_text()), wrong_words)


def test_deep_and_long_texts_are_read_in_time() -> None:
    for text in ("$(" * 4000, "(" * 20_000, f"echo {X}\n" * 300, f"echo {'a' * 90_000} {X}"):
        with suppress(Problem):
            shell_text(text if X in text else f"{text} {X}")


# What is accepted, run

CANARIES = (
    "$(mkdir PWN)",
    "`mkdir PWN`",
    "mkdir PWN",
    "; mkdir PWN",
    "a; mkdir PWN; #",
    "a\nmkdir PWN\n",
    "'; mkdir PWN; '",
    '"; mkdir PWN; "',
    "| mkdir PWN",
    "&& mkdir PWN",
    "a[$(mkdir PWN)]",
    "a[`mkdir PWN`]=1",
    "EOF\nmkdir PWN\nEOF\n",
    "x() { mkdir PWN; }; x",
    "${x:-$(mkdir PWN)}",
    "$((a[$(mkdir PWN)]))",
    "-c mkdir PWN",
    "--eval=mkdir PWN",
    "1e mkdir PWN",
    "@P$(mkdir PWN)",
)

"""`mkdir`, for a command that writes files may be told by a value to write one of that name."""

PIECES = (
    *(
        f"{name} {X}"
        for name in ("echo", "printf", "printf '%s'", "printf '%s' --", "test -n", "[ -n", "true", ":")
    ),
    *(f"{name}" for name in ("mytool", "read -r l", "cat", "tee out", "sort", "awk '{print $1}'", "wc -c")),
    *(
        "eval",
        "sh",
        "sh -c",
        "bash -c",
        "trap",
        "xargs",
        "exec",
        "env",
        "command",
        "sh -c 'echo \"$1\"' sh",
        ".",
    ),
    *(
        X,
        f'"{X}"',
        f'"a {X} b"',
        f"a{X}",
        f"--x={X}",
        f"-- {X}",
        "$l",
        '"$l"',
        '"$x"',
        "$x",
        '"$1"',
        '"$@"',
        "-c",
        "-e",
    ),
    *(
        f"x={X}",
        f"x={X};",
        f"set -- {X};",
        f"for l in {X}; do",
        f"case {X} in",
        "x)",
        "*)",
        ";;",
        "esac",
        "done",
    ),
    *("while read -r l; do", "if", "then", "else", "fi", "{", "}", "(", ")", "f() {", "f", "!", "do"),
    *(
        "|",
        ";",
        "&&",
        "||",
        "\n",
        "&",
        "> f",
        ">> f",
        "< f",
        "2>&1",
        "< /dev/null",
        "f",
        "./f",
        "EXIT",
        "]",
        "\\\n",
    ),
    *(f"<<EOF\n{X}\nEOF\n", f"<<EOF | cat\n{X}\nEOF\n", f"<<-EOF\n\t{X}\n\tEOF\n", "<<'EOF'\nx\nEOF\n"),
    *(
        f"$(echo {X})",
        '"$(cat f)"',
        "$(cat",
        '"$(',
        ')"',
        "$((x))",
        "$((1 + 1))",
        '"',
        "'",
        "`",
        "#",
        f"# {X}",
    ),
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("programs")
    for name in (
        "mytool",
        "orch",
        "kubectl",
        "systemctl",
        "nvidia-smi",
        "git",
        "curl",
        "sudo",
        "docker",
        "nc",
    ):
        (folder / name).write_text("#!/bin/sh\nexit 0\n")
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def run_all(text: str, value: str, folder: Path, path: str) -> None:
    """Run a text in each shell with a value, and see that no part of the value was run."""
    script = shell_text(text)
    for shell in ("bash", "bash --posix", "sh"):
        words = [*shell.split(), "-uc", script.text]
        environment = {"PATH": path, "HOME": str(folder), "ORCH_PARAM_X": value}
        subprocess.run(
            ["timeout", "5", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert not (folder / "PWN").is_dir(), (shell, script.text, value)


@pytest.mark.parametrize("value", CANARIES)
def test_no_accepted_text_runs_a_value(value: str, tmp_path: Path, programs: str) -> None:
    for text in (*NAMES, *ACCEPTED[:-1]):
        run_all(text, value, tmp_path, programs)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.filter_too_much,
        HealthCheck.too_slow,
    ],
)
@given(st.lists(st.sampled_from(PIECES), min_size=2, max_size=9).map(" ".join), st.sampled_from(CANARIES))
def test_no_text_by_chance_that_is_accepted_runs_a_value(
    tmp_path: Path, programs: str, text: str, value: str
) -> None:
    try:
        shell_text(text)
    except Problem:
        return
    if X in text:
        run_all(text, value, tmp_path, programs)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (f"rm {X}", True),
        (f"rm -- {X}", False),
        (f"rm a{X}", False),
        (f"rm {X}b", True),
        (f'x={X}; rm "$x"', True),
        (f'for x in {X}; do rm "$x"; done', True),
        (f"kubectl get pods -l {X}", True),
        (f"timeout {X} true", True),
        (f"printf '%s' {X}", False),
        (f"printf {X}", True),
        (f"[ {X} = a ]", False),
        (f"sh -c 'echo \"$1\"' sh {X}", False),
        (f'echo "- {X}"', False),
        (f"docker logs {X}", True),
        (f"nc -z -- {X} 22", False),
        (f"sed -n 1p {X}", True),
        (f"sed -n 1p /var/log/{X}", False),
        (f"python3 check.py --node {X}", True),
    ],
)
def test_no_value_becomes_an_option_of_a_program(text: str, refused: bool) -> None:
    words = shell_text(text).words
    if not refused:
        assert words == ()
        return
    for word in words:
        assert word.filled({"x": "fine"})
        with pytest.raises(Problem, match="begins with a dash"):
            word.filled({"x": "-rf"})


def test_a_step_whose_value_would_be_an_option_is_told_in_the_plan() -> None:
    from orch.runbooks.parameters import WrongValue

    head = "---\nname: mine\nsummary: s\nparameters:\n  x: {type: string}\n---\n"
    runbook = parse(Source.of("mine.md", f"{head}```shell name=go repeat\nrm {X}\n```\n"))
    with pytest.raises(WrongValue, match="step go: the value of `x` begins with a dash") as caught:
        planned(runbook, {"x": "-rf"})
    assert caught.value.code == "ORCH162"
