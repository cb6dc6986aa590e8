"""Secrets that are looked for everywhere: each made for one test, and found in any form it may take."""

from __future__ import annotations

import base64
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType


@dataclass(frozen=True)
class Canary:
    """A secret. Around its core stand characters that JSON, URLs, YAML and shells write otherwise."""

    name: str
    core: str = field(default_factory=lambda: f"cnry{secrets.token_hex(10)}")

    @property
    def value(self) -> str:
        return f"+/{self.core}'\"& x"

    @property
    def forms(self) -> tuple[bytes, ...]:
        """The core as it is, backwards, in hex, and in base64 at each of the three places it may begin at."""
        core = self.core.encode()
        inside = [base64.b64encode(b"x" * at + core)[4 if at else 0 : -4] for at in range(3)]
        url_safe = [each.replace(b"+", b"-").replace(b"/", b"_") for each in inside]
        return (core, core[::-1], core.hex().encode(), core.hex().upper().encode(), *inside, *url_safe)


class Nest:
    """The canaries of one test, and the places that were searched for them."""

    def __init__(self, *names: str) -> None:
        self.all = {name: Canary(name) for name in names}
        self.searched = 0
        self._forms = [(form, each.name) for each in self.all.values() for form in each.forms]

    def __getitem__(self, name: str) -> Canary:
        return self.all[name]

    def in_bytes(self, data: bytes) -> set[str]:
        """Names of the canaries in it."""
        self.searched += 1
        return {name for form, name in self._forms if form in data}

    def in_files(self, top: Path) -> Iterator[tuple[str, set[str]]]:
        """Files below a folder that hold any, and which; names of files count too."""
        for path in sorted(top.rglob("*")):
            if path.is_symlink():
                found = self.in_bytes(os.readlink(path).encode())
            elif path.is_file():
                try:
                    found = self.in_bytes(path.read_bytes())
                except FileNotFoundError:
                    continue
            else:
                continue
            found |= self.in_bytes(path.name.encode())
            if found:
                yield str(path.relative_to(top)), found


class Watch(threading.Thread):
    """Looks at the command line and environment of every process, again and again, while a block runs.

    Environments only of processes outside of containers: a job's own hold what it was given.
    """

    def __init__(self, nest: Nest) -> None:
        super().__init__(daemon=True)
        self.nest = nest
        self.found: set[tuple[str, str, frozenset[str]]] = set()
        self.looks = 0
        self._over = threading.Event()
        self._space = os.readlink("/proc/self/ns/pid")

    def run(self) -> None:
        seen: set[tuple[str, bytes]] = set()
        while not self._over.wait(0.1):
            self.looks += 1
            for entry in _processes():
                try:
                    line = (entry / "cmdline").read_bytes()
                    if not line or (entry.name, line) in seen:
                        continue
                    inside = os.readlink(entry / "ns" / "pid") != self._space
                    found = {"cmdline": line, "environ": b"" if inside else (entry / "environ").read_bytes()}
                except OSError:
                    continue  # gone meanwhile
                seen.add((entry.name, line))
                words = line.replace(b"\0", b" ").decode(errors="replace")
                for what, data in found.items():
                    if names := self.nest.in_bytes(data):
                        self.found.add((what, words, frozenset(names)))

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self.join()


def _processes() -> Iterable[Path]:
    me = str(os.getpid())
    return [Path(each) for each in os.scandir("/proc") if each.name.isdigit() and each.name != me]
