"""Config of a run: the model, its training and its data."""

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
    """Checkpoints that are kept during a run."""

    last: Annotated[int, Field(ge=1)] = 2
    """Number of newest checkpoints kept. If the newest file is damaged, the one before it is used."""
    every: Count | None = None
    """Interval in steps: checkpoints at multiples of it are kept for good. null: none. A finished run keeps its last
    weights. With `train.schedule=constant` or `wsd`, it also keeps the checkpoint from which a longer run can start."""


class Spikes(Settings):
    """Handling of steps whose loss or gradient is far above those before."""

    deviations: Positive = 6.0
    """Threshold of a spike, in standard deviations above the mean of the window."""
    window: Annotated[int, Field(ge=2)] = 100
    """Number of steps before the current one that define the usual loss and gradient. The first steps of a run, up to
    this number, are never spikes."""
    action: Literal["note", "skip", "rewind"] = "note"
    """Reaction to a spike. `note`: only log it. `skip`: make no update from that batch. `rewind`: return to the newest
    checkpoint, and continue with the text after the spike (PaLM, Chowdhery 2022). Without a checkpoint, or after five
    rewinds, it skips."""


LogTo = Literal["tensorboard", "wandb", "trackio", "mlflow"]
"""Services that metrics can be copied to. Each needs the extra of the same name."""


def _each_once(names: tuple[LogTo, ...]) -> tuple[LogTo, ...]:
    if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"names {repeated[0]} twice; allowed: each once")
    return names


class TrainConfig(Settings):
    """Training of the model. A step is one optimizer update."""

    tokens: Derived[Tokens] = DERIVED
    """Number of training tokens; a run has tokens // batch_tokens steps. null: a million, or one batch if that is
    more."""
    batch_tokens: Derived[Length] = DERIVED
    """Number of tokens per step. null: as many whole sequences as are needed for at least 8192 tokens."""
    micro_batch_tokens: Derived[Length] = DERIVED
    """Number of tokens per forward and backward pass; gradients accumulate up to batch_tokens. null: the whole batch at
    once. Each pass balances its experts separately, so this changes the objective if mlp.balance.loss is set."""
    seq_len: Derived[Length] = DERIVED
    """Number of tokens per training window. null: model.max_seq_len."""
    document_mask: bool = False
    """Whether documents in one window are hidden from each other, with positions that restart in each. It holds in
    evaluation, too."""
    lr: Positive = 1e-3
    """Peak learning rate."""
    warmup: Annotated[int, Field(ge=0)] | Share = 0.02
    """Length of the linear warm-up: a whole number of steps, or a fraction below 1 of all steps."""
    schedule: ScheduleName = "cosine"
    """Shape of the learning rate after the warm-up: cosine, linear, constant, or wsd, which holds the peak and then
    decays linearly."""
    final_lr: Derived[Annotated[float, Field(ge=0, le=1)]] = DERIVED
    """Learning rate at the end, as a fraction of the peak. null: 0.1, or 1 for the schedule constant."""
    decay: Derived[Share] = DERIVED
    """Fraction of the steps after the warm-up in which the schedule wsd decays. null: 0.2. Other schedules: 0."""
    optimizer: Optimizer = AdamW()
    """Optimizer that turns gradients into updates: AdamW, Muon, or a plug-in."""
    lr_multipliers: LrMultipliers = LrMultipliers()
    """Factors on the learning rate by the role of a parameter."""
    weight_decay: NonNegative = 0.1
    """Decoupled weight decay of matrices and convolutions (Loshchilov 2019). Norms and biases never decay."""
    decay_embeddings: bool = False
    """Whether tables decay, too: token and position embeddings, tables of distances for the scores, and the head."""
    betas: Annotated[tuple[Probability, Probability], Field(strict=False)] = (0.9, 0.95)
    """AdamW's averaging factors (beta1, beta2). Muon uses AdamW with them for everything that is not a matrix."""
    eps: Positive = 1e-8
    """AdamW's epsilon. Muon uses AdamW with it for everything that is not a matrix."""
    grad_clip: Positive | None = 1.0
    """Largest global gradient norm; larger gradients are scaled down to it. null: no clipping."""
    spikes: Spikes = Spikes()
    """Handling of jumps of the loss or the gradient."""
    objective: Objective = NextToken()
    """Objective that training minimizes. The reported loss is always the cross-entropy of the next token."""
    z_loss: NonNegative = 0.0
    """Coefficient of log^2 Z, where Z is the softmax denominator of the logits (PaLM: 1e-4). The reported loss excludes
    it."""
    seed: Seed = 0
    """Random seed of initial values, data order and dropout."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of matrix products; weights stay in float32. `auto`: bfloat16 if the processor multiplies it faster."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that trains. `auto`: cuda if there is one, otherwise cpu."""
    compile: Literal["auto"] | bool = "auto"
    """Whether torch.compile compiles the layers. `auto`: if the run is long enough to gain from it and a C++ compiler
    is available."""
    eval_every: Derived[Count] = DERIVED
    """Number of steps between evaluations on the held-out text. null: a tenth of the run."""
    eval_tokens: Length = 65536
    """Number of held-out tokens per evaluation, the same ones each time."""
    eval_seq_len: Derived[Length] = DERIVED
    """Number of tokens per evaluation window. null: as in training."""
    checkpoint_every: Derived[Count] = DERIVED
    """Number of steps between checkpoints. null: at every evaluation."""
    keep: Keep = Keep()
    """Checkpoints that are kept."""
    recompute: bool = False
    """Whether only the input of each layer is kept for the backward pass, and the rest is computed again (Chen 2016).
    It needs less memory and a third more time."""
    probe_every: Count | None = None
    """Number of steps between probes of gradients, activations and attention, which are written to metrics.jsonl. null:
    never."""
    log: Annotated[tuple[LogTo, ...], Field(strict=False), AfterValidator(_each_once)] = ()
    """Services that get a copy of the metrics in metrics.jsonl. Each needs the extra of its name, as in `pip install
    'archlab[wandb]'`."""

    @property
    def steps(self) -> int:
        """Number of optimizer updates in the whole run."""
        return self.tokens // self.batch_tokens

    @property
    def trained(self) -> int:
        """Number of tokens trained on, in whole batches."""
        return self.steps * self.batch_tokens

    @property
    def rows(self) -> int:
        """Number of training windows per step."""
        return self.batch_tokens // self.seq_len


