"""The simulated account for tests of this folder."""

from kit.clouds.nebius_lab import lab

__all__ = ["lab"]
