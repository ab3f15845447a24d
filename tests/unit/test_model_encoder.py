"""Decoders that read an encoder, against torch's own Transformer, and the rules of their configs."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from archlab.config.identity import config_hash, resolved
from archlab.config.io import build_config
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.infer.beams import beam_search
from archlab.infer.generate import generate
from archlab.model.decoder import Decoder
from archlab.model.inputs import Inputs
from archlab.model.state import Cache
from tiny import MODEL, config

D, FF = 32, 48


def torch_transformer(model: Decoder, *, norm_first: bool) -> nn.Transformer:
    """Return torch's Transformer with the weights of an archlab model."""
    theirs = nn.Transformer(
        D, 4, 3, 2, FF, dropout=0.0, activation="relu", batch_first=True, norm_first=norm_first, layer_norm_eps=1e-5
    ).double()
    if not norm_first:  # the last layer has already normalized the stream
        theirs.encoder.norm = theirs.decoder.norm = None

    def copy(into: nn.Module, of: nn.Module) -> None:
        into.load_state_dict(of.state_dict())

    def copy_attention(into: nn.MultiheadAttention, of: nn.Module) -> None:
        for name in ("weight", "bias"):
            packed = torch.cat([getattr(getattr(of, x), name) for x in "qkv"])
            getattr(into, f"in_proj_{name}").data.copy_(packed)
        copy(into.out_proj, of.out)

    place = "before" if norm_first else "stream"
    for stack, layers in ((theirs.encoder, model.encoder.layers), (theirs.decoder, model.layers)):
        for into, of in zip(stack.layers, layers, strict=True):
            copy_attention(into.self_attn, of.attention)
            norms = [of.attention_norms, of.mlp_norms]
            if stack is theirs.decoder:
                copy_attention(into.multihead_attn, of.cross)
                norms.insert(1, of.cross_norms)
            for number, norm in enumerate(norms, 1):
                copy(getattr(into, f"norm{number}"), getattr(norm, place))
            copy(into.linear1, of.mlp.up)
            copy(into.linear2, of.mlp.down)
    if norm_first:
        copy(theirs.encoder.norm, model.encoder.norm)
        copy(theirs.decoder.norm, model.norm)
    return theirs.eval()


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_it_is_torchs_transformer(placement):
    small = config(
        f"model.norm={{kind: layernorm, placement: {placement}}}",
        "model.attention={n_heads: 4, n_kv_heads: 4, qkv_bias: true, out_bias: true}",
        f"model.mlp={{kind: plain, activation: relu, d_ff: {FF}, bias: true}}",
        "model.position=none",
        "model.encoder.n_layers=3",
    ).model
    model = Decoder(small).double().eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    theirs = torch_transformer(model, norm_first=placement == "pre")
    source, tokens = torch.randint(300, (3, 9)), torch.randint(300, (3, 7))
    lengths = torch.tensor([9, 4, 1])
    is_padding = torch.arange(9)[None] >= lengths[:, None]
    causal = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    with torch.no_grad():
        expected = theirs(
            model.embedding(source),
            model.embedding(tokens),
            tgt_mask=causal,
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )
        assert_close(model.hidden(tokens, Inputs(source=source, source_lengths=lengths)), expected)
        check_packed_pairs(model, theirs, source, tokens)


def check_packed_pairs(model: Decoder, theirs: nn.Transformer, source: Tensor, tokens: Tensor) -> None:
    """Compare packed pairs of texts, with padding, with torch's Transformer and dense masks. Documents may have their
    sources in another order, and two documents may share one source."""
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 2], [4, 4, 4, 4, 9, 9, 4], [3, 3, 3, 3, 3, 3, 3]])
    numbers = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2, 5], [9, 9, 9, 9, 4, 4, 4, 9, 9], [3] * 9])
    lengths, source_lengths = torch.tensor([7, 6, 3]), torch.tensor([8, 7, 9])
    inputs = Inputs(
        documents=documents, lengths=lengths, source=source, source_documents=numbers, source_lengths=source_lengths
    )
    is_real, is_source = torch.arange(7) < lengths[:, None], torch.arange(9) < source_lengths[:, None]
    runs, source_runs = (x.diff(dim=1, prepend=x[:, :1]).ne(0).cumsum(1) for x in (documents, numbers))
    hidden = {
        "src_mask": (source_runs[:, :, None] != source_runs[:, None]) | ~is_source[:, None],
        "tgt_mask": (runs[:, :, None] != runs[:, None]) | torch.ones(7, 7).triu(1).bool(),
        "memory_mask": (documents[:, :, None] != numbers[:, None]) | ~is_source[:, None],
    }
    kept = {name: x & ~x.all(-1, keepdim=True) for name, x in hidden.items()}  # torch gives NaN for no keys
    dense = {name: x.double().masked_fill(x, -torch.inf).repeat_interleave(4, 0) for name, x in kept.items()}
    expected = theirs(model.embedding(source), model.embedding(tokens), **dense)
    found = model.hidden(tokens, inputs)
    assert found.isfinite().all()
    assert_close(found[is_real], expected[is_real])
    with pytest.raises(AssertionError):
        assert_close(model.hidden(tokens, Inputs(source=source))[is_real], expected[is_real])


