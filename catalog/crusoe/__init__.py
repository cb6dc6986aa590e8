"""What Crusoe's machines have beside their types, and which of them join InfiniBand networks."""
