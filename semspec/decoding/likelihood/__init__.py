"""The strategy `likelihood`, and the calibration that it judges by."""
