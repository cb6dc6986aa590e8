"""Container images orch builds itself: `orch/node` (a local cluster node), `orch/job` (the default job),
`orch/mpi`, and the variants of the default job (`variants.py`).

One folder per image holds its Dockerfile; `build.py` names an image after its content and builds it when it
is missing. Imports only `orch.spec`. Start reading at `build.ensure`.
"""

from orch.images.build import can_build, ensure, is_ours, names, resolve, tag
from orch.images.doctor import ImageCheck, checks
from orch.images.errors import ImageError
from orch.images.variants import default_image, variants

__all__ = [
    "ImageCheck",
    "ImageError",
    "can_build",
    "checks",
    "default_image",
    "ensure",
    "is_ours",
    "names",
    "resolve",
    "tag",
    "variants",
]
