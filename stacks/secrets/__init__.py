"""The secrets of a project and the key pairs of its fleets, as its state has them; `keys/` changes them."""
