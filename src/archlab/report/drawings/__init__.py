"""Pictures that are drawn from configs and from the code itself, so that they always match the code."""
