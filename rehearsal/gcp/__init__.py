"""GCP: an account in a file, its API, and Pulumi's package `gcp` on it."""
