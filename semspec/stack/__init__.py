"""The whole stack on one machine: Redis, the three services and the gateway as child processes of this one."""

from semspec.stack.child import StackError
from semspec.stack.config import BUNDLED_PAIR, StackConfig
from semspec.stack.supervisor import Stack, run

__all__ = ["BUNDLED_PAIR", "Stack", "StackConfig", "StackError", "run"]
