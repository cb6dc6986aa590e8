"""Container images orch builds itself: `orch/node` (a local cluster node), `orch/job` (the default job),
`orch/mpi`, and the variants of the default job (`variants.py`).

One folder per image holds its Dockerfile; `build.py` names an image after its content and builds it when it
is missing. Imports only `orch.spec`. Start reading at `build.ensure`.
"""

from orch.images.build import can_build, ensure, is_ours, names, resolve, tag
from orch.images.doctor import ImageCheck, checks
from orch.images.errors import ImageError
from orch.images.variants import JobImage, default_image, job_image, variants

__all__ = [
    "ImageCheck",
    "ImageError",
    "JobImage",
    "can_build",
    "checks",
    "default_image",
    "ensure",
    "is_ours",
    "job_image",
    "names",
    "resolve",
    "tag",
    "variants",
]