@pytest.mark.parametrize(
    ("overrides", "field", "words"),
    [
        (["model.encoder.vocab_size=3"], "model.encoder.vocab_size", "cannot differ"),
        (["model.encoder.mlp.d_fff=3"], "model.encoder.mlp.d_fff", "did you mean d_ff"),
        (["model.encoder.attention.n_heads=5"], "model.encoder.attention", ""),
        (["model.encoder.attention.visibility=causal"], "model.encoder.attention", "two_sided"),
        (["model.encoder.cross.window=5"], "model.encoder.cross.window", "not a field of cross-attention"),
        (["model.encoder.cross.n_kv_heads=3"], "model.encoder.cross", ""),
        (["model.encoder.cross.n_heads=0"], "model.encoder.cross.n_heads", ""),
        (["model.encoder.dropout.embedding=0.1"], "model.encoder.dropout.embedding", "cannot differ"),
        (["model.block.parallel=shared"], "model.block.parallel", "stands between attention and the MLP"),
        (["model.attention.visibility=prefix"], "model.attention.visibility", "causal"),
        (["model.embedding.segments=2"], "model.embedding.segments", "0"),
        (["model.mup={base_width: 16}"], "model.mup", "null"),
        (["parallel.tensor=2"], "parallel.tensor", "1"),
        (["parallel.context=2"], "parallel.context", "1"),
        (["model.attention={kind: none}", "model.mixer={kind: rglru}"], "model.attention.kind", "multihead"),
    ],
)
def test_what_an_encoder_does_not_allow_is_refused_by_name(overrides, field, words):
    with pytest.raises(UserError) as error:
        config("model.encoder.n_layers=2", *overrides)
    message = str(error.value)
    assert field in message
    assert words in message


@pytest.mark.parametrize(
    "encoder",
    [
        "{n_layers: 2}",
        "{n_layers: 2, attention: {n_heads: 8, n_kv_heads: null, head_dim: null}}",
        "{n_layers: 1, cross: {n_heads: 2, n_kv_heads: null, head_dim: null}}",
    ],
)
def test_a_resolved_config_loads_as_the_same_model(encoder):
    first = config(f"model.encoder={encoder}")
    again = build_config(resolved(first), ())
    assert config_hash(again) == config_hash(first)
    shapes = [{name: p.shape for name, p in Decoder(c.model, seed=None).named_parameters()} for c in (first, again)]
    assert shapes[0] == shapes[1]


def test_the_decoders_parameters_begin_as_without_an_encoder():
    alone, both = Decoder(config().model), Decoder(config("model.encoder.n_layers=2").model)
    begun = dict(both.named_parameters())
    assert all(torch.equal(parameter, begun[name]) for name, parameter in alone.named_parameters())


