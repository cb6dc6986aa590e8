"""A GCP project as plans see it: asked by google-cloud-compute, and cleared of what a killed call left."""
