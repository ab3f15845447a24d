"""`archlab eval`."""

from archlab.cli.arguments import AtLeastOne, Flag
from archlab.cli.terminal import print_json
from archlab.progress import doing


def run(
    config: str, /, *overrides: str, tokens: AtLeastOne | None = None, int8: Flag = False, json: Flag = False
) -> None:
    """Bits per byte on held-out text: of a run's last checkpoint, or of an untrained config.

    Parameters
    ----------
    config
        A run folder, a Hugging Face folder, a preset's name or a YAML file.
    overrides
        Fields to change, as in data.path=FOLDER or train.seq_len=512.
    tokens
        Held-out tokens to score. Left out: all.
    int8
        With the matrices of layers and head as 8-bit numbers, a scale per row.
    json
        JSON instead.
    """
    from archlab.infer.score import score

    with doing("scoring held-out text"):
        found = score(config, overrides, tokens, int8=int8)
    if json:
        print_json(found.model_dump())
        return
    state = f"after {found.trained_steps} steps" if found.trained_steps else "with the weights of this folder"
    state = state if found.trained else "untrained"
    print(f"{found.result} ({found.loss:.4f} nats per token), {state}")
    print(f"on {found.tokens:,} held-out tokens in windows of {found.context}: {found.corpus}")
