"""`archlab flatten`."""

from pathlib import Path

from archlab.exchange.configs import load_config
from archlab.flatten.write import flatten


def run(config: str, /, *overrides: str) -> None:
    """Print a config as one PyTorch file: only what this model uses, dimensions named, under 350 lines.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in model.n_layers=2.
    """
    title = " ".join((Path(config).name.removesuffix(".yaml"), *overrides))
    print(flatten(load_config(config, *overrides).model, title), end="")
