"""Conversion between protobuf messages and the dataclasses of `semspec.types`; no other module uses both.

`*_to_wire` does not validate its input. `*_from_wire` validates every field and raises `InvalidRequest`, or `Mismatch`
for another state convention; the error names the invalid field as a path such as `context[2].end`.

`put_*` fills nested messages in place. Passed to a constructor, protobuf would copy them at each level, which takes
4 ms instead of 0.03 ms for the states of a 32B model.
"""
