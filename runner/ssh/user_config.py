"""What the user's own SSH configuration says about a host, for what a fleet file leaves open.

`~/.ssh/config`, then `/etc/ssh/ssh_config`; of each option the first value found counts, as with `ssh`.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paramiko import ConfigParseError, SSHConfig

from orch.runner.errors import BadSshConfig
from orch.runner.processes import user_name
from orch.runner.ssh.endpoint import SshEndpoint
from orch.runner.ssh.safe_text import safe_host

USER_CONFIG = Path("~/.ssh/config")
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
KNOWN_HOSTS = (
    "~/.ssh/known_hosts",
    "~/.ssh/known_hosts2",
    "/etc/ssh/ssh_known_hosts",
    "/etc/ssh/ssh_known_hosts2",
)
_DEEPEST = 16  # includes in includes, as ssh limits them

# Stands for a percent sign in a ProxyCommand while the library reads it: it would fill in the tokens from
# these files alone, but user and port may come from the fleet.
_PERCENT = "\ue000"


@dataclass(frozen=True)
class Hop:
    """One hop of a ProxyJump as it is written."""

    host: str
    user: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class HostOptions:
    """What the configuration says of one host; None where it says nothing.

    `identities` are paths with `~` unexpanded; `proxy_command` still holds its tokens (`%h`, `%p`, `%r`), and
    so does `known_hosts`.
    """

    hostname: str | None = None
    port: int | None = None
    user: str | None = None
    identities: tuple[str, ...] = ()
    identity_agent: str | None = None
    proxy_jump: tuple[Hop, ...] = ()
    proxy_command: str | None = None
    known_hosts: tuple[str, ...] = KNOWN_HOSTS
    known_as: str | None = None


class UserConfig:
    """The SSH configuration of this user on this machine. Raises BadSshConfig when it cannot be read."""

    def __init__(self, user: Path = USER_CONFIG, system: Path | None = SYSTEM_CONFIG) -> None:
        self._files = tuple(path.expanduser() for path in (user, system) if path is not None)
        self._options_by_host: dict[str, HostOptions] = {}

    def lookup(self, host: str) -> HostOptions:
        """What is said of `host`, named as the user names it; nothing of what is no name of a host.

        The files may have commands with the name in them run here (`Match exec`).
        """
        if not safe_host(host):
            return HostOptions()
        if host not in self._options_by_host:
            self._options_by_host[host] = self._lookup(host)
        return self._options_by_host[host]

    def proxy_command(self, peer: SshEndpoint) -> str | None:
        """The command that leads to a peer: its own, else this user's for the name it was found under."""
        if peer.jump:
            return None
        return peer.proxy_command or (self.lookup(peer.ssh_alias).proxy_command if peer.ssh_alias else None)

    def agent(self, peer: SshEndpoint) -> str | None:
        """The agent that the user keeps for a host, if not the environment's: no fleet says which."""
        try:
            agents = (self.lookup(host).identity_agent for host in (peer.name, peer.address))
            return next(filter(None, agents), None)
        except BadSshConfig:
            return None

    def known_hosts(self, *, name: str, address: str, port: int, user: str) -> tuple[str, ...]:
        """The files of known host keys for one host. Raises BadSshConfig.

        Files that set none are not searched for the host: with a thousand hosts that, and the commands that
        `Match exec` has run for each, would be most of what a connection costs.
        """
        options = self.lookup(name) if self._sets_known_hosts else HostOptions()
        return known_hosts_files(options, name=name, address=address, port=port, user=user)

    @cached_property
    def _sets_known_hosts(self) -> bool:
        option = re.compile(r"\s*(user|global)knownhostsfile\b", re.IGNORECASE)
        return any(option.match(line) for path in self._files if path.is_file() for line in _lines(path))

    @cached_property
    def _config(self) -> SSHConfig | None:
        lines = [line for path in self._files if path.is_file() for line in (*_lines(path), "Host *")]
        if not lines:
            return None
        try:
            return SSHConfig.from_text("\n".join(lines))
        except (ConfigParseError, ValueError) as error:
            raise _unreadable(self._files[0], str(error)) from error

    def _lookup(self, host: str) -> HostOptions:
        if self._config is None:
            return HostOptions()
        try:
            options = self._config.lookup(host)
        except (ConfigParseError, ValueError, KeyError, OSError) as error:
            raise _unreadable(self._files[0], str(error)) from error
        command, jumps = options.get("proxycommand"), options.get("proxyjump")
        if jumps and jumps.lower() == "none":
            jumps = None
        port, agent = options.get("port"), options.get("identityagent")
        if port is not None and not (port.isdecimal() and 0 < int(port) < 65_536):
            raise _unreadable(self._files[0], f"{port!r} is not a port")
        name = options.get("hostname")
        hops = tuple(_hop(text.strip()) for text in jumps.split(",")) if jumps else ()
        if any(hop.host == host for hop in hops):
            hops = ()  # `ProxyJump login` under `Host *` does not hold for `login` itself
        return HostOptions(
            hostname=None if name == host else name,
            port=int(port) if port else None,
            user=options.get("user"),
            identities=tuple(_with_tilde(path) for path in options.get("identityfile") or ()),
            identity_agent=agent.strip('"') if agent else None,
            proxy_jump=hops,
            # ssh takes whichever of the two it reads first; a file with both for one host is a rarity.
            proxy_command=command.replace(_PERCENT, "%") if command and not jumps else None,
            known_hosts=_known_hosts(options),
            known_as=options.get("hostkeyalias"),
        )


