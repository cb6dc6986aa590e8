"""From what a fleet asks for to offers of the catalogue, in order of price. Knows no Pulumi."""
