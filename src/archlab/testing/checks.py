"""Checks of hand-written code against archlab's reference. Each returns one line of the report.

Shapes: B batch, T tokens, S keys.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.testing.closeness import EXACT, distance
from archlab.testing.pair import Pair
from archlab.testing.result import Check

_OTHER_SEED = 3
"""Seed of inputs that differ from those of the comparison."""

_N_HIDDEN = 3
"""Number of hidden tokens at the start of a row in the check of padding."""

LONG = 160
"""Number of tokens of one longer sequence. A mask, a window or a table may be right only for short ones."""

_MOST_NAMES = 5
"""Largest number of gradients that the report names."""

_LARGER = 2.0
"""Error in bfloat16, as a multiple of archlab's, above which the report has a note."""


def all_checks(pair: Pair, make_cache: Callable[[], Any] | None) -> Iterator[Check]:
    """Yield the results of all checks. If the outputs differ, only checks that do not need equal outputs follow."""
    yield _outputs(pair)
    if pair.is_equal:
        yield _gradients(pair)
    yield _causality(pair)
    if pair.is_equal:
        yield _unless_it_fails("a longer sequence", partial(_longer, pair))
        yield _unless_it_fails("padding", partial(_padding, pair))
        yield _unless_it_fails("shifted positions", partial(_positions, pair))
        yield _unless_it_fails("cached = full", partial(_cache, pair, make_cache))
        yield _bfloat16(pair)


def _unless_it_fails(name: str, check: Callable[[str], Check]) -> Check:
    try:
        return check(name)
    except UserError as error:
        return Check(name, "differs", f"your code fails: {error}")


def _compared(name: str, found: Tensor, right: Tensor, allowed: float) -> Check:
    """Return the result of comparing a tensor of the code with archlab's."""
    if found.shape != right.shape:
        return Check(name, "differs", f"the shape is {list(found.shape)}; it should be {list(right.shape)}")
    apart = distance(found, right)
    if apart <= allowed:
        rounding = "" if apart <= EXACT else "; your code rounds to float32 inside"
        return Check(name, "equal", f"largest difference {apart:.1e} of the largest value{rounding}")
    return Check(name, "differs", _first_difference(found, right, allowed))


def _first_difference(found: Tensor, right: Tensor, allowed: float) -> str:
    """Return where two tensors [B, T, ...] first differ, in words. Rows of the batch are independent, so the first
    token counts, of any row."""
    size = right.nan_to_num().abs().max()
    differs = ~((found - right).abs() <= allowed * size) & ~(found.isnan() & right.isnan())
    index = min(differs.nonzero().tolist(), key=lambda index: (index[1:2], index))
    names = ("sequence", "token", "feature")
    place = ", ".join(f"{name} {i}" for name, i in zip(names, index, strict=False))
    values = f"yours {found[tuple(index)].item():.6g}, archlab's {right[tuple(index)].item():.6g}"
    share = differs.double().mean().item()
    return f"first at {place}: {values}; {share:.0%} of the values differ"


def _outputs(pair: Pair) -> Check:
    check = _compared("outputs", pair.output, pair.right, pair.allowed)
    if check.status == "differs" and (place := _first_layer(pair)):
        return check._replace(words=f"{check.words}; {place}")
    return check


def _first_layer(pair: Pair) -> str:
    """Return after which layer of a model the streams first differ, or an empty string if the code's layers cannot be
    found: a ModuleList with as many modules."""
    body, target = pair.reference.body, pair.candidate.target
    if not isinstance(body, Decoder) or not isinstance(target, nn.Module):
        return ""
    lists = [module for module in target.modules() if isinstance(module, nn.ModuleList)]
    layers = next((found for found in lists if len(found) == len(body.layers)), None)
    if layers is None:
        return ""
    theirs = _streams(layers, lambda: pair.run(pair.x))
    ours = _streams(body.layers, lambda: pair.reference(pair.x))
    if not theirs:
        return ""
    for i, (stream, right) in enumerate(zip(theirs, ours, strict=False)):
        if distance(stream, right) > pair.allowed:
            return f"the streams first differ {f'after layer {i - 1}' if i else 'before layer 0'}"
    if len(theirs) < len(ours):
        return f"your model calls {len(theirs) - 1} of its {len(ours) - 1} layers; their outputs are right"
    return "the streams are equal up to the last layer, so the difference is in the final norm or the head"


