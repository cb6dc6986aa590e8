"""The account, asked through Nebius's SDK."""
