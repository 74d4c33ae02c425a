"""A small language of reasoning in two domains, in which a pair of models is trained that is hard to tell apart."""
