"""Conversion between protobuf messages and the dataclasses of `semspec.types`; no other module uses both.

What is received is validated in every field, and an error names the invalid one as a path such as `context[2].end`.
"""
