"""A pair whose draft fails by capability, in a language where form and meaning come apart; see README.md."""
