"""What people and pipelines read: plans, fleets, runs, offers."""
