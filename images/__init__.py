"""Container images orch builds itself: `orch/node` (a local cluster node), `orch/job` (the default job),
`orch/mpi`.

One folder per image holds its Dockerfile; `build.py` names an image after its content and builds it when it
is missing. Imports only `orch.spec`. Start reading at `build.ensure`.
"""

from orch.images.build import ensure, is_ours, names, resolve, tag
from orch.images.doctor import ImageCheck, checks
from orch.images.errors import ImageError

__all__ = ["ImageCheck", "ImageError", "checks", "ensure", "is_ours", "names", "resolve", "tag"]