def _streams(layers: nn.ModuleList, run: Callable[[], Any]) -> list[Tensor]:
    """Return the input of the first layer, and the output of each layer."""
    streams = list[Tensor]()

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        streams.extend(inputs[:1] if not streams else ())
        streams.append(output[0] if isinstance(output, tuple) else output)

    hooks = [layer.register_forward_hook(after) for layer in layers]
    with torch.no_grad():
        run()
    for hook in hooks:
        hook.remove()
    return streams


def _gradients(pair: Pair) -> Check:
    """Compare the gradients of inputs and parameters of a random linear function of the output."""
    if pair.candidate.uses_numpy:
        return Check("gradients", "not checked", "NumPy computes no gradients")
    right = pair.right
    random = torch.Generator().manual_seed(2)
    direction = torch.randn(right.shape, generator=random, dtype=torch.float64, device="cpu").to(right.device)
    ours = _gradients_of(pair.reference, pair.x, direction, dict(pair.reference.weights))
    try:
        theirs = _gradients_of(pair.run, pair.x, direction, pair.candidate.leaves)
    except RuntimeError as error:
        return Check("gradients", "differs", f"cannot be computed: {error}")
    rights = {name: matched.value(ours) for name, matched in pair.matches.by_name.items()}
    rights |= {"the input": ours["the input"]} if "the input" in ours else {}
    apart = {name: distance(theirs[name], gradient) for name, gradient in rights.items()}
    if wrong := [name for name in apart if apart[name] > 10 * pair.allowed]:
        more = f" and {len(wrong) - _MOST_NAMES} more" if len(wrong) > _MOST_NAMES else ""
        words = f"those of {', '.join(wrong[:_MOST_NAMES])}{more}; {len(apart) - len(wrong)} others are equal"
        return Check("gradients", "differs", words)
    largest = max(apart.values(), default=0.0)
    return Check("gradients", "equal", f"of {len(apart)} tensors: largest difference {largest:.1e}")


def _gradients_of(
    run: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor, leaves: dict[str, Any]
) -> dict[str, Tensor]:
    if x.is_floating_point():
        x = x.clone().requires_grad_()
        leaves = {**leaves, "the input": x}
    gradients = torch.autograd.grad((run(x) * direction).sum(), list(leaves.values()), allow_unused=True)
    given = zip(leaves.items(), gradients, strict=True)
    return {name: torch.zeros_like(leaf) if gradient is None else gradient for (name, leaf), gradient in given}


def _causality(pair: Pair) -> Check:
    """Check that changed tokens leave the outputs of earlier tokens as they are."""
    if not pair.reference.is_causal:
        return Check("causality", "not checked", "tokens of this config see later tokens")
    first, changed = pair.n_tokens // 2, pair.x.clone()
    changed[:, first:] = pair.reference.inputs(seed=_OTHER_SEED)[:, first:]
    before = pair.run(changed)[:, :first]
    apart = distance(before, pair.output[:, :first])
    if apart <= EXACT:
        return Check("causality", "equal", "no output depends on later tokens")
    token = (before != pair.output[:, :first]).nonzero()[:, 1].min().item()
    return Check("causality", "differs", f"the output of token {token} changes if tokens from {first} on change")


def _longer(pair: Pair, name: str) -> Check:
    """Compare the outputs for one sequence that is longer than those of the other checks."""
    x = pair.reference.inputs(LONG, _OTHER_SEED)[:1]
    if x.shape[1] <= pair.n_tokens:
        return Check(name, "not checked", f"the config has at most {x.shape[1]} tokens")
    with torch.no_grad():
        found, right = pair.run(x), pair.reference(x)
    check = _compared(name, found, right, pair.allowed)
    return check._replace(words=f"{x.shape[1]} tokens: {check.words}")


