"""Tables of the simulated account. It shares none with the catalogue, which it judges."""
