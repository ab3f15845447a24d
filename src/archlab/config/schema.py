"""The whole config of a run: the model, its training, its data."""

import pickle
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from archlab.config.core.base import (
    DERIVED,
    Count,
    Derived,
    Length,
    Natural,
    NonNegative,
    Positive,
    Probability,
    Seed,
    Settings,
    Share,
    Tokens,
)
from archlab.config.core.plugins import PlugIns, import_plugins
from archlab.config.core.trust import accept
from archlab.config.model_schema import ModelConfig
from archlab.config.optimizer import AdamW, LrMultipliers, NextToken, Objective, Optimizer, ScheduleName
from archlab.config.parallel import ParallelConfig
from archlab.config.tasks import NoTask, TaskOrText


class Keep(Settings):
    """Which checkpoints stay while a run goes on."""

    last: Annotated[int, Field(ge=1)] = 2
    """So many of the newest: where one is damaged, the one before it is used."""
    every: Count | None = None
    """Checkpoints whose step is a multiple of it stay for good. null: none. A finished run keeps its last weights. With
    `train.schedule=constant` or `wsd` it also keeps the checkpoint from which a longer run can start."""


class Spikes(Settings):
    """What is done about a step whose loss or gradient is far above those before it."""

    deviations: Positive = 6.0
    """From which on it is a spike: standard deviations above the mean of the window."""
    window: Annotated[int, Field(ge=2)] = 100
    """Steps before it that say what is usual; until there are as many nothing is a spike."""
    action: Literal["note", "skip", "rewind"] = "note"
    """note: it is in the log. skip: no update is made of that batch. rewind: the training goes back to its newest
    checkpoint, and on from there with the text after the spike (PaLM, Chowdhery 2022); where there is none, or it did
    so five times, it skips."""


LogTo = Literal["tensorboard", "wandb", "trackio", "mlflow"]
"""What metrics can be copied to. Each is an extra of the same name."""


def _each_once(names: tuple[LogTo, ...]) -> tuple[LogTo, ...]:
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"names {twice[0]} twice; allowed: each once")
    return names


class TrainConfig(Settings):
    """How the model is trained. A step is one optimiser update."""

    tokens: Derived[Tokens] = DERIVED
    """Training tokens; steps are tokens // batch_tokens. null: a million, or one batch where that is more."""
    batch_tokens: Derived[Length] = DERIVED
    """Tokens per step. null: as many whole sequences as hold 8192 tokens."""
    micro_batch_tokens: Derived[Length] = DERIVED
    """Tokens per forward and backward pass, accumulated to batch_tokens. null: the whole batch at once. The balance of
    experts is asked of each pass by itself, so with mlp.balance.loss it is another objective."""
    seq_len: Derived[Length] = DERIVED
    """Tokens per training window. null: model.max_seq_len."""
    document_mask: bool = False
    """Documents in one window do not see each other, and positions restart with each; in evaluation too."""
    lr: Positive = 1e-3
    """Peak learning rate."""
    warmup: Annotated[int, Field(ge=0)] | Share = 0.02
    """Linear warm-up: a whole number is steps, a fraction below 1 a share of all steps."""
    schedule: ScheduleName = "cosine"
    """Shape after the warm-up; wsd holds the peak, then decays linearly."""
    final_lr: Derived[Annotated[float, Field(ge=0, le=1)]] = DERIVED
    """Learning rate at the end, as a part of the peak. null: 0.1 (constant: 1)."""
    decay: Derived[Share] = DERIVED
    """wsd only: share of the steps after the warm-up that decay. null: 0.2 (other schedules: 0)."""
    optimizer: Optimizer = AdamW()
    """What makes an update of the gradient: AdamW, Muon, or a plug-in."""
    lr_multipliers: LrMultipliers = LrMultipliers()
    """Factors on the learning rate by what a parameter is for."""
    weight_decay: NonNegative = 0.1
    """Decoupled weight decay of matrices and of convolutions; norms and biases never decay (Loshchilov 2019)."""
    decay_embeddings: bool = False
    """Decay tables, too: the token and position embeddings, distances beside the scores, and the head."""
    betas: Annotated[tuple[Probability, Probability], Field(strict=False)] = (0.9, 0.95)
    """AdamW's averaging factors, also beside Muon."""
    eps: Positive = 1e-8
    """AdamW's epsilon, also beside Muon."""
    grad_clip: Positive | None = 1.0
    """Largest global gradient norm; larger ones are scaled down. null: no clipping."""
    spikes: Spikes = Spikes()
    """What is done about a loss or a gradient that jumps."""
    objective: Objective = NextToken()
    """What is minimized; the reported loss is the plain cross-entropy of the next token."""
    z_loss: NonNegative = 0.0
    """Factor on log^2 Z, Z the softmax denominator of the logits (PaLM 1e-4); not in the reported loss."""
    seed: Seed = 0
    """Decides initial values, data order and dropout."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the matrix products; weights stay float32. auto: bfloat16 where the processor multiplies it faster."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where there is one."""
    compile: Literal["auto"] | bool = "auto"
    """torch.compile the layers. auto: where the run is long enough to gain by it, and a C++ compiler is there."""
    eval_every: Derived[Count] = DERIVED
    """Steps between evaluations on the held-out text. null: a tenth of the run."""
    eval_tokens: Length = 65536
    """Held-out tokens per evaluation, always the same ones."""
    eval_seq_len: Derived[Length] = DERIVED
    """Tokens per window of evaluation. null: as in training."""
    checkpoint_every: Derived[Count] = DERIVED
    """Steps between checkpoints. null: at every evaluation."""
    keep: Keep = Keep()
    """Which checkpoints stay."""
    recompute: bool = False
    """Keep only each layer's input for the backward pass, and compute the rest again there (Chen 2016): less memory, a
    third more time."""
    probe_every: Count | None = None
    """Steps between probes of gradients, activations and attention, kept in metrics.jsonl. null: never."""
    log: Annotated[tuple[LogTo, ...], Field(strict=False), AfterValidator(_each_once)] = ()
    """Where its metrics go beside metrics.jsonl, each an extra of its name, as in `pip install 'archlab[wandb]'`."""

    @property
    def steps(self) -> int:
        """Optimiser updates in the whole run."""
        return self.tokens // self.batch_tokens

    @property
    def trained(self) -> int:
        """Tokens that are trained on: whole batches only."""
        return self.steps * self.batch_tokens

    @property
    def rows(self) -> int:
        """Training windows per step."""
        return self.batch_tokens // self.seq_len


