"""Runs `orch` with its arguments and writes down what Python did on the way: to the file named first.

An audit hook sees files, sockets, processes and libraries; `os.environ` and the calls that look at files
without opening them are wrapped, for no hook sees those.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

HEARD = ("socket.", "subprocess.", "os.exec", "os.posix_spawn", "os.fork", "os.system", "os.spawn", "pty.")
opened: list[str] = []
done: list[str] = []
looked_at: list[str] = []
variables: list[str] = []


def hook(event: str, args: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and isinstance(args[0], (str, bytes)):
        opened.append(os.fsdecode(args[0]))
    elif event.startswith(HEARD):
        done.append(f"{event} {args[:3]!r}")


class Told(dict[bytes, bytes]):
    """The variables of this process, each look at one written down."""

    def __getitem__(self, key: bytes) -> bytes:
        variables.append(os.fsdecode(key))
        return super().__getitem__(key)


def telling(name: str) -> None:
    call = getattr(os, name)

    def told(path: Any, *args: Any, **more: Any) -> Any:
        if isinstance(path, (str, bytes, os.PathLike)):
            looked_at.append(os.path.join(os.getcwd(), os.fsdecode(path)))
        return call(path, *args, **more)

    setattr(os, name, told)


os.environ._data = Told(os.environ._data)  # type: ignore[attr-defined]
for each in ("stat", "lstat", "readlink"):
    telling(each)
sys.addaudithook(hook)
target = sys.argv.pop(1)
code: object = 0
try:
    from orch.cli.main import main

    main()
except SystemExit as leaving:
    code = leaving.code
found = {"opened": opened, "done": done, "looked_at": looked_at, "variables": variables, "code": code}
with open(target, "w", encoding="utf-8") as file:
    json.dump(found, file)
