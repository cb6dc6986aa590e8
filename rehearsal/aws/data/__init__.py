"""What the simulated AWS has: instance types, regions, images, quotas. Sources: rehearsal/README.md."""
