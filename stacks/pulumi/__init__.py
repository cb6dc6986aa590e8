"""The Pulumi CLI: found or installed, started, listened to, and cleaned up after when it was killed."""
