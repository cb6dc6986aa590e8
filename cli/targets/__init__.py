"""Resolves the words of a command line: files, fleets, runs, nodes and moments. Any verb may import it."""
