"""What all APIs share: errors, streams, middleware, stored generations and operational routes."""
