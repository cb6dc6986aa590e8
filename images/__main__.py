"""`python -m orch.images [NAME...]`: build what is missing of these images (the node's and the default job's
if none is named).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from orch.images import docker
from orch.images.build import ensure, tag
from orch.images.errors import ImageError


def main(arguments: Sequence[str]) -> int:
    """Exit code of the command."""
    try:
        for name in arguments or ("node", "job"):
            present = docker.has_image(tag(name))
            reference = ensure(name, progress=lambda line: print(line, flush=True))
            if present:
                print(f"{reference}: there already")
    except ImageError as error:
        for text in (f"error: {error.summary}", error.detail, error.hint and f"what to do: {error.hint}"):
            if text:
                print(text, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
