"""Drafts by retrieval, after SENSE (arXiv 2606.00021): a datastore of a target's own answers, searched by the n-grams
and by the hidden states of a context. See docs/retrieval.md."""
