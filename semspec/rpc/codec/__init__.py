"""Protobuf messages to core dataclasses and back: the only place that knows both.

`*_to_wire` trusts what it is given. `*_from_wire` checks everything and raises `InvalidRequest`, or `Mismatch` for
another state convention, naming the field at fault as a path such as `context[2].end`.

Nested messages are filled in place by `put_*`: handed to a constructor, protobuf would copy them level by level, which
for the states of a 32B model costs 4 ms instead of 0.03.
"""
