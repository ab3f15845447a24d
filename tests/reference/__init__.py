"""Reference implementations to check the fast code against: in float64 NumPy, token by token from the formulas. Only
Grok-1 is in torch, so that transformers can load, save and run it."""