def known_hosts_files(
    options: HostOptions, *, name: str, address: str, port: int, user: str
) -> tuple[str, ...]:
    """The files of known host keys for one host, their tokens and variables filled in as `ssh` does.

    `name` is the host as the user calls it. Raises BadSshConfig for what this cannot fill in.
    """
    here = socket.gethostname()
    tokens = {
        "%": "%",
        "d": os.path.expanduser("~"),
        "h": address,
        "i": str(os.getuid()),
        "k": options.known_as or name,
        "L": here.partition(".")[0],
        "l": socket.getfqdn() if any("%l" in file for file in options.known_hosts) else here,
        "n": name,
        "p": str(port),
        "r": user,
        "u": user_name(),
    }

    def fill(match: re.Match[str]) -> str:
        token, variable = match.group(1), match.group(2)
        value = os.environ.get(variable) if token is None else tokens.get(token)
        if value is None:
            what = f"the variable {variable} is not set" if token is None else f"%{token} is not known here"
            raise BadSshConfig(
                "the SSH configuration cannot be used",
                where=str(USER_CONFIG),
                detail=f"UserKnownHostsFile {match.string}: {what}",
                hint=f"write the path out, or with {', '.join(f'%{each}' for each in tokens)}",
            )
        return value

    return tuple(re.sub(r"%(.?)|\$\{([^}]*)\}", fill, file) for file in options.known_hosts)


def _known_hosts(options: dict[str, str]) -> tuple[str, ...]:
    user, system = options.get("userknownhostsfile"), options.get("globalknownhostsfile")
    files = (
        *(shlex.split(user) if user else KNOWN_HOSTS[:2]),
        # ssh fills in nothing here.
        *(file.replace("%", "%%") for file in (shlex.split(system) if system else KNOWN_HOSTS[2:])),
    )
    return tuple(file for file in files if file.lower() != "none")


def _lines(path: Path, depth: int = 0) -> Iterator[str]:
    """The lines of a file with its includes in place. Raises BadSshConfig."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    block = "Host *"
    for line in text.splitlines():
        words = re.match(r"\s*(\w+)(?:\s*=\s*|\s+)(\S.*?)\s*$", line)
        key = words.group(1).lower() if words else ""
        if words is None or key in ("", "#"):
            continue
        if key in ("host", "match"):
            block = line
        if key != "include":
            yield line.replace("%", _PERCENT) if key == "proxycommand" else line
            continue
        if depth >= _DEEPEST:
            raise _unreadable(path, "includes go too deep")
        unconditional = block.split()[1:] == ["*"]
        for pattern in shlex.split(words.group(2)):
            full_pattern = os.path.join(_base(path), os.path.expanduser(pattern))
            for included in sorted(glob.glob(full_pattern)):
                for included_line in _lines(Path(included), depth + 1):
                    # What an included file says of other hosts holds only where the include itself does.
                    if not unconditional and re.match(r"\s*(host|match)\b", included_line, re.IGNORECASE):
                        break
                    yield included_line
        yield block


def _base(path: Path) -> str:
    """The folder that relative includes of a file are in."""
    return "/etc/ssh" if path.is_relative_to("/etc/ssh") else os.path.expanduser("~/.ssh")


def _hop(text: str) -> Hop:
    """`user@host:port`, `ssh://user@host:port`, with an IPv6 address in brackets."""
    text = text.removeprefix("ssh://").rstrip("/")
    user, _, rest = text.rpartition("@")
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?", rest)
    if bracketed:
        host, port = bracketed.group(1), bracketed.group(2)
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    else:
        host, port = rest, None
    return Hop(host, user or None, int(port) if port and port.isdecimal() else None)


def _with_tilde(path: str) -> str:
    """A path below the home folder in its form with `~`, which holds on other machines too."""
    home = os.path.expanduser("~")
    return f"~{path[len(home) :]}" if path.startswith(home + os.sep) else path


def _unreadable(path: Path, reason: str) -> BadSshConfig:
    return BadSshConfig("the SSH configuration cannot be used", where=str(path), detail=reason)
