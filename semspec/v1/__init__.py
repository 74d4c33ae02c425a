"""Generated from proto/semspec/v1 by `make proto`. Only semspec.rpc imports it."""
