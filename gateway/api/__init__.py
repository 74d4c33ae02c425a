"""HTTP: request bodies in, response bodies out, one module per API."""
