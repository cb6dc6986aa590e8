"""The engine is installed from the archive of its release, and from no other one."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from orch.stacks.engine import install

pytestmark = pytest.mark.quick


def archive(text: str) -> bytes:
    """An archive as releases have it, with a `pulumi` that prints a version."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as files:
        entry = tarfile.TarInfo("pulumi/pulumi")
        entry.mode, entry.size = 0o755, len(text)
        files.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What is downloaded, by URL, on a Linux machine without an engine or Go."""
    found: dict[str, bytes] = {}
    monkeypatch.setenv("ORCHCTL_ENGINE_HOME", str(tmp_path / "engine"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(install.sys, "platform", "linux")
    monkeypatch.setattr(install.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(install.urllib.request, "urlopen", lambda url, timeout: io.BytesIO(found[url]))
    return found


URL = "https://get.pulumi.com/releases/sdk/pulumi-v3.259.0-linux-x64.tar.gz"


def test_the_archive_of_the_release_is_installed(
    served: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    served[URL] = archive("#!/bin/sh\necho v3.259.0\n")
    monkeypatch.setitem(install.DIGESTS, "linux-x64", hashlib.sha256(served[URL]).hexdigest())
    engine = install.install(lambda line: None)
    assert (engine.version, engine.origin) == ("3.259.0", "installed")
    assert engine.command.read_text() == "#!/bin/sh\necho v3.259.0\n"


def test_nothing_of_another_archive_is_kept(served: dict[str, bytes], tmp_path: Path) -> None:
    served[URL] = archive(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
    lines: list[str] = []
    with pytest.raises(install.EngineMissing):
        install.install(lines.append)
    assert "its SHA-256 is" in lines[-1]
    assert install.find() is None
    assert not (tmp_path / "PWNED").exists()
    assert [*(tmp_path / "engine").rglob("pulumi*")] == []


def test_a_platform_without_a_known_archive_downloads_nothing(
    served: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install.platform, "machine", lambda: "riscv64")
    lines: list[str] = []
    with pytest.raises(install.EngineMissing):
        install.install(lines.append)
    assert "no archive is known for linux-riscv64" in lines[-1]


def test_each_archive_has_its_own_digest() -> None:
    assert set(install.DIGESTS) == {"linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64"}
    assert {len(each) for each in install.DIGESTS.values()} == {64}
    assert len({*install.DIGESTS.values()}) == 4
