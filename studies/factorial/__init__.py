"""The probes' factorial: which of recipe, features and layers matters, training variance included."""
