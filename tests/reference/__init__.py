"""Components written out from their formulas in float64 NumPy, token by token: what the fast code is compared with."""
