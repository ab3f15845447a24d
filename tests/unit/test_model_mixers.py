"""Recurrent mixers compared with their formulas, computed token by token in float64 NumPy."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from accelerator import Accelerator
from archlab.config.components import recurrent
from archlab.config.components.component import Mixer, Site
from archlab.config.components.gated_delta import GatedDelta as GatedDeltaConfig
from archlab.config.components.kimi_delta import KimiDelta as KimiDeltaConfig
from archlab.config.components.mamba import Mamba as MambaConfig
from archlab.config.components.mamba2 import Mamba2 as Mamba2Config
from archlab.config.components.norm import AnyRMSNorm, NoNorm, RMSNorm
from archlab.config.components.position import NoPosition
from archlab.config.components.rglru import RGLRU
from archlab.config.components.short_conv import ShortConv as ShortConvConfig
from archlab.config.components.work import Pass
from archlab.config.core.registry import kinds
from archlab.model import mamba, mamba2
from archlab.model.context import Context
from archlab.model.layer import make_component
from archlab.model.state import Length, State
from tests.reference.gated_delta import gated_delta as gated_delta_reference
from tests.reference.kimi_delta import kimi_delta as kimi_delta_reference
from tests.reference.mamba import mamba as mamba_reference
from tests.reference.mamba2 import mamba2 as mamba2_reference
from tests.reference.rglru import rglru as rglru_reference
from tests.reference.short_conv import short_conv as short_conv_reference

D = 12
SITE = Site(D, RMSNorm(), NoPosition())
CONFIGS = {
    "mamba": MambaConfig(inner_width=10, d_state=3, dt_rank=2),
    "mamba norms": MambaConfig(d_state=4, inner_norm=AnyRMSNorm(eps=0.01)),
    "mamba biases": MambaConfig(
        inner_width=8, d_state=4, dt_rank=3, taps=3, conv_bias=False, in_bias=True, out_bias=True
    ),
    "mamba2": Mamba2Config(
        n_heads=9, head_dim=4, d_state=5, n_groups=3, in_bias=True, out_bias=True, norm=recurrent.GatedRMSNorm(eps=0.01)
    ),
    "mamba2 after": Mamba2Config(
        n_heads=2, head_dim=3, d_state=2, taps=2, conv_bias=False, norm=recurrent.GatedRMSNorm(gate="after")
    ),
    "mamba2 bare": Mamba2Config(n_heads=2, head_dim=3, d_state=2, dt_min=0.5, dt_max=0.9, norm=NoNorm()),
    "gated_delta": GatedDeltaConfig(n_key_heads=2, n_value_heads=6, key_dim=4, value_dim=3, norm_eps=0.01),
    "gated_delta negative": GatedDeltaConfig(n_key_heads=3, key_dim=2, taps=3, negative_eigenvalues=True),
    "kimi_delta": KimiDeltaConfig(n_key_heads=3, key_dim=4, norm_eps=0.01),
    "kimi_delta in groups": KimiDeltaConfig(
        n_key_heads=2, n_value_heads=4, key_dim=5, value_dim=3, taps=3, low_rank=False, negative_eigenvalues=True
    ),
    "kimi_delta bounded": KimiDeltaConfig(n_key_heads=2, key_dim=4, decay_bound=0.3),
    "rglru": RGLRU(),
    "rglru in groups": RGLRU(lru_width=15, n_heads=5, taps=2),
    "short_conv": ShortConvConfig(taps=3, bias=True),
    "short_conv bare": ShortConvConfig(taps=5),
}
T = 29
"""Number of tokens; with chunks of 5 to 8 tokens the last one is shorter."""


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(recurrent, "CHUNK", 8)


def made(name, dtype=torch.float64):
    """Return the mixer with random parameters, so that every part has an effect and states decay slowly."""
    resolved = CONFIGS[name].resolve(D)
    mixer = make_component(resolved, SITE)  # a mixer reads only d_model of its layer
    generator = torch.Generator().manual_seed(len(name))
    for parameter in mixer.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)
    return mixer.to(dtype)


def state_of(name, batch=1, dtype=torch.float64):
    """Return an empty state with the shapes of the config."""
    device = torch.device("cpu")
    return State(CONFIGS[name].resolve(D).state(SITE, T), batch, dtype, device, Length(device))


def context(is_real=None, starts=None, tokens=T):
    """Return the context of a pass with padding or packed documents; a mixer reads nothing else."""
    positions = torch.arange(tokens)[None] if is_real is None else is_real.cumsum(-1) - 1
    if starts is not None:
        positions = torch.arange(starts.shape[1]) - starts
    return Context(positions, is_real, starts, None, None, None, None, None)


PLAIN = context()


def in_pieces(mixer, x, pieces, state, whole=PLAIN):
    """Return the output for a text that is read piece by piece."""
    bounds = itertools.pairwise([0, *itertools.accumulate(pieces)])
    return torch.cat([mixer(x[:, start:end], part(whole, start, end), state) for start, end in bounds], 1)


def part(whole, start, end):
    """Return the context of some tokens of a text."""
    is_real = None if whole.is_real_BT is None else whole.is_real_BT[:, start:end]
    return replace(whole, positions_BT=whole.positions_BT[:, start:end], is_real_BT=is_real)


def inputs(batch=1, tokens=T):
    return torch.randn(batch, tokens, D, dtype=torch.float64, generator=torch.Generator().manual_seed(tokens))


def mamba2_formula(params, x_TD, config):
    norm = config.norm
    how = {"gate": "alone", "norm_eps": 0} if norm.kind == "none" else {"gate": norm.gate, "norm_eps": norm.eps}
    fields = {name: getattr(config, name) for name in ("n_heads", "head_dim", "n_groups", "d_state", "dt_min")}
    return mamba2_reference(params, x_TD, **fields, **how, dt_max=config.dt_max or np.inf)


DELTA_FIELDS = ("n_key_heads", "n_value_heads", "key_dim", "value_dim", "negative_eigenvalues", "norm_eps")


def gated_delta_formula(params, x_TD, config):
    return gated_delta_reference(params, x_TD, **{name: getattr(config, name) for name in DELTA_FIELDS})


def kimi_delta_formula(params, x_TD, config):
    fields = (*DELTA_FIELDS, "decay_bound")
    return kimi_delta_reference(params, x_TD, **{name: getattr(config, name) for name in fields})


FORMULAS = {
    "mamba": lambda params, x_TD, config: mamba_reference(params, x_TD, getattr(config.inner_norm, "eps", None)),
    "mamba2": mamba2_formula,
    "gated_delta": gated_delta_formula,
    "kimi_delta": kimi_delta_formula,
    "rglru": lambda params, x_TD, _: rglru_reference(params, x_TD),
    "short_conv": lambda params, x_TD, _: short_conv_reference(params, x_TD),
}


def reference(name, mixer, x_TD):
    """Return the output of the formula for one text."""
    resolved = CONFIGS[name].resolve(D)
    params = {key: value.double().numpy() for key, value in mixer.state_dict().items()}
    return FORMULAS[resolved.kind](params, x_TD.numpy(), resolved)


def close(found, wanted, tolerance=1e-10):
    found = found.detach().numpy()
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


def test_every_kind_of_mixer_is_in_these_tests():
    every = kinds(Mixer).keys() - {"none"}
    assert {config.kind for config in CONFIGS.values()} == FORMULAS.keys() == every


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("chunk", [1, 5, 8, 64])
def test_chunks_give_what_the_formula_says(name, chunk, monkeypatch):
    monkeypatch.setattr(recurrent, "CHUNK", chunk)
    mixer, x = made(name), inputs(batch=2)
    found = mixer(x, PLAIN, None)
    for row in range(2):
        close(found[row], reference(name, mixer, x[row]))


def scanned(device, n_tokens, starts):
    """Return the outputs of Mamba 2's scan and the gradients of its inputs, and the number of operations."""
    shapes = {"x": (6, 4), "log_decay": (6,), "B": (3, 5), "C": (3, 5)}
    generator = torch.Generator().manual_seed(0)
    drawn = {
        k: torch.randn(2, n_tokens, *shape, generator=generator, dtype=torch.float64) for k, shape in shapes.items()
    }
    drawn["log_decay"] = -drawn["log_decay"].abs() / 9
    state = torch.randn(2, 6, 4, 5, generator=generator, dtype=torch.float64)
    there = [x.to(device).requires_grad_() for x in (*drawn.values(), state)]
    with Operations() as seen:
        y, S = mamba2.scan(*there, None if starts is None else starts.to(device))
        (y.square().sum() + S.square().sum()).backward()
    return [y.detach(), S.detach(), *(x.grad for x in there)], seen.count


