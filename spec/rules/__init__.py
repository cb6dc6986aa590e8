"""What must hold between the properties of one document, and what this version does not act on."""
