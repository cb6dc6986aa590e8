"""Objects of Kubernetes that a fleet stands on: their handler, and what killed calls left of them."""