class NoCumsum(TorchDispatchMode):
    """Refuse sums of floats along an axis, as torch does on a GPU if only deterministic algorithms are allowed."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten.cumsum and args[0].is_floating_point():
            raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CONFIGS)
def test_on_a_gpu_no_mixer_needs_an_algorithm_that_is_not_deterministic(name, monkeypatch):
    mixer, x = made(name, torch.float32), inputs(batch=2).float()
    wanted = mixer(x, PLAIN, None)
    wanted.square().sum().backward()
    gradients = {key: weight.grad.clone() for key, weight in mixer.named_parameters()}
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with Accelerator():
        there = made(name, torch.float32).to("cuda")
        tensors = {key: value for key, value in vars(PLAIN).items() if isinstance(value, torch.Tensor)}
        on_gpu = replace(PLAIN, **{key: value.to("cuda") for key, value in tensors.items()})
        with NoCumsum():
            found = there(x.to("cuda"), on_gpu, None)
            found.square().sum().backward()
    torch.testing.assert_close(found.detach().content, wanted.detach(), rtol=1e-4, atol=1e-5)
    for key, weight in there.named_parameters():
        torch.testing.assert_close(weight.grad.content, gradients[key], rtol=1e-3, atol=1e-4)


class Operations(TorchDispatchMode):
    """Count all operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("packed", [False, True])
