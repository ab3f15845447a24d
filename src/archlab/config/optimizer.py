"""Settings of weight updates: the optimizer and its learning-rate schedule."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archlab.config.core.base import Positive, Probability, Settings
from archlab.config.core.registry import KindName, Named, Registered, Section


class Optimizer(Registered):
    """Base class of optimizers."""

    section: ClassVar[Section] = "optimizer"
    default_kind: ClassVar[str | None] = "adamw"


class AdamW(Optimizer):
    """AdamW (Loshchilov 2019), with the settings train.betas, train.eps and train.weight_decay."""

    kind: Literal["adamw"] = "adamw"


class Muon(Optimizer):
    """Muon (Jordan 2024), which updates each matrix by its orthogonalized momentum.

    Matrices are the parameters with the roles input, narrow and output. Each expert's matrix counts separately. AdamW
    updates all other parameters with train.betas and train.eps: the embedding, other tables, the head, convolutions,
    norms and biases.
    """

    kind: Literal["muon"] = "muon"
    momentum: Probability = 0.95
    """Momentum: fraction of the running mean of gradients that each update retains."""
    nesterov: bool = True
    """Whether the new gradient is mixed into the running mean once more before the mean is orthogonalized (Nesterov
    momentum)."""
    steps: Annotated[int, Field(ge=1, le=20)] = 5
    """Number of Newton-Schulz steps towards the nearest matrix whose singular values are all 1. Five steps bring the
    singular values into the range 0.7 to 1.2."""
    scale: Literal["adamw", "jordan", "spectral"] = "adamw"
    """Factor on the orthogonal matrix [d_out, d_in]. `adamw`: 0.2 sqrt(max(d_out, d_in)). Updates are then as large
    as AdamW's, so that AdamW's learning rates and weight decay can be reused (Liu 2025, Moonlight). `jordan`:
    sqrt(max(1, d_out / d_in)), for learning rates of about 0.02 (Jordan 2024). `spectral`: sqrt(d_out / d_in)
    (Bernstein 2025)."""
    adam_lr: Positive | None = None
    """Peak learning rate of AdamW for all parameters that Muon does not update. It follows the schedule of train.lr.
    null: train.lr."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the matrix products of the Newton-Schulz steps. `auto`: bfloat16, as in Jordan's code, on a GPU that
    supports it; otherwise float32."""


class Schedule(Named):
    """Base class of the schedules, which set the learning rate after the warm-up. A config contains only the name of
    the kind: `schedule: cosine`."""

    section: ClassVar[Section] = "schedule"

    final_lr: ClassVar[float] = 0.1
    """Learning rate at the end of the run, as a fraction of the peak, unless train.final_lr sets it."""
    decay: ClassVar[float] = 0.0
    """Fraction of the steps after the warm-up in which the learning rate decays, unless train.decay sets it. 0: the
    schedule has no separate decay phase."""
    holds_peak: ClassVar[bool] = False
    """Whether the learning rate stays at its peak for part of the run. A longer run can then continue from a checkpoint
    of that phase."""


ScheduleName = Annotated[str, KindName(Schedule)]


class Cosine(Schedule):
    """Half a cosine wave from the peak to the final learning rate (Loshchilov 2017)."""

    kind: Literal["cosine"] = "cosine"


class Linear(Schedule):
    """Straight line from the peak to the final learning rate."""

    kind: Literal["linear"] = "linear"


class Constant(Schedule):
    """Peak learning rate until the end of the run."""

    kind: Literal["constant"] = "constant"
    final_lr: ClassVar[float] = 1.0
    holds_peak: ClassVar[bool] = True


class WSD(Schedule):
    """Warm-up, stable, decay: the learning rate stays at its peak, then falls along a straight line to its final
    value (Hu 2024)."""

    kind: Literal["wsd"] = "wsd"
    decay: ClassVar[float] = 0.2
    holds_peak: ClassVar[bool] = True


class LrMultipliers(Settings):
    """Factors on the learning rate by role of the parameter, for every optimizer. The weight decay per step changes by
    the same factor, because it is multiplied by the learning rate."""

    embedding: Positive = 1.0
    """Factor on the learning rate of lookup tables: token embeddings, position embeddings, tables of distances for
    the scores."""
    input: Positive = 1.0
    """Factor on the learning rate of projections that read the stream: q, k, v, up, gate and the input projections
    of mixers."""
    narrow: Positive = 1.0
    """Factor on the learning rate of projections to narrow vectors: routers of experts, latent vectors."""
    output: Positive = 1.0
    """Factor on the learning rate of projections that write to the stream: the attention output and the MLP down
    projection."""
    head: Positive = 1.0
    """Factor on the learning rate of an untied head and of the projection before it."""
    convolution: Positive = 1.0
    """Factor on the learning rate of the kernels of convolutions over tokens."""
    constant: Positive = 1.0
    """Factor on the learning rate of parameters that are initialized to fixed values: norms, biases, sinks, decay
    rates."""
