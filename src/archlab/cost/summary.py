"""Everything that can be counted about a config without building it."""

from archlab.config.base import Base
from archlab.config.model_schema import Learned
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.cost.flops import Flops, forward_flops, training_flops
from archlab.cost.memory import BYTES, Format, TrainingMemory, kv_bytes_per_token, kv_cache_bytes, training_memory
from archlab.cost.params import Parameters, parameters
from archlab.errors import UserError


class Cost(Base):
    """Parameters, FLOPs and bytes of one config at one context length and batch."""

    context: int
    """Tokens per sequence, for FLOPs and for the cache."""
    batch: int
    """Sequences whose cache is held."""
    dtype: Format
    """Of the cache and of the weights as served."""
    parameters: Parameters
    forward_flops: Flops
    """Per token, by part."""
    training_flops_per_token: float
    """Forward and backward."""
    training_flops: float
    """Of all whole batches in `train.tokens`."""
    kv_bytes_per_token: int
    """All layers, before a window bounds it."""
    kv_cache_bytes: int
    """For the whole batch at that context, bounded by windows."""
    weight_bytes: int
    """As served."""
    training_memory: TrainingMemory


def cost(config: Config, batch: int = 1, context: int | None = None, dtype: Format = "bfloat16") -> Cost:
    """Counted from resolved layers; without `context`, at the training window (`train.seq_len`)."""
    model, train = config.model, resolve_train(config)
    context = context or train.seq_len
    if isinstance(model.position, Learned) and context > model.max_seq_len:
        raise UserError(f"context {context} is beyond max_seq_len = {model.max_seq_len}, where learned positions end")
    counts, forward = parameters(model), forward_flops(model, context)
    per_token = training_flops(model, context)
    return Cost(
        context=context,
        batch=batch,
        dtype=dtype,
        parameters=counts,
        forward_flops=forward,
        training_flops_per_token=per_token,
        training_flops=per_token * train.trained,
        kv_bytes_per_token=kv_bytes_per_token(model, BYTES[dtype]),
        kv_cache_bytes=kv_cache_bytes(model, context, batch, BYTES[dtype]),
        weight_bytes=counts.total * BYTES[dtype],
        training_memory=training_memory(counts.total),
    )
