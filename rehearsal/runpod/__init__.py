"""The simulated RunPod account: a local HTTP service, written from RunPod's own documents."""
