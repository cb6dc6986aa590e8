"""A simulated Nebius account: a gRPC service on this machine, which Nebius's own SDK speaks to."""
