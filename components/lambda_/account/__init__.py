"""Asking a Lambda account: calls, what their errors mean, names, and what a killed call left."""
