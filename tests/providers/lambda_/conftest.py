"""The simulated account for tests of this folder."""

from lambda_lab import lab

__all__ = ["lab"]
