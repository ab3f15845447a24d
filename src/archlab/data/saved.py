"""Data sets of the `datasets` library: those it saved in a folder, and those of the Hugging Face hub."""

from functools import cache
from pathlib import Path

from archlab.errors import UserError

HUB = "hf:"
"""What a source of the hub begins with: hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT."""

ABOUT_IT = {"dataset_info.json", "state.json"}
"""Files beside the .arrow files of a saved data set; they are no text of it."""

SPLITS = "dataset_dict.json"
"""A file of a saved data set with splits, each in a folder of its own."""


@cache
def hub_files(source: str) -> tuple[tuple[Path, str], ...]:
    """The .arrow files into which `datasets` brings a data set of the hub, and a name of each that does not depend on
    where they lie. They are fetched once, into the library's own cache."""
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"{source}: needs the datasets library; run: pip install 'archlab[datasets]'") from None
    name, config, split = (*source.removeprefix(HUB).split(":"), "", "")[:3]
    try:
        found = load_dataset(name, config or None, split=split or "train")
    except Exception as error:  # whatever the network, the hub or a data set of unknown make throws
        raise UserError(f"{source}: {(str(error) or type(error).__name__).splitlines()[0]}") from None
    files = [Path(file["filename"]) for file in found.cache_files]
    return tuple((file, f"{source}/{file.name}") for file in files)
