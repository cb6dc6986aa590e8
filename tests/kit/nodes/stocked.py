"""Nodes that have an image of ours from their start, for tests of what jobs do with it.

Sending `orch/job` to a node takes twenty seconds of a core each time; how images come to nodes is shown by
tests/e2e/test_quickstart.py and tests/runner/test_faults.py. Here the image's layers lie in the node's own
and nothing is copied: Docker stacks them from there, less the files that an upper layer removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import tempfile
from pathlib import Path

from kit.nodes.nodelab import Lab, docker, load_image
from platformdirs import user_cache_path

from orch import images

# No file system in a container takes what says in a layer that a file of a lower one is gone.
PACK = """
mkdir -p /opt/store
cd /var/lib/docker
find image overlay2 ! -type c -print0 | tar --null --no-recursion -T - -cf - | tar -C /opt/store -xf -
"""
START = """
cd /opt/store
into=/var/lib/docker
[ -e $into/image ] || {
    tar --exclude 'overlay2/*/diff/*' -cf - image overlay2 | tar -C $into -xf -
}
for layer in overlay2/*/diff; do mount --bind $layer $into/$layer; done
exec docker-init -- sh /usr/local/lib/orch/node-entry.sh
"""


def stocked(name: str) -> str:
    """The node's image whose Docker has `orch/NAME`, made once on a machine."""
    made_of = (images.ensure("node", progress=print), images.ensure(name, progress=print), PACK, START)
    digest = hashlib.sha256("\0".join(made_of).encode()).hexdigest()
    tag = f"orch-test/stocked-{name}:{digest[:12]}"
    with (user_cache_path("orch", ensure_exists=True) / f"test-stocked-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one makes it, whoever else needs it waits
        if not docker("images", "-q", tag):
            _make(tag, name)
    return tag


def _make(tag: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder))
        try:
            node = lab.node()
            load_image(node, name)
            docker("stop", node.name)
            # In a container of its own: what lies in the volume would not be in the image.
            packer = f"{node.name}-packer"
            options = ("--label", f"orch.test={lab.tag}", "--volumes-from", node.name, "--entrypoint", "sh")
            docker("run", "--name", packer, *options, images.resolve("orch/node"), "-ec", PACK)
            entry = f"ENTRYPOINT {json.dumps(['sh', '-ec', START])}"
            docker("commit", "--change", entry, "--change", "CMD []", packer, tag)
        finally:
            lab.remove()
