"""RunPod: pods and Instant Clusters. `account/` asks its API; nothing here is planned or made yet."""
