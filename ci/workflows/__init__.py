"""The workflows of a project: their files, what they must know of it, install, watch and are trusted with."""
