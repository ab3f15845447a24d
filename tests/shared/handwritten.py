"""A model as a student would write it, in plain torch, with a switch for each mistake that a student could make."""

import math

import torch
import torch.nn.functional as F
from torch import nn

INF = float("-inf")


class RMSNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5, bug=""):
        super().__init__()
        self.weight, self.eps, self.bug = nn.Parameter(torch.ones(d_model)), eps, bug.removeprefix("rmsnorm-")

    def forward(self, x):
        eps = {"no-eps": 0.0, "eps-size": 1e-6, "eps-outside": 0.0}.get(self.bug, self.eps)
        if self.bug == "mean":
            x = x - x.mean(-1, keepdim=True)
        axis = -2 if self.bug == "axis" else -1
        size = (x**2).sum(axis, keepdim=True) if self.bug == "sum" else (x**2).mean(axis, keepdim=True)
        divisor = size + eps if self.bug == "no-root" else torch.sqrt(size + eps)
        divisor = divisor + self.eps if self.bug == "eps-outside" else divisor
        divisor = x.abs().mean(-1, keepdim=True) + eps if self.bug == "absolute" else divisor
        weight = {"no-weight": torch.ones_like(self.weight), "offset": 1 + self.weight}.get(self.bug, self.weight)
        return x / divisor * weight


class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5, bug=""):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))
        self.eps, self.bug = eps, bug.removeprefix("layernorm-")

    def forward(self, x):
        eps = {"no-eps": 0.0, "eps-size": 1e-6, "eps-outside": 0.0}.get(self.bug, self.eps)
        x = x if self.bug == "no-mean" else x - x.mean(-1, keepdim=True)
        axis = -2 if self.bug == "axis" else -1
        size = (x**2).sum(axis, keepdim=True) if self.bug == "sum" else (x**2).mean(axis, keepdim=True)
        size = size * x.shape[-1] / (x.shape[-1] - 1) if self.bug == "unbiased" else size
        divisor = size + eps if self.bug == "no-root" else torch.sqrt(size + eps)
        divisor = divisor + self.eps if self.bug == "eps-outside" else divisor
        weight = {"no-weight": torch.ones_like(self.gamma), "offset": 1 + self.gamma}.get(self.bug, self.gamma)
        return x / divisor * weight + (0 if self.bug == "no-bias" else self.beta)


