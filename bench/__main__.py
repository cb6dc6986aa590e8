"""Run the benchmarks named on the command line, or all."""

from __future__ import annotations

import os
import sys

from bench import (
    cluster,
    fanout,
    folder,
    launch,
    output,
    preview,
    queue,
    scale,
    scrape,
    startup,
    upload,
    validate,
)

ALL = {
    "startup": startup.figures,
    "validate": validate.figures,
    "preview": preview.figures,
    "folder": folder.figures,
    "launch": launch.figures,
    "output": output.figures,
    "queue": queue.figures,
    "fanout": fanout.figures,
    "scrape": scrape.figures,
    "upload": upload.figures,
    "cluster": cluster.figures,
    "scale": scale.figures,
}


def main() -> None:
    # Some images of Python set it; what is measured would compile all it imports anew at each start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    wanted = sys.argv[1:] or list(ALL)
    unknown = [name for name in wanted if name not in ALL]
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are: {', '.join(ALL)}")
    for name in wanted:
        for figure in ALL[name]():
            print(figure, flush=True)


main()