class MixtureSource(Settings):
    """A part of a mixture."""

    path: str
    """A folder made by `archlab data`, with the same --tokenizer as the others."""
    weight: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Its share of the training windows, relative to the other sources' weights."""


def _no_mixture(value: Any) -> Any:
    return {} if value is None else value


_Sources = dict[str, MixtureSource]
_Mixture = Annotated[_Sources, BeforeValidator(_no_mixture, json_schema_input_type=_Sources | None)]
"""By name; null takes away what a base says."""


class DataConfig(Settings):
    """What it is trained on."""

    path: str = "python-stdlib"
    """python-stdlib (the running Python's source), a folder made by `archlab data`, or text to prepare."""
    mixture: _Mixture = Field(default_factory=dict)
    """Texts in place of one, by name; each is read in its share of the training windows. null: none."""
    held_out: Probability = 0.05
    """Share of the text in one fold, of whole files in the order of their names' hashes (text prepared here only)."""
    fold: Natural = 0
    """Which fold is kept for evaluation; the others are trained on."""
    task: TaskOrText = NoTask()
    """Windows of a synthetic task instead of text, in all tokens of the vocabulary; path and held_out are not used."""

    @property
    def named(self) -> str:
        """What a message calls the text."""
        return "data.mixture" if self.mixture else self.path


class Config(Settings):
    """Everything that decides a run."""

    plugins: PlugIns = ()
    """Modules of your own, or files that end in .py, that add kinds of yours."""
    model: ModelConfig
    """The architecture."""
    train: TrainConfig = TrainConfig()
    """Optimiser, schedule, budget."""
    data: DataConfig = DataConfig()
    """Text and tokens."""
    parallel: ParallelConfig = ParallelConfig()
    """Processes, where torchrun starts several."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let the process that unpickles the config import its plug-ins first: the values are of their classes."""
        return _unpickled, (type(self), self.plugins, pickle.dumps(self.__getstate__()))


def _unpickled(schema: type[Config], plugins: tuple[str, ...], state: bytes) -> Config:
    """The process that sent the config has checked its plug-ins."""
    accept(*plugins)
    import_plugins(plugins)
    config = schema.__new__(schema)
    config.__setstate__(pickle.loads(state))
    return config