class MixtureSource(Settings):
    """One source of a mixture of texts."""

    path: str
    """Folder made by `archlab data`. All sources need the same --tokenizer."""
    weight: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Weight of this source: its share of the training windows is its weight divided by the sum of all weights."""


def _no_mixture(value: Any) -> Any:
    return {} if value is None else value


_Sources = dict[str, MixtureSource]
_Mixture = Annotated[_Sources, BeforeValidator(_no_mixture, json_schema_input_type=_Sources | None)]
"""Sources by name. null removes the mixture of a base."""


class DataConfig(Settings):
    """Data that the model is trained on."""

    path: str = "python-stdlib"
    """Text to train on: python-stdlib (the source code of the running Python's standard library), a folder made by
    `archlab data`, or text to prepare."""
    mixture: _Mixture = Field(default_factory=dict)
    """Sources used together instead of `path`, by name. Each fills its share of the training windows. null: none."""
    held_out: Probability = 0.05
    """Fraction of the text in one fold. Whole files are assigned to folds by the hash of their name. It applies only to
    text that is prepared here."""
    fold: Natural = 0
    """Index of the fold kept for evaluation. The other folds are trained on."""
    task: TaskOrText = NoTask()
    """Synthetic task whose windows replace text. It uses the whole vocabulary; path and held_out are not used."""

    @property
    def named(self) -> str:
        """Name of the data in messages."""
        return "data.mixture" if self.mixture else self.path


class Config(Settings):
    """Everything that determines a run."""

    plugins: PlugIns = ()
    """Your own modules, or files that end in .py, which register your own kinds."""
    model: ModelConfig
    """Architecture of the model."""
    train: TrainConfig = TrainConfig()
    """Optimizer, schedule and budget of the training."""
    data: DataConfig = DataConfig()
    """Text or task, and its tokens."""
    parallel: ParallelConfig = ParallelConfig()
    """Division of the training among the processes that torchrun starts."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a recipe that imports the plug-ins before it unpickles the values, because the values are of their
        classes."""
        return _unpickled, (type(self), self.plugins, pickle.dumps(self.__getstate__()))


def _unpickled(schema: type[Config], plugins: tuple[str, ...], state: bytes) -> Config:
    """Return the config. The process that sent it has checked its plug-ins."""
    accept(*plugins)
    import_plugins(plugins)
    config = schema.__new__(schema)
    config.__setstate__(pickle.loads(state))
    return config
