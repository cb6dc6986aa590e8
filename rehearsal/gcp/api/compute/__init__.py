"""The part of Compute Engine's API that is about instances and the capacity for them."""