def _padding(pair: Pair, name: str) -> Check:
    """Check that hidden tokens at the start of a row have no effect: its other tokens alone have the same outputs."""
    if pair.candidate.mask is None:
        return Check(name, "not checked", "your code takes no mask")
    if pair.reference.layer_config.position.acts_on == "embedding":
        return Check(name, "not checked", "positions are added to the embedding, so they count hidden tokens")
    seen_BTS = pair.seen(pair.n_tokens).clone()
    seen_BTS[:, :, :_N_HIDDEN] = False
    seen_BTS |= torch.eye(pair.n_tokens, dtype=torch.bool)
    found = pair.run(pair.x, seen_BTS=seen_BTS.expand(len(pair.x), -1, -1))[:, _N_HIDDEN:]
    return _compared(name, found, pair.reference(pair.x[:, _N_HIDDEN:]).detach(), 10 * pair.allowed)


def _positions(pair: Pair, name: str) -> Check:
    """Compare outputs at positions with gaps."""
    layer, body = pair.reference.layer_config, pair.reference.body
    positions_T = torch.arange(pair.n_tokens) + torch.arange(pair.n_tokens) // 3
    if pair.candidate.positions is None:
        return Check(name, "not checked", "your code takes no positions")
    if isinstance(body, Decoder) or layer.position.acts_on != "queries":
        return Check(name, "not checked", "only rotations are compared at other positions, in a part of a model")
    if getattr(layer.attention, "window", None) or positions_T[-1] >= pair.reference.config.max_seq_len:
        return Check(name, "not checked", "the config has a window or a short max_seq_len")
    found = pair.run(pair.x, positions_T)
    check = _compared(name, found, pair.reference(pair.x, positions_T).detach(), pair.allowed)
    if check.status == "differs" and torch.equal(found, pair.run(pair.x)):
        return Check(name, "differs", "your code ignores the positions that it is given")
    return check


def _cache(pair: Pair, make_cache: Callable[[], Any] | None, name: str) -> Check:
    """Check that reading half of the tokens, and then one after the other, gives the output of one pass."""
    argument = pair.candidate.cache
    if argument is None:
        return Check(name, "not checked", "your code takes no cache")
    cache, outputs, first = make_cache() if make_cache else None, list[Tensor](), 0
    for end in range(pair.n_tokens // 2, pair.n_tokens + 1):
        new, special = slice(first, end), {argument: cache}
        special |= {"use_cache": True} if "use_cache" in pair.candidate.arguments else {}
        special |= {"start_pos": first} if "start_pos" in pair.candidate.arguments else {}
        seen_BTS = pair.seen(end)[:, new]
        with torch.no_grad():
            returned = pair.candidate.call(pair.x[:, new], torch.arange(first, end), seen_BTS, **special)
        output, *more = returned if isinstance(returned, tuple) else (returned,)
        if make_cache is None and not more:
            return Check(name, "not checked", "your code returns no cache; pass make_cache if it changes its argument")
        cache = cache if make_cache else more[0]
        outputs.append(output)
        first = end
    return _compared(name, torch.cat(outputs, 1), pair.output, pair.allowed)


def _bfloat16(pair: Pair) -> Check:
    """Compare the errors of both in bfloat16, against archlab's output in float64."""
    name = "bfloat16 error"
    if pair.candidate.uses_numpy:
        return Check(name, "not checked", "NumPy has no bfloat16")
    right = pair.right
    x = pair.x.bfloat16() if pair.x.is_floating_point() else pair.x
    ours = _error(deepcopy(pair.reference).bfloat16()(x), right)
    target = pair.candidate.target
    try:
        if isinstance(target, nn.Module):
            pair.candidate.target = deepcopy(target).bfloat16()
        with torch.no_grad():
            theirs = _error(pair.run(x), right)
    except UserError as error:
        return Check(name, "note", f"your code fails in bfloat16: {error}")
    finally:
        pair.candidate.target = target
    words = f"yours {theirs:.2g}, archlab's {ours:.2g}"
    return Check(name, "note" if theirs > _LARGER * ours else "equal", words)


def _error(output: Tensor, right: Tensor) -> float:
    """Return the root mean square of the error, divided by that of the right output."""
    return ((output.double() - right).square().mean() / right.square().mean()).sqrt().item()
