"""Tables of the simulated RunPod account; orch's catalogue is not read for them."""
