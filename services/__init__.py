"""The three gRPC services, one package a process: settings and a `__main__`; what they share is in `semspec.rpc`."""
