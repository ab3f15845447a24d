"""`archlab convert`."""

from pathlib import Path

from archlab.cli.arguments import AtLeastOne
from archlab.exchange.load import load_hf
from archlab.exchange.save import save_pretrained
from archlab.exchange.surgery import pool_kv_heads


def run(hf_folder: Path, /, *, n_kv_heads: AtLeastOne, out: Path) -> None:
    """Turn multi-head into grouped-query attention: key/value heads become the means of neighbours (Ainslie 2023).

    The result needs some more training to be as good as before.

    Parameters
    ----------
    hf_folder
        A folder with config.json and weights.
    n_kv_heads
        Key/value heads to be left; must divide those there are.
    out
        The new Hugging Face folder.
    """
    family = save_pretrained(pool_kv_heads(load_hf(hf_folder), n_kv_heads), out)
    print(f"written as {family} with {n_kv_heads} key/value heads")
    print(out)
