"""The console script `orch`. Loads the command line (`verbs.py`) only after what may begin before it."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys

from orch.cli.driver.standby import Link, begin_early
from orch.cli.redaction import cover_arguments


def main() -> None:
    """The console script `orch`."""
    # The clouds' SDKs are millions of objects and no garbage: looking through them, as often as Python does
    # and again at the end, is a quarter of a `preview` on GCP (measured).
    gc.set_threshold(100_000, 20, 100)
    atexit.register(gc.freeze)
    # To find plugins, pydantic reads the metadata of all packages there are: a tenth of the CPU time that
    # `orch run --detach` takes (measured). Models of orch have none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    cover_arguments()
    early = begin_early(sys.argv[1:], _stand_by)
    # Until `run` tells it, Ctrl-C ends the process without a word: no trace of modules that are being loaded.
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from orch.cli.errors import run

    run(lambda: _run(early=early, heeds_interrupts=heeds), _rehearsed)


def _rehearsed(text: str) -> str:
    from orch.cli.runbooks.verb_words import rehearsed_commands

    return rehearsed_commands(text)


def _stand_by(link: Link) -> int:
    from orch.cli.driver.opening import stand_by

    return stand_by(link)


def _run(*, early: bool, heeds_interrupts: bool) -> object:
    if heeds_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if early:
        from orch.cli.driver.opening import begin_before_reading

        begin_before_reading()
    from orch.cli.verbs import commands

    return commands()(standalone_mode=False)


if __name__ == "__main__":
    main()
