"""The part of Compute Engine's API that is about networks."""
