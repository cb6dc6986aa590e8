"""What the simulated GCP has: machine types, regions, images, quotas. Sources: rehearsal/README.md."""
