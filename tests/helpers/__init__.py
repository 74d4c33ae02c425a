"""What tests of several parts use."""
