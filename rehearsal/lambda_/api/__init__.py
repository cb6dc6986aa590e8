"""The REST API v1, as published: a function for each route."""
