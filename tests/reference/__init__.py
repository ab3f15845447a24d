"""Reference implementations in float64 NumPy, token by token from the formulas, to check the fast code against."""
