"""Generated from proto/semspec/v1 by `scripts/proto`. Only semspec.rpc imports it."""
