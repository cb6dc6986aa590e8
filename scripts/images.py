"""Render the images of the README from output of orch: `python scripts/images.py [FOLDER]`.

The output is that of a rehearsal of examples/aws/p5-cluster.yml, which needs no account and no Docker.
FOLDER is `docs/images` by default.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
ORCH = Path(sys.executable).with_name("orch")
PROJECT = "project: demo\n"
POLICY = "policies:\n  budget: {level: mandatory, hourly: 100}\n"


def output(folder: Path, *words: str, code: int = 0) -> str:
    """Return what `orch WORDS` prints in `folder`. Raise SystemExit if its exit code is not `code`."""
    done = subprocess.run([ORCH, *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != code:
        sys.exit(f"orch {' '.join(words)}: exit code {done.returncode}, expected {code}\n{done.stderr}")
    return done.stdout


def folded(comment: str) -> str:
    """Return a comment as a forge first shows it: of each folded part, its summary."""
    return re.sub(r"(?s)<details><summary>(.*?)</summary>.*?</details>", r"▸ \1", comment)


def svg(shown: RenderableType, title: str, width: int) -> str:
    """Return `shown` as an SVG without the font that the template of rich loads from a server."""
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(shown)
    drawn = console.export_svg(title=title, unique_id="orch")
    drawn = re.sub(r"(?s)@font-face \{.*?\}\s*", "", drawn)
    return re.sub(r"font-family: [^;]+;", "font-family: monospace;", drawn)


def main(images: Path) -> None:
    with TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "infra").mkdir()
        (folder / "infra" / "p5.yml").write_text((ROOT / "examples/aws/p5-cluster.yml").read_text())
        (folder / "orch.yml").write_text(PROJECT)
        plan = output(folder, "preview", "infra/p5.yml", "--rehearse")
        plan = re.sub(r"(orch-p5-)[0-9a-f]{6}", r"\g<1>5a1c0e", plan)  # random for each project
        (folder / "orch.yml").write_text(PROJECT + POLICY)
        comment = output(folder, "preview", "infra", "--rehearse", "--markdown", code=4)
    images.mkdir(parents=True, exist_ok=True)
    (images / "preview.svg").write_text(svg(Text(plan), "orch preview infra/p5.yml --rehearse", 130))
    (images / "review.svg").write_text(
        svg(Markdown(folded(comment)), "orch preview infra --rehearse --markdown", 130)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "images")
