"""What the routes of RunPod's REST API v2 do, and the queries of GraphQL that v2 has no route for."""
