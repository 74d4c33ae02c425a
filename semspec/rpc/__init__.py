"""The wire: protobuf conversions, the servers the services run, and the clients the gateway holds."""
