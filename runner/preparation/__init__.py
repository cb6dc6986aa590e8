"""What a node does before it takes jobs: its first boot, the steps of `init`, its shared file systems."""
