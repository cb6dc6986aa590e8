"""What a node says of its own preparation: it is under way, it is done, or it failed.

The start-up script of a machine of a cloud leaves it in a folder of its own, which other nodes do not have.
On those, steps of `init` that failed leave it in theirs (`init_steps.py`).
"""

from __future__ import annotations

from orch.runner.errors import NodeUnfit
from orch.runner.node_api.commands import NODE_HOME
from orch.templates import ShellText

BOOT = f"{NODE_HOME}/boot"
# A first boot installs drivers and plug-ins, and runs the fleet's `init`: minutes.
PREPARE_S = 1800.0
LOOK_AGAIN_S = 5.0

# On a host that several fleets share, each has steps of its own: what keeps it out is told with whose it is.
# A container is of one fleet, and has no registrations.
FAILED_STEPS = ShellText(f"""\
for why in {NODE_HOME}/init/*/failed; do
  [ -s "$why" ] || continue
  of=${{why%/failed}}
  of=$(sed q {NODE_HOME}/registered/"${{of##*/}}" 2>/dev/null) && [ -n "$of" ] || of=
  of=${{of%/*}}
  echo "$(sed q "$why")${{of:+ (fleet ${{of##*/}} of project ${{of%/*}})}}"
done
""")
"""Shell text that says, a line for each, why steps of `init` keep a node out; nothing where none do."""

STATUS_SCRIPT = f"""\
if [ -d {BOOT} ] && [ ! -e {BOOT}/ok ]; then
  if [ -s {BOOT}/failed ]; then sed 's/^/boot failed /;q' {BOOT}/failed; else echo boot; fi
fi
{{
{FAILED_STEPS}}} | sed 's/^/boot failed /'
"""
"""Shell text that says `boot`, or `boot failed WHY`; nothing where a machine is ready."""


def unfit_error(node: str, why: str) -> NodeUnfit:
    """The error of a node whose preparation failed."""
    return NodeUnfit(
        f"node {node} is kept out: its preparation failed",
        where=node,
        detail=why or None,
        hint=f"`orch ssh {node}` leads there. On a machine of a cloud `journalctl -u orch-prepare` tells "
        "more, and once it is mended, `systemctl restart orch-prepare`; elsewhere `orch up` of the fleet "
        "whose steps failed runs them again. Or remove the node with `orch fleet delete FLEET -i N`; "
        "`orch up` makes it anew",
        code="ORCH391",
    )
