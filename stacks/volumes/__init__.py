"""Volumes of a project, each with a stack of its own called `volume.NAME`."""
