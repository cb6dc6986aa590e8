"""The simulated account for tests of this folder."""

from kit.clouds.lambda_lab import lab

__all__ = ["lab"]
