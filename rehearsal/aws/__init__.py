"""AWS: an account in a file, its API, and Pulumi's package `aws` on it."""
