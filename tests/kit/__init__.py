"""What the tests are made with: accounts of clouds, nodes, engines, ledgers, forges."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
"""The folder of all tests, with their data."""
