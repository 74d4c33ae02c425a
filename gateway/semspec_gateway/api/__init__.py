"""HTTP: request and response schemas, routes and middleware."""
