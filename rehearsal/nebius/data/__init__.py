"""Tables of the simulated Nebius account; orch's catalogue is not read for them."""
