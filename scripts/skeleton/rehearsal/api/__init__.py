"""The simulated API: a function for each route."""
