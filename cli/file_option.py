"""`-f FILE`, for fingers that are used to it: the same as FILE."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

ALSO = "Also as `-f FILE`."
_OPTIONS = ("-f", "--file")


class FileCommand(TyperCommand):
    """A verb whose first argument may be written with `-f`, `--file` or `--file=` before it, anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, positional(args))


def positional(args: list[str]) -> list[str]:
    """The same arguments with what stands after `-f` as an argument, in its place."""
    end = args.index("--") if "--" in args else len(args)
    found = list[str]()
    for at, word in enumerate(args[:end]):
        if word.startswith("--file="):
            found.append(word.removeprefix("--file="))
        elif word not in _OPTIONS:
            found.append(word)
        elif at + 1 == end:
            raise typer.BadParameter("a file is expected after it", param_hint=word)
    return [*found, *args[end:]]
