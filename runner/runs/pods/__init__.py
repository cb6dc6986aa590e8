"""Pods of a run on a cluster: what is asked for, and how the run gets them and gives them back."""
