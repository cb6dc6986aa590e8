"""What commands do with their words: which read them as commands, which take any text, which start others.

Data and pure functions for `shell.py`. A command that no table has may take a value as a plain word only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash", "rksh", "yash", "posh"})

TEXT = _set(
    """: [ base64 basename cat cksum cmp column comm cut date diff dirname echo egrep exit expand expr
    false fgrep fmt fold grep head hexdump join jq kill logger ls md5sum mkdir nl od paste printf read
    return rev rm rmdir seq sha1sum sha256sum sha512sum shift sleep sort stat tac tail tee test touch tr
    true tsort umask unexpand uniq wait wall wc xxd yes"""
)
"""Commands that take any text as words and as input, and read none of it as commands."""

PLAIN = _set(
    """aws az curl dcgmi df dig du gcloud gsutil helm ibstat ibv_devinfo ip journalctl kubectl lsof lspci
    mount ping ps sacct scancel scontrol sha256sum sinfo squeue sysctl systemctl umount"""
)
"""Commands with options such as `-c` that are no commands."""

READERS = _set(
    """R Rscript ansible ansible-playbook at autossh awk batch bun bwrap capsh cgexec choom chpst chroot chrt
    clush compute-sanitizer cpio
    crictl cron crontab cscript csh ctr cu dbus-run-session dc deno doas docker dsh dumb-init ed elvish
    emacs entr ex expect fab
    fakeroot faketime firejail fish flock ftp gawk gdb gdbserver gmake gnuplot gosu hyperfine irb java
    julia just less lftp linux lldb
    ltrace lua luajit lxc lxc-attach m4 machinectl mail mailx make man mawk more mosh mpiexec mpirun
    mutt mysql nawk nc ncat nerdctl netcat ninja node npm npx nsenter nsys nu numactl nvim octave osascript
    parallel pdsh perf perl php pip pipx pkexec podman prlimit procmail proot psql pssh pwsh python pythonw
    r2 rake
    redis-cli rpm rsh rsync ruby run-parts runcon runuser rush salloc salt sbatch scp screen script sed
    setarch setpriv sftp socat sqlite3 srun ssh ssh-agent sshpass start-stop-daemon strace su su-exec
    systemd-inhibit systemd-nspawn systemd-run
    tclsh tcsh telnet tini tmux torchrun tox unbuffer unshare uv uvx valgrind vi view vim watch wish xargs
    x86_64 xterm xvfb-run yarn"""
)
"""Commands that may read a word, or their input, as commands: of a shell, their own, or another host's."""

FORBIDDEN = _set(
    """alias bind compgen complete coproc declare enable fc hash history let mapfile readarray typeset"""
)
"""Builtins that evaluate words, or change what other names mean."""

NAMES = frozenset({"read", "getopts", "unset", "export", "readonly", "local"})
"""Builtins whose words are names of variables."""

COPIERS = _set("tee cp mv ln install dd sort uniq xxd split csplit curl wget")
"""Commands whose words are files that they write."""

_NAMING = _set(
    """action askpass cmd command commands config editor env eval exec execute filter hook hooks init module
    pack pager plugin plugins preload program proxy rc rcfile render renderer rsh script scripts shell
    startup"""
)
"""Parts of the names of options that may take a command."""

_EVALUATED = {"printf": "v", "test": "vR", "[": "vR", "wait": "p", "tar": "IF"}
"""Letters of options that take the name of a variable, whose index a shell evaluates, or a command."""
_CODE = frozenset({"-c", "-e", "-x", "-E", "-K", "--config"})
_TEXT_OF_CODE = re.compile(r"[\s;|&$`(){}<>\"'\\!*?\[\]]")

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")

_SPECIAL = re.compile(
    r"PATH|IFS|ENV|S?RANDOM|SECONDS|LINENO|EPOCH.*|BASH_.*|PS[0-4]|PROMPT_.*|SHELL.*|[CF]DPATH|FPATH|LD_.*|DYLD_.*|GIT_.*|.*EDITOR|VISUAL|.*PAGER|"
    r"BROWSER|LESS.*|PYTHON.*|PERL.*|RUBY.*|NODE_.*|.*JAVA_.*|JDK_.*|CLASSPATH|SSH_.*|RSYNC_.*|SUDO_.*|DOCKER_.*|"
    r"KUBECONFIG|HOME|PWD|OLDPWD|TERM.*|TMPDIR|GCONV_PATH|LOCPATH|NLSPATH|XDG_.*|MAKE.*|MFLAGS|GREP_.*|ANSIBLE_.*|"
    r"TF_.*|ORCH.*|PULUMI_.*|AWS_.*|GOOGLE_.*|CLOUDSDK_.*|OPENSSL_.*|CURL_.*|PIP_.*|NPM_.*|SLURM_.*|SBATCH_.*|OMPI_.*|"
    r"NCCL_.*|MAIL.*|HIST.*|FCEDIT|OPTIND|GLOBIGNORE|CC|CXX|.*FLAGS|.*_(?:OPTIONS|OPTS|COMMAND|CMD|HOOK|CONFIG|"
    r"PLUGINS?|PROGRAM|PATH|SHELL|PRELOAD|WRAPPER|LAUNCHER)|.*RC|(?i:.*_proxy)"
)


def is_special(name: str) -> bool:
    """Return True if a variable decides which commands run, or how."""
    return _SPECIAL.fullmatch(name) is not None


@dataclass(frozen=True)
class Word:
    """A word of a command. `literal`: what it says, None when the shell decides; `fixed`: the text in it that
    is written out. `tainted`: a value of a parameter may be in it."""

    literal: str | None
    fixed: str
    tainted: bool


@dataclass(frozen=True)
class Wrapper:
    """A command that starts another one: options with a value, options without, and words before it."""

    valued: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    operands: int = 0


def _wrapper(valued: str = "", flags: str = "", operands: int = 0) -> Wrapper:
    return Wrapper(frozenset(valued.split()), frozenset(flags.split()), operands)


WRAPPERS = {
    "env": _wrapper("-u -C --unset --chdir", "-i - --ignore-environment"),
    "nohup": _wrapper(),
    "time": _wrapper("", "-p"),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c -n", "-t"),
    "timeout": _wrapper("-k -s --kill-after --signal", "--foreground --preserve-status -v --verbose", 1),
    "command": _wrapper("", "-p"),
    "builtin": _wrapper(),
    "busybox": _wrapper(),
    "toybox": _wrapper(),
    "exec": _wrapper("-a", "-c -l"),
    "sudo": _wrapper("-u -g -h -p --user --group", "-n -E -H -S -b --non-interactive --preserve-env"),
    "setsid": _wrapper("", "-f -w -c --fork --wait"),
    "stdbuf": _wrapper("-i -o -e"),
    "taskset": _wrapper("", "-c", 1),
}

SUBCOMMANDS = {
    "aws": frozenset({"send-command", "start-session", "execute-command"}),
    "az": frozenset({"run-command", "ssh", "exec"}),
    "cargo": frozenset({"run"}),
    "find": frozenset({"-exec", "-execdir", "-ok", "-okdir"}),
    "gcloud": frozenset({"ssh", "scp"}),
    "gh": frozenset({"alias", "extension", "codespace"}),
    "git": frozenset({"foreach", "run", "filter-branch", "config"}),
    "go": frozenset({"run", "generate"}),
    "ip": frozenset({"exec"}),
    "kubectl": frozenset({"exec", "run", "debug", "attach", "plugin"}),
    "orch": frozenset({"ssh", "exec"}),
}
"""Words by which a command becomes one that reads commands."""


def unwrapped(words: tuple[Word, ...]) -> tuple[Word, ...] | None:
    """Return the command that is done in the end, without what starts it; None when that cannot be told."""
    while words and words[0].literal is not None and (wrapper := WRAPPERS.get(program(words[0]))) is not None:
        name, at = program(words[0]), 1
        while at < len(words) and (literal := words[at].literal) is not None:
            if name == "command" and literal in ("-v", "-V"):
                return ()
            if literal == "--":
                at += 1
                break
            if name in ("env", "sudo") and _ASSIGNMENT.match(literal):
                at += 1
            elif literal in wrapper.valued:
                at += 2
            elif literal in wrapper.flags or literal.partition("=")[0] in wrapper.valued:
                at += 1
            elif literal.startswith("-"):
                return None
            else:
                break
        words = words[at + wrapper.operands :]
    return words


def program(word: Word) -> str:
    """Return the name of a program without its folder and version: `/usr/bin/python3.11` is `python`."""
    name = (word.literal or "").rpartition("/")[2]
    return re.sub(r"(?<=[a-zA-Z])[0-9]+(?:\.[0-9]+)*$", "", name) if name not in TEXT | PLAIN else name


def turned(words: tuple[Word, ...]) -> str:
    """Return the word by which a command becomes one that reads commands; "" when there is none."""
    own = SUBCOMMANDS.get(program(words[0]), frozenset[str]())
    return next((each.literal for each in words[1:] if each.literal in own), None) or ""


def options_end(words: tuple[Word, ...]) -> int:
    """Return the number of the first word that is no option, whatever it begins with."""
    name, said = program(words[0]), [each.literal for each in words]
    if name in ("test", "["):
        return 1
    if name == "printf":
        return 2
    return said.index("--") + 1 if "--" in said else len(said)


def wrong_word(words: tuple[Word, ...], at: int) -> str | None:
    """Return why a value may not be in a word of a command; None when it may."""
    word, before, name = words[at], words[at - 1].literal or "", program(words[0])
    reader = f"{name} {turned(words)}".rstrip()
    knows = name in TEXT or name in PLAIN or name == "orch"
    if name in READERS or turned(words) or _starts_reader(words):
        return f"`{reader}` may read it as commands"
    if name == "orch" and (at == 1 or at >= options_end(words)):
        return "`orch` reads a verb or a command here"
    if name in NAMES or (name == "set" and at < options_end(words)):
        return f"`{name}` may evaluate it"
    option = word.fixed if word.fixed.startswith("-") else before
    letters = option[1:] if name == "tar" else option[1:2]
    if re.match("-[^-]", option) and not set(letters).isdisjoint(_EVALUATED.get(name, "")):
        return f"`{name} {option}` may evaluate it"
    if _may_name_command(word.fixed.partition("=")[0]) or (at > 1 and _may_name_command(before)):
        return "this option may take a command"
    if before in _CODE and not knows:
        return f"`{name} {before}` may read it as commands"
    if name not in TEXT and name not in ("orch", "curl") and _TEXT_OF_CODE.search(word.fixed):
        return f"`{name}` may read this text as commands"
    return None


def _may_name_command(option: str) -> bool:
    return option.startswith("-") and not _NAMING.isdisjoint(option.lower().split("-"))


def _starts_reader(words: tuple[Word, ...]) -> bool:
    """Return True if an unknown command has a program that reads commands, such as a shell, among its
    arguments."""
    if program(words[0]) in TEXT | PLAIN | {"orch"}:
        return False
    return any(program(each) in SHELLS | READERS | {"eval"} for each in words[1:] if each.literal)


_SED = re.compile(
    r"(?:(?:[0-9]+|\$|/[^/\n]*/)(?:,(?:[0-9]+|\$|/[^/\n]*/))?)?[pdq]|s([/|,#])(?:(?!\1)[^\\\n]|\\[^\n])*\1(?:(?!\1)[^\\\n]|\\[^\n])*\1[gpI0-9]*"
)
"""A script of sed that prints, deletes, quits or replaces, and neither runs commands nor writes files."""

_VALUE = r"(?:\0|[\w./:][^\n]*)"
_CONTAINER = r"(?:logs(?:\n(?:-[ft]|--follow|--timestamps|(?:-n|--tail|--since|--until)[=\n][\w.:+-]+))*" + (
    rf"|inspect(?:\n--format=[^\n]*)?|kill|pause|port|restart|rm|start|stop|unpause|wait)(?:\n--)?(?:\n{_VALUE})+"
)
_NAME_FORMS = {
    "docker": re.compile(_CONTAINER),
    "podman": re.compile(_CONTAINER),
    "sed": re.compile(rf"(?:-[nEr]\n)*(?:{_SED.pattern})(?:\n--)?(?:\n{_VALUE})+"),
    **dict.fromkeys(
        ("nc", "ncat", "netcat"),
        re.compile(
            rf"(?:-[vnu46]+\n)*-[vnu46]*z[vnu46]*\n(?:(?:-[zvnu46]+|-w\n?[0-9]+)\n)*(?:--\n)?{_VALUE}\n{_VALUE}"
        ),
    ),
}
"""Forms of commands in READERS whose words are names alone: of containers, files, hosts and ports.

The words have line feeds between them; a NUL stands for one with a value. Source: the manuals of docker(1),
sed(1) and nc(1): what begins with no dash after these options is an operand.
"""

_PYTHON_FLAGS = frozenset({"-u", "-B", "-E", "-I", "-s"})
# Modules of Python that run their words are files, too: `/usr/lib/python3.11/timeit.py`.
_PYTHON_LIBRARY = re.compile(r"(?:^|/)(?:python[^/]*|site-packages|dist-packages)/")


def script_at(words: tuple[Word, ...]) -> int:
    """Return the number of the word that names the script which Python runs; 0 when there is none."""
    if program(words[0]) != "python":
        return 0
    at = next((at for at in range(1, len(words)) if words[at].literal not in _PYTHON_FLAGS), 0)
    name = words[at].literal or ""
    is_script = name.endswith(".py") and not name.startswith("-") and not _PYTHON_LIBRARY.search(name)
    return at if is_script and not words[at].tainted else 0


def is_name(words: tuple[Word, ...], at: int) -> bool:
    """Return True if a command in READERS takes a word as a name, not as commands or as an option.

    A value in it must not begin with a dash. The words of a script of Python are those of any program.
    """
    if script := script_at(words):
        return at > script and wrong_word(words[script:], at - script) is None
    form = _NAME_FORMS.get(program(words[0]))
    fixed = words[at].fixed
    if form is None or fixed.startswith("-") or _TEXT_OF_CODE.search(fixed):
        return False
    said = ["\0" if each.tainted else each.literal or "" for each in words[1:]]
    return form.fullmatch("\n".join(said)) is not None


def may_read_input(words: tuple[Word, ...]) -> bool:
    """Return True if a command may have values of parameters as its input."""
    name, rest = program(words[0]), [each.literal for each in words[1:]]
    if name in TEXT:
        return True
    if None in rest or name in ("curl", "orch"):
        own = {"-K", "--config", "ssh", "exec", "attach", "dev", "run", "runbook", "secret"}
        return name in ("curl", "orch") and rest[:1] != [None] and own.isdisjoint(rest)
    operands = [each for each in rest if each is not None and not each.startswith("-")]
    if name in ("awk", "gawk", "mawk"):
        plain = all(
            each in ("-F",) or each.startswith("-F") for each in rest if each and each.startswith("-")
        )
        code = operands[0] if operands else ""
        return plain and bool(code) and not re.search(r"system|\||getline|@|>", code)
    if name == "sed":
        flags = {each for each in rest if each and each.startswith("-")}
        return flags <= {"-n", "-E", "-r"} and len(operands) == 1 and _SED.fullmatch(operands[0]) is not None
    return False
