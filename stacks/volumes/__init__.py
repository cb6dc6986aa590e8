"""Preview, create and delete volumes of a project, each a stack of its own called `volume.NAME`."""
