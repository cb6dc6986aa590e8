"""What the people of a project share: its settings, its passphrase, its log, its state."""
