"""Rules of thumb for how long to train."""

TOKENS_PER_PARAMETER = 20
"""With so many tokens a FLOP budget is spent best (Hoffmann 2022); of a mixture, per parameter that a token uses."""

FLOPS_PER_PARAMETER = 6
"""Per token of training, by the rule that counts weights only (Kaplan 2020)."""
