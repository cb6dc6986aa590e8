"""What an administrator would have installed in a rehearsed cluster, each written from its own documents."""