class RoPE(nn.Module):
    """Rotation of neighboring dimensions, [..., T, d_k], by complex numbers or, with mistakes, in other ways."""

    def __init__(self, theta, d_k, max_seq_len, bug=""):
        super().__init__()
        theta = 5e5 if bug == "rope-theta" else theta
        exponent = torch.arange(0, d_k, 2, dtype=torch.float64) / d_k / (2 if bug == "rope-exponent" else 1)
        exponent = -exponent if bug == "rope-exponent-sign" else exponent
        exponent = exponent + 2 / d_k if bug == "rope-exponent-shift" else exponent
        angles = torch.arange(max_seq_len + 1, dtype=torch.float64)[:, None] * theta**-exponent
        self.bug = bug
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x, token_positions=None):
        positions = torch.arange(x.shape[-2]) if token_positions is None else token_positions
        positions = positions + 1 if self.bug == "rope-first-position" else positions
        cos, sin = self.cos[positions], self.sin[positions]
        sin = -sin if self.bug == "rope-direction" else sin
        cos, sin = (sin, cos) if self.bug == "rope-cos-sin" else (cos, sin)
        if self.bug == "rope-missing":
            return x
        if self.bug == "rope-pairing":
            a, b = x.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        if self.bug == "rope-layouts":
            a, b = x.chunk(2, -1)
            return x * cos.repeat_interleave(2, -1) + torch.cat((-b, a), -1) * sin.repeat_interleave(2, -1)
        a, b = x[..., 0::2], x[..., 1::2]
        first = a * cos + b * sin if self.bug == "rope-sign" else a * cos - b * sin
        if self.bug == "rope-output-order":
            return torch.cat((first, b * cos + a * sin), -1)
        return torch.stack((first, b * cos + a * sin), -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, d_model, num_heads, num_kv_heads, max_seq_len, theta, bug="", empty=None):
        super().__init__()
        self.H, self.K, self.C, self.bug = num_heads, num_kv_heads, d_model // num_heads, bug
        self.empty = empty  # weights of a query that sees no key
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, self.K * self.C, bias=False)
        self.v_proj = nn.Linear(d_model, self.K * self.C, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.theta, self.rope = theta, RoPE(theta, self.C, max_seq_len, bug)

    def split(self, x, heads):
        B, T, _ = x.shape
        if self.bug == "heads-split-without-transpose":
            return x.reshape(B, heads, T, self.C)
        if self.bug == "heads-last":
            return x.reshape(B, T, self.C, heads).permute(0, 3, 1, 2)
        return x.reshape(B, T, heads, self.C).transpose(1, 2)

    def forward(self, x, token_positions=None):
        B, T, D = x.shape
        k_proj, v_proj = self.k_proj, self.v_proj
        if self.bug == "keys-and-values-swapped":
            k_proj, v_proj = v_proj, k_proj
        q, k, v = self.split(self.q_proj(x), self.H), self.split(k_proj(x), self.K), self.split(v_proj(x), self.K)
        if self.bug == "rope-before-split":
            q, k = (
                self.split(RoPE(self.theta, heads * self.C, T)(project(x)), heads)
                for project, heads in ((self.q_proj, self.H), (k_proj, self.K))
            )
        else:
            q = self.rope(q, token_positions)
            k = k if self.bug == "rope-keys" else self.rope(k, token_positions)
        v = self.rope(v, token_positions) if self.bug == "rope-values" else v
        group = self.H // self.K
        if self.bug == "kv-heads-tiled":
            k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
        else:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if self.bug == "queries-and-keys-swapped":
            q, k = k, q
        scale = {
            "no-scale": 1,
            "scale-without-root": 1 / self.C,
            "scale-of-all-heads": D**-0.5,
            "scale-multiplied": self.C**0.5,
        }.get(self.bug, self.C**-0.5)
        scores = torch.einsum("bhtc,bhsc->bhts", q, k) * scale
        hidden = torch.triu(
            torch.ones(T, T, dtype=torch.bool), {"mask-hides-own": 0, "mask-shows-next": 2}.get(self.bug, 1)
        )
        hidden = ~hidden if self.bug == "mask-inverted" else hidden
        hidden = hidden.T if self.bug == "mask-transposed" else hidden
        hidden = torch.zeros_like(hidden) if self.bug == "no-mask" else hidden
        fill = {"mask-zero": 0.0, "mask-hides-own": -1e9 if self.empty is None else INF}.get(self.bug, INF)
        if self.bug == "mask-after-softmax":
            weights = scores.softmax(-1).masked_fill(hidden, 0)
        else:
            weights = scores.masked_fill(hidden, fill).softmax(-2 if self.bug == "softmax-axis" else -1)
        weights = weights if self.empty is None else weights.nan_to_num(self.empty)
        mixed = weights @ v
        mixed = mixed if self.bug == "heads-merged-without-transpose" else mixed.transpose(1, 2)
        mixed = mixed.reshape(B, T, D)
        if self.bug == "attention-adds-input":
            return x + self.o_proj(mixed)
        return mixed if self.bug == "no-output-projection" else self.o_proj(mixed)


class SwiGLU(nn.Module):
    def __init__(self, d_model, d_ff, bug=""):
        super().__init__()
        self.w1 = nn.Linear(d_model, d_ff, bias=False)
        self.w2 = nn.Linear(d_ff, d_model, bias=False)
        self.w3 = nn.Linear(d_model, d_ff, bias=False)
        self.bug = bug

    def forward(self, x):
        act = {
            "activation-relu": F.relu,
            "activation-gelu": F.gelu,
            "activation-gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
            "activation-sigmoid": torch.sigmoid,
            "activation-identity": lambda x: x,
            "activation-quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        }.get(self.bug, lambda x: x * torch.sigmoid(x))
        gate, up = self.w1(x), self.w3(x)
        gate, up = (up, gate) if self.bug == "gate-and-up-swapped" else (gate, up)
        if self.bug == "no-up-projection":
            return self.w2(act(gate))
        if self.bug == "mlp-adds-input":
            return x + self.w2(act(gate) * up)
        if self.bug == "activation-of-both":
            return self.w2(act(gate) * act(up))
        if self.bug == "activation-of-product":
            return self.w2(act(gate * up))
        return self.w2(act(gate) + up if self.bug == "gate-added" else act(gate) * up)


class Block(nn.Module):
    def __init__(self, d_model, num_heads, num_kv_heads, d_ff, max_seq_len, theta, bug=""):
        super().__init__()
        self.ln1, self.ln2 = RMSNorm(d_model, bug=bug), RMSNorm(d_model, bug=bug)
        self.attn = Attention(d_model, num_heads, num_kv_heads, max_seq_len, theta, bug)
        self.ffn = SwiGLU(d_model, d_ff, bug)
        self.bug = bug

    def forward(self, x):
        f, g, a, b = self.attn, self.ffn, self.ln1, self.ln2
        match self.bug:
            case "post-norm":
                x = a(x + f(x))
                return b(x + g(x))
            case "output-norm":
                x = x + a(f(x))
                return x + b(g(x))
            case "residual-after-norm":
                x = a(x) + f(a(x))
                return b(x) + g(b(x))
            case "no-norms":
                x = x + f(x)
                return x + g(x)
            case "no-residual":
                x = f(a(x))
                return x + g(b(x))
            case "residual-twice":
                x = x + x + f(a(x))
                return x + x + g(b(x))
            case "residual-of-layer-input":
                return x + g(b(x + f(a(x))))
            case "parallel":
                return x + f(a(x)) + g(b(x))
            case "mlp-first":
                x = x + g(b(x))
                return x + f(a(x))
            case "norms-swapped":
                a, b = b, a
            case "one-norm":
                b = a
            case "branch-without-norm":
                b = nn.Identity()
        x = x + f(a(x))
        return x + g(b(x))


class TransformerLM(nn.Module):
    def __init__(
        self, vocab_size, context_length, d_model, num_layers, num_heads, num_kv_heads, d_ff, rope_theta, bug=""
    ):
        super().__init__()
        self.token_embeddings = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(
            Block(d_model, num_heads, num_kv_heads, d_ff, context_length, rope_theta, bug) for _ in range(num_layers)
        )
        self.ln_final = RMSNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        if bug == "tied":
            self.lm_head.weight = self.token_embeddings.weight
        self.bug = bug

    def forward(self, in_indices):
        x = self.token_embeddings(in_indices)
        x = x * math.sqrt(x.shape[-1]) if self.bug == "embedding-scale" else x
        for layer in self.layers[1:] if self.bug == "layer-skipped" else self.layers:
            x = layer(x)
        logits = self.lm_head(x if self.bug == "no-final-norm" else self.ln_final(x))
        if self.bug == "softmax-in-model":
            return logits.softmax(-1)
        return logits.log_softmax(-1) if self.bug == "log-softmax-in-model" else logits