SOURCE, TOKENS = torch.arange(10).reshape(2, 5), torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "source: missing"),
        ({"source": SOURCE[:1]}, "source: [1, 5]"),
        ({"source": SOURCE.float()}, "float32"),
        ({"source": SOURCE[:, :0]}, "source: [2, 0]"),
        ({"source": SOURCE, "source_lengths": torch.tensor([0, 5])}, "source_lengths: [0, 5]"),
        ({"source": SOURCE, "source_lengths": torch.tensor([5])}, "source_lengths: [1]"),
        ({"source": SOURCE, "documents": TOKENS}, "documents and source_documents: only one"),
        ({"source": SOURCE, "source_documents": SOURCE}, "documents and source_documents: only one"),
        (
            {"source": SOURCE, "source_documents": TOKENS},
            "source_documents: [2, 3] of torch.int64; allowed: the shape of source",
        ),
        ({"source": SOURCE, "source_documents": SOURCE, "documents": TOKENS}, "row 1 has document 0"),
        ({"source_lengths": torch.tensor([5, 5])}, "source_lengths: passed without source"),
        ({"source_documents": SOURCE}, "source_documents: passed without source"),
        ({"source": [[1], [2]]}, "source: list; allowed: a tensor of int64 or int32"),
        ({"source": SOURCE, "source_lengths": [3, 3]}, "source_lengths: list; allowed: a tensor"),
        ({"source": SOURCE, "lengths": (3, 3)}, "lengths: tuple; allowed: a tensor"),
        ({"source": SOURCE, "documents": TOKENS.float()}, "documents: [2, 3] of torch.float32; allowed: the shape of"),
        (
            {"source": SOURCE, "documents": TOKENS, "source_documents": SOURCE.double()},
            "source_documents: [2, 5] of torch.float64; allowed: the shape of source, [2, 5], of int64 or int32",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, words):
    model = Decoder(config("model.encoder.n_layers=1").model)
    with pytest.raises(UserError) as error:
        model(TOKENS, **inputs)
    assert words in str(error.value)


def test_tokens_that_are_not_a_tensor_are_refused():
    with pytest.raises(UserError, match="tokens: list; allowed: a tensor of int64 or int32"):
        Decoder(config().model)([[1, 2]])


@pytest.mark.parametrize("call", [generate, beam_search])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tokens": [[1, 2]]}, "tokens: list"),
        ({"source": [[1, 2]]}, "source: list"),
        ({"source_lengths": [3, 3]}, "source_lengths: list"),
    ],
)
def test_generation_refuses_lists_for_tensors(call, wrong, words):
    model = Decoder(config("model.encoder.n_layers=1").model)
    arguments = {"tokens": TOKENS, "max_new_tokens": 2, "source": SOURCE, **wrong}
    tokens = arguments.pop("tokens")
    with pytest.raises(UserError, match=f"{words}; allowed: a tensor of int64 or int32"):
        call(model, tokens, **arguments)


def test_a_source_is_refused_without_an_encoder():
    with pytest.raises(UserError, match="no encoder"):
        Decoder(config().model)(TOKENS, source=SOURCE)
    with pytest.raises(UserError, match="source_documents: the model has no encoder"):
        Decoder(config().model)(TOKENS, source_documents=SOURCE)
    with pytest.raises(UserError, match="no encoder"):
        Cache(config().model, 2, 8, source=5)


def test_learned_positions_limit_the_source():
    model = Decoder(config("model.encoder.n_layers=1", "model.position=learned").model)
    with pytest.raises(UserError, match="max_seq_len = 16"):
        model(TOKENS, source=torch.zeros(2, 17, dtype=torch.int64))


def test_a_cache_is_made_for_one_length_of_source():
    model = Decoder(config("model.encoder.n_layers=1").model)
    store = Cache(model.config, 2, 8, source=4)
    with pytest.raises(UserError, match="4"):
        model(TOKENS, source=SOURCE, cache=store)
    with pytest.raises(UserError, match="1 token or more"):
        Cache(model.config, 2, 8)
    packed = {"documents": TOKENS, "source_documents": torch.zeros_like(SOURCE)}
    for names in (["documents"], ["source_documents"], ["documents", "source_documents"]):
        with pytest.raises(UserError, match=f"{names[0]} and cache were both passed"):
            model(TOKENS, source=SOURCE, cache=Cache(model.config, 2, 8, source=5), **{n: packed[n] for n in names})


def test_generation_reads_the_source_once(monkeypatch):
    model = Decoder(config("model.encoder.n_layers=1").model).eval()
    calls, encode = [], model.encode
    monkeypatch.setattr(model, "encode", lambda *a, **k: calls.append(1) or encode(*a, **k))
    out = generate(model, TOKENS[:, :1], 6, source=SOURCE, source_lengths=torch.tensor([5, 2]))
    assert calls == [1]
    for step in range(1, 7):
        logits = model(out[:, :step], source=SOURCE, source_lengths=torch.tensor([5, 2]))
        assert torch.equal(logits[:, -1].argmax(-1), out[:, step])


def test_an_encoder_is_a_model_of_two_stacks():
    model = Decoder(ModelConfig.model_validate({**MODEL, "encoder": {"n_layers": 3}}))
    assert [len(stack.layers) for stack in model.stacks] == [3, 2]
    assert len(model.all_layers) == 5
