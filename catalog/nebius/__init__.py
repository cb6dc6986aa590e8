"""Nebius as data: the InfiniBand fabrics of its types (`fabrics.csv`)."""
