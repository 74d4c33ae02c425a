"""Runs validated requests, independent of any API's format: admission, prompt encoding, decoding loop, storage."""
