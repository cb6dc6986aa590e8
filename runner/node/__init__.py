"""What happens on one node: its status, images, job containers, claims, logs."""
