"""Nebius: InfiniBand clusters. `account/` asks its API; nothing here is planned or made yet."""
