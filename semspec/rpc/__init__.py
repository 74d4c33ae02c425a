"""gRPC: protobuf conversions, the servers of the services, and the clients of the gateway."""
