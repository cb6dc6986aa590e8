"""The part of EC2's API that is about instances and the capacity for them."""
