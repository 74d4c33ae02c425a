"""The three gRPC services, one package per process with settings and `__main__`; shared code is in `semspec.rpc`."""
