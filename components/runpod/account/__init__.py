"""The account, asked through RunPod's REST API v2, and by GraphQL for what v2 has no route for."""
