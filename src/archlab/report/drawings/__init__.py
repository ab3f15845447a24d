"""Pictures that the code draws of itself, so that they cannot lie."""
