"""The project, asked over Crusoe's REST API."""
