"""What a property of a model is: its type, how it reads, its JSON Schema."""
