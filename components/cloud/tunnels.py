"""Ways to nodes through a cloud's own tunnel, by its command line: whose credentials that takes. Pure.

A way is recorded in the fleet's state and used by whoever has that, so it holds no secret. What a key of
`orch.yml` has to do with it is given to the command in its environment, under names of ours: somebody without
that `orch.yml` is told so, and does not come in by another account.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

# As it stands between double quotes.
_MISSING = r"the credentials that \`creds\` in orch.yml names are not at hand here"


def command(words: Sequence[str]) -> str:
    """Words as a proxy command: each stays one word, and `%` is no mark of ssh's."""
    return shlex.join(words).replace("%", "%%")


def with_environment(words: Sequence[str], variables: Mapping[str, str], unset: Sequence[str]) -> str:
    """The same with variables set from others that the caller has: `variables` is name -> the caller's name.

    They are set by the shell itself: a word of a command is seen in the list of processes. `unset` are those
    that would overrule them.
    """
    sets = " ".join(f'{name}="${{{callers_name}:?{_MISSING}}}"' for name, callers_name in variables.items())
    script = f"export {sets}; unset {' '.join((*unset, *variables.values()))}; exec {shlex.join(words)}"
    return command(["sh", "-c", script])