def test_on_a_gpu_mamba2_needs_no_loop_over_chunks(packed):
    counts = []
    for n_tokens in (22, 83):
        starts = torch.tensor([0, 5, 9, n_tokens]).repeat_interleave(torch.tensor([5, 4, n_tokens - 9, 0]))
        starts = starts.expand(2, -1) if packed else None
        wanted, _ = scanned("cpu", n_tokens, starts)
        with Accelerator():
            found, count = scanned("cuda", n_tokens, starts)
        counts.append(count)
        for there, here in zip(found, wanted, strict=True):
            torch.testing.assert_close(there.content, here)
    assert counts[0] == counts[1], "3 and 11 chunks"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("n_tokens", [1, 9, 40, 300])
def test_on_a_gpu_mamba_processes_rows_of_tokens_side_by_side(n_tokens, packed, monkeypatch):
    """Each operation starts a kernel. 300 tokens are three chunks, the last of which is shorter."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, n_tokens, 6), (2, n_tokens, 6), (6, 3), (2, n_tokens, 3), (2, n_tokens, 3), (2, 3, 6)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    drawn[1] = 0.05 * drawn[1].abs()  # slow enough that states pass from row to row and from chunk to chunk
    is_first = (torch.arange(n_tokens) % 37 == 5).expand(2, -1) if packed else None

    def scanned(device):
        there = [x.clone().to(device).requires_grad_() for x in drawn]
        with Operations() as seen:
            y, S = mamba._Scan.apply(*there, None if is_first is None else is_first.to(device), False)
            y.backward(drawn[0].to(device))
        return [y.detach(), S.detach(), *(x.grad for x in there[:5])], seen.count

    wanted, _ = scanned("cpu")
    with Accelerator():
        found, count = scanned("cuda")
        monkeypatch.setattr(mamba, "_has_rows", lambda x: False)
        _, in_turn = scanned("cuda")
    for there, here in zip(found, wanted, strict=True):
        torch.testing.assert_close(there.content, here)
    assert count <= in_turn / (4 if n_tokens == 300 else 1)


@pytest.mark.parametrize("packed", [False, True])
def test_a_compiled_mamba_compiles_one_chunk_and_not_the_text(packed, monkeypatch):
    """A graph of the whole text would take minutes to compile: it has a few operations for each token."""
    monkeypatch.setattr(recurrent, "CHUNK", 4)
    compiled, sizes = [], []

    def counting(function):
        def whole(graph, _):
            compiled.append(function.__name__)
            return graph

        return torch.compile(function, backend=whole, fullgraph=True)

    def passed(n_tokens, backend=None):
        """Return the output and the gradients, and the number of nodes in the graphs of the mixer itself."""
        sizes.clear()
        starts = torch.tensor([[0] * 5 + [5] * (n_tokens - 5), [0] * n_tokens]) if packed else None
        mixer = made("mamba")
        if backend is not None:
            torch.compiler.reset()
            mixer.compile(backend=backend)
        y = mixer(inputs(batch=2, tokens=n_tokens), context(starts=starts, tokens=n_tokens), None)
        y.square().sum().backward()
        return [y.detach(), *(weight.grad for weight in mixer.parameters())], sum(sizes)

    def counted(graph, _):
        sizes.append(len(graph.graph.nodes))
        return graph

    monkeypatch.setattr(mamba, "compiled_once", counting)
    wanted, _ = passed(12)
    found, size = passed(12, counted)
    for there, here in zip(found, wanted, strict=True):
        torch.testing.assert_close(there, here)
    assert set(compiled) == {"_chunk", "_chunk_gradients"}
    assert passed(24, counted)[1] == size


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("pieces", [[1] * T, [13, 16], [9, 1, 1, 3, 14, 1]], ids=["tokens", "halves", "uneven"])
@pytest.mark.parametrize("carries_gradients", [False, True])
def test_a_text_in_pieces_is_the_text(name, pieces, carries_gradients):
    """Pieces of one token use recurrent steps, or chunks of one token if gradients are needed."""
    mixer, x, state = made(name), inputs(batch=2), state_of(name, batch=2)
    before = {key: tensor.data_ptr() for key, tensor in state.tensors.items()}
    with torch.set_grad_enabled(carries_gradients):
        found = in_pieces(mixer, x, pieces, state)
    for row in range(2):
        close(found[row], reference(name, mixer, x[row]))
    if carries_gradients:
        found.sum().backward()
    assert {key: tensor.data_ptr() for key, tensor in state.tensors.items()} == before


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_on_the_left_has_no_effect(name):
    """Padding has no effect even if projections have biases, which the convolution could carry into the text."""
    mixer, x, lengths = made(name), inputs(batch=3), [T, T - 1, 7]
    is_real = torch.arange(T) >= T - torch.tensor(lengths)[:, None]
    whole = mixer(x, context(is_real), None)
    with torch.no_grad():
        cut = in_pieces(mixer, x, [25, 1, 3], state_of(name, batch=3), context(is_real))
    for row, length in enumerate(lengths):
        wanted = reference(name, mixer, x[row, T - length :])
        close(whole[row, T - length :], wanted)
        close(cut[row, T - length :], wanted)


DOCUMENTS = ([29], [1, 28], [7, 2, 1, 11, 8], [8, 8, 13], [28, 1], [3, 10, 16])


@pytest.mark.parametrize("name", CONFIGS)
def test_documents_in_one_window_do_not_see_each_other(name):
    mixer, x = made(name), inputs(batch=len(DOCUMENTS))
    starts = np.stack([np.repeat(np.cumsum([0, *lengths[:-1]]), lengths) for lengths in DOCUMENTS])
    found = mixer(x, context(starts=torch.from_numpy(starts)), None)
    for row, lengths in enumerate(DOCUMENTS):
        wanted = [reference(name, mixer, document) for document in x[row].split(lengths)]
        close(found[row], np.concatenate(wanted))


LEARNT_DECAYS = ("A_log", "Lambda")


@pytest.mark.parametrize("name", [n for n in CONFIGS if {*LEARNT_DECAYS} & dict(made(n).named_parameters()).keys()])
@pytest.mark.parametrize("is_packed", [False, True])
def test_states_that_forget_at_once_or_never_give_finite_gradients(name, is_packed):
    mixer, x = made(name, torch.float32), inputs().float().requires_grad_()
    rates = next(p for key, p in mixer.named_parameters() if key in LEARNT_DECAYS)
    rates.data = torch.linspace(-30, 9, rates.numel()).view_as(rates)
    starts = torch.tensor([[0] * 11 + [11] * 18]) if is_packed else None
    y = mixer(10 * x, context(starts=starts), None)
    y.square().sum().backward()
    assert y.isfinite().all()
    for gradient in [x.grad, *(parameter.grad for parameter in mixer.parameters())]:
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", [n for n in CONFIGS if "delta" in n])
@pytest.mark.parametrize("chunk", [8, 64])
def test_decays_of_any_strength_in_one_chunk_do_not_overflow(name, chunk, monkeypatch):
    """Some heads forget within one token, others never, and documents start within chunks."""
    monkeypatch.setattr(recurrent, "CHUNK", chunk)
    mixer, x = made(name, torch.float32), inputs().float()
    mixer.A_log.data = torch.linspace(-30, 9, mixer.A_log.numel())
    starts = torch.tensor([[0] * 11 + [11] * 18])
    wanted = [reference(name, mixer, document) for document in x[0].double().split([11, 18])]
    close(mixer(x, context(starts=starts), None)[0], np.concatenate(wanted), 1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_those_of_differences(name):
    mixer = made(name)
    x = inputs(tokens=11).requires_grad_()
    starts = torch.tensor([[0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 10]])
    names, values = zip(*mixer.named_parameters(), strict=True)

    def with_parameters(x, *given):
        return torch.func.functional_call(
            mixer, dict(zip(names, given, strict=True)), (x, context(starts=starts), None)
        )

    assert torch.autograd.gradcheck(with_parameters, (x, *values), fast_mode=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_keeps_its_states_in_float32(name):
    mixer, x = made(name), inputs()
    wanted, state = reference(name, mixer, x[0]), state_of(name, dtype=torch.bfloat16)
    # all states except that of the convolution are sums over the text
    assert all(tensor.dtype is torch.float32 for key, tensor in state.tensors.items() if key != "conv")
    with torch.no_grad():
        low = mixer.to(torch.bfloat16)(x.bfloat16(), PLAIN, None)
        steps = in_pieces(mixer, x.bfloat16(), [1] * T, state)
    assert low.dtype == torch.bfloat16
    spread = np.std(wanted)
    assert np.abs(low[0].double().numpy() - wanted).max() < 0.15 * spread
    assert (low - steps).abs().max() < 0.1 * spread


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("tokens", [2, 7, T])
def test_flops_are_those_that_torch_counts(name, tokens):
    mixer, x = made(name), inputs(batch=3, tokens=tokens)
    with FlopCounterMode(display=False) as counter:
        mixer(x, context(tokens=tokens), None)
    priced = CONFIGS[name].resolve(D).flops(SITE, Pass(1, tokens, counting="computed"))
    assert counter.get_total_flops() == 3 * sum(priced.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_that_are_built_and_read(name):
    built, config = sum(p.numel() for p in made(name).parameters()), CONFIGS[name].resolve(D)
    assert sum(config.parameters(SITE).values()) == built
    assert sum(operation.weights for operation in config.work(SITE, Pass(1, 1))) == 2 * built


@pytest.mark.parametrize("kind", ["mamba2", "gated_delta", "kimi_delta"])
def test_decays_begin_as_published(kind):
    """A is 1 to 16 (0 to 16 for the gated delta rule) and dt is 0.001 to 0.1; their orders are unrelated."""
    heads = 200
    chosen = {
        "mamba2": Mamba2Config(n_heads=heads),
        "gated_delta": GatedDeltaConfig(n_key_heads=heads, key_dim=2),
        "kimi_delta": KimiDeltaConfig(n_key_heads=heads, key_dim=1),
    }[kind]
    mixer = make_component(chosen.resolve(D), SITE)
    A, dt = mixer.constants["A_log"].exp(), nn.functional.softplus(mixer.constants["dt_bias"])
    least = 0 if kind == "gated_delta" else 1
    assert least < A.min() < A.max() < 16
    assert abs(A.mean() - (least + 16) / 2) < 0.01
    assert 0.001 <= dt.min() < 0.0011
    assert 0.09 < dt.max() <= 0.1
    assert abs(dt.log().mean() - math.log(0.01)) < 0.05
    assert abs(torch.corrcoef(torch.stack((A, dt.log())))[0, 1]) < 0.1


def test_mamba_begins_as_published():
    """In every channel, A is 1 to d_state (S4D-real), and dt is 0.001 to 0.1."""
    constants = make_component(MambaConfig(inner_width=200, d_state=5).resolve(D), SITE).constants
    torch.testing.assert_close(constants["A_log"].exp(), torch.arange(1.0, 6, dtype=torch.float64).expand(200, 5))
    dt = nn.functional.softplus(constants["dt_bias"])
    assert 0.001 <= dt.min() < 0.0011
    assert 0.09 < dt.max() <= 0.1


def test_a_linear_recurrent_unit_begins_as_published():
    """With an open gate, it keeps 0.9 to 0.999 of its state."""
    kept = (-8 * nn.functional.softplus(make_component(RGLRU().resolve(500), SITE).constants["Lambda"])).exp()
    assert 0.9 < kept.min() < 0.901
    assert 0.998 < kept.max() < 0.999
