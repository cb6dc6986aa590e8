"""What a machine of a cloud says of its own preparation: it is under way, it is done, or it failed.

The machine's start-up script leaves it in a folder of its own, which other nodes do not have.
"""

from __future__ import annotations

from orch.runner.errors import NodeUnfit
from orch.runner.node.commands import NODE_HOME

BOOT = f"{NODE_HOME}/boot"
# A first boot installs drivers and plug-ins, and runs the fleet's `init`: minutes.
PREPARE_S = 1800.0
LOOK_AGAIN_S = 5.0

LOOK = f"""\
if [ -d {BOOT} ] && [ ! -e {BOOT}/ok ]; then
  if [ -s {BOOT}/failed ]; then sed 's/^/boot failed /;q' {BOOT}/failed; else echo boot; fi
fi
"""
"""Shell text that says `boot`, or `boot failed WHY`; nothing where a machine is ready."""


def unfit(node: str, why: str) -> NodeUnfit:
    """The error of a node that is kept out."""
    return NodeUnfit(
        f"node {node} is kept out: its preparation failed",
        where=node,
        detail=why or None,
        hint=f"`orch ssh {node}` and `journalctl -u orch-prepare` tell more; once it is mended, `systemctl "
        "restart orch-prepare` there. Or remove the node with `orch fleet delete FLEET -i N`; `orch up` "
        "makes it anew",
        code="ORCH391",
    )
