"""What all clouds share between a fleet and its resources."""
