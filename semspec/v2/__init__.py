"""Generated from proto/semspec/v2 by `scripts/proto`. Only semspec.rpc imports it."""
