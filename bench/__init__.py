"""Every strategy on the same problems in the same run: quality beside speed."""
