"""Rules between the fields of a whole model (MODEL_RULES) and of a whole run (CONFIG_RULES). `layer_rules.py` contains
the rules of a layer."""

from pydantic import ValidationError

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Absent
from archlab.config.components.position import ON_ATTENTION, Position
from archlab.config.core.base import kind_of
from archlab.config.core.plugins import plugin_of
from archlab.config.core.registry import is_users, kinds, users_kinds
from archlab.config.layers import encoder_of
from archlab.config.model_schema import ModelConfig
from archlab.config.objective import Masked, Mixture, Objective, SpanCorruption
from archlab.config.optimizer import Constant, Schedule
from archlab.config.problems import choose
from archlab.config.rules.lora_rules import LORA_RULES
from archlab.config.rules.mup_rules import MUP_CONFIG_RULES, MUP_MODEL_RULES
from archlab.config.rules.role_rules import ROLE_RULES
from archlab.config.rules.rule import Rule, needs_a_norm
from archlab.config.schema import Config, DataConfig, TrainConfig
from archlab.config.sources import users_kinds_in
from archlab.config.tasks import Task
from archlab.config.tasks.transduction import Transduction
from archlab.config.training import resolve_train
from archlab.errors import UserError


def _pattern_names_exist(m: ModelConfig) -> str | None:
    if m.layers is None or set(m.layers.pattern) <= set(m.layers.kinds):
        return None
    missing = sorted(set(m.layers.pattern) - set(m.layers.kinds))
    return f"unknown layer kind {', '.join(missing)}{choose(missing[0], list(m.layers.kinds))}"


def _layer_kinds_are_used(m: ModelConfig) -> str | None:
    unused = sorted(set(m.layers.kinds) - set(m.layers.pattern[: m.n_layers])) if m.layers else []
    if not unused:
        return None
    return f"{', '.join(unused)} is never used in {m.n_layers} layers; use it in the pattern or leave it out"


def _position_has_attention(m: ModelConfig) -> str | None:
    if m.layers is not None or isinstance(m.attention, AnyAttention) or m.position.acts_on not in ON_ATTENTION:
        return None
    has = "the model has no attention" if isinstance(m.attention, Absent) else f"{m.attention.kind} uses no positions"
    problem = f"{m.position.kind} acts on queries and keys, but {has}"
    allowed = (kind for kind, position in kinds(Position).items() if position.acts_on not in ON_ATTENTION)
    return f"{problem}; allowed: {', '.join(allowed)}"


def _tied_head_has_no_values(m: ModelConfig) -> str | None:
    if m.init.head is None or not m.head.tied or m.embedding.width:
        return None
    return f"{m.init.head} applies to an untied head, but a tied head is initialized with the embedding; leave it out"


def _embedding_keeps_its_scale(m: ModelConfig) -> str | None:
    if m.embedding.scale == 1.0 or m.embedding.norm is not True or m.norm.kind != "scalenorm":
        return None
    return (
        f"{m.embedding.scale} has no effect, because the scalenorm after the embedding cancels any factor; allowed: 1"
    )


def _transform_has_a_norm(m: ModelConfig) -> str | None:
    has_norm = m.head.transform is not None and m.head.transform.norm
    return (
        "true needs a norm, but model.norm.kind is none; allowed: false" if has_norm and m.norm.kind == "none" else None
    )


def _sum_has_a_width(m: ModelConfig) -> str | None:
    if m.embedding.widened == "tokens" or m.embedding.width:
        return None
    return "'sum' needs an embedding with a width of its own, but embedding.width is null; allowed: tokens"


def _sum_has_two_terms(m: ModelConfig) -> str | None:
    if m.embedding.norm != "sum" or m.embedding.segments or m.position.acts_on == "embedding":
        return None
    return "'sum', but nothing is added to the token embedding; allowed: true, false"


def _there_is_a_scale_to_round(m: ModelConfig) -> str | None:
    is_ignored = m.embedding.round_scale and m.embedding.scale == 1.0
    return "has no effect, because embedding.scale is 1; allowed: false" if is_ignored else None


MODEL_RULES: tuple[Rule[ModelConfig], ...] = (
    Rule("embedding.norm", ("embedding.norm", "norm"), needs_a_norm("embedding.norm")),
    Rule("embedding.norm", ("embedding", "position"), _sum_has_two_terms),
    Rule("embedding.widened", ("embedding",), _sum_has_a_width),
    Rule("head.transform.norm", ("head", "norm"), _transform_has_a_norm),
    Rule("embedding.scale", ("embedding", "norm"), _embedding_keeps_its_scale),
    Rule("embedding.round_scale", ("embedding",), _there_is_a_scale_to_round),
    Rule("layers.pattern", ("layers",), _pattern_names_exist),
    Rule("layers", ("layers", "n_layers"), _layer_kinds_are_used),
    Rule("position.kind", ("position", "attention", "layers"), _position_has_attention),
    Rule("init.head", ("init", "head"), _tied_head_has_no_values),
    *MUP_MODEL_RULES,
)


def _learned_positions_suffice(c: Config) -> str | None:
    return learned_positions_end(c, resolve_train(c).seq_len)


def _learned_positions_suffice_for_evaluation(c: Config) -> str | None:
    return None if c.train.eval_seq_len is None else learned_positions_end(c, c.train.eval_seq_len)


def learned_positions_end(c: Config, length: int) -> str | None:
    """Return a message if windows of `length` tokens exceed a table of positions, of the encoder or of the decoder."""
    try:
        encoder = encoder_of(c.model)
    except (UserError, ValidationError):  # `encoder_problems` reports its overrides
        return None
    stacks = (c.model, encoder) if encoder else (c.model,)

    def read(n: int) -> int:
        tokens = c.train.objective.tokens_read(n, has_encoder=encoder is not None)
        learned = [n_read for n_read, own in zip(tokens, stacks, strict=False) if own.position.kind == "learned"]
        return max(learned, default=0)

    most, stack = c.model.max_seq_len, read(length)
    if stack <= most:
        return None
    made = "" if stack == length else f", of which objective {c.train.objective.kind} makes {stack},"
    allowed = next((n for n in range(min(length, most), 0, -1) if read(n) <= most), 1)
    problem = f"{length}{made} exceeds model.max_seq_len = {most}, the number of learned positions"
    return f"{problem}; allowed: up to {allowed}"


def _spans_are_apart(c: Config) -> str | None:
    return _spans_touch(c.train.objective, resolve_train(c))


def _spans_of_parts_are_apart(c: Config) -> str | None:
    if not isinstance(c.train.objective, Mixture):
        return None
    touching = ((name, _spans_touch(part.objective, resolve_train(c))) for name, part in c.train.objective.in_order)
    return next((f"{name}: mean_span {problem}" for name, problem in touching if problem), None)


def _spans_touch(objective: Objective, train: TrainConfig) -> str | None:
    if not isinstance(objective, SpanCorruption):
        return None
    for n_tokens in (train.seq_len, train.eval_seq_len):
        n_hidden, n_spans = objective.spans(n_tokens)
        if n_tokens < 2 or n_spans > n_tokens - n_hidden:
            visible = f"{n_tokens - n_hidden} visible tokens between {n_spans} spans of a window of {n_tokens} tokens"
            return f"{objective.mean_span} and rate {objective.rate} leave {visible}; allowed: at least one each"
    return None


def _batch_holds_sequences(c: Config) -> str | None:
    train = resolve_train(c)
    if train.batch_tokens % train.seq_len == 0:
        return None
    field = "train.seq_len" if c.train.seq_len else "model.max_seq_len"
    problem = f"{train.batch_tokens} is not a multiple of the sequence length {train.seq_len} ({field})"
    return f"{problem}; allowed: {train.seq_len}, {2 * train.seq_len}, {3 * train.seq_len}, ..."


def _micro_batch_divides(c: Config) -> str | None:
    micro, train = c.train.micro_batch_tokens, resolve_train(c)
    if micro is None or (train.batch_tokens % micro == 0 and micro % train.seq_len == 0):
        return None
    allowed = f"a divisor of batch_tokens = {train.batch_tokens}"
    return f"{micro} must be {allowed} and a multiple of the sequence length {train.seq_len}"


def _one_step_at_least(c: Config) -> str | None:
    train = resolve_train(c)
    if train.steps >= 1:
        return None
    batch = f"one batch of {train.batch_tokens} tokens (train.batch_tokens)"
    return f"{train.tokens} is less than {batch}; allowed: at least one batch"


def _warmup_ends(c: Config) -> str | None:
    train = resolve_train(c)
    if isinstance(train.warmup, float) or train.warmup <= train.steps or train.steps < 1:
        return None
    return f"{train.warmup} warm-up steps, but the run has only {train.steps} steps; allowed: up to {train.steps}"


def _decay_is_for_wsd(c: Config) -> str | None:
    schedules = kinds(Schedule)
    if not c.train.decay or schedules[c.train.schedule].decay:
        return None
    with_decay = ", ".join(name for name, schedule in schedules.items() if schedule.decay)
    return f"only schedule {with_decay} has a decay phase, but schedule is {c.train.schedule}; leave it out"


def _constant_ends_at_its_peak(c: Config) -> str | None:
    if c.train.final_lr in (None, 1.0) or not issubclass(kinds(Schedule)[c.train.schedule], Constant):
        return None
    return f"has no effect, because schedule {c.train.schedule} never changes the learning rate; leave it out"


def _plugins_name_what_is_used(c: Config) -> str | None:
    """Return a message if `plugins` does not name a file whose kinds the config uses, because another process could not
    import the file."""
    if not users_kinds():  # the walk through the config takes half the time of all rules
        return None
    for _, kind in users_kinds_in(c):
        if plugin_of(c.plugins, kind) is None:
            named = ", ".join(c.plugins) or "none"
            return f"{named}; missing: {kind.__module__}, which registers the {kind.section} {kind_of(kind)}"
    return None


def _mixture_is_all_the_text(c: Config) -> str | None:
    if not c.data.mixture or c.data.path == DataConfig().path:
        return None
    return f"{c.data.path}, but data.mixture is set as well; leave one of the two out, or set data.mixture: null"


def _mixture_is_of_text(c: Config) -> str | None:
    if not c.data.mixture or not isinstance(c.data.task, Task):
        return None
    return f"{', '.join(c.data.mixture)} and data.task = {c.data.task.kind}; allowed: one of the two"


def _pairs_are_of_text(c: Config) -> str | None:
    if c.data.pairs is None or not isinstance(c.data.task, Task):
        return None
    return f"{', '.join(c.data.pairs)} and data.task = {c.data.task.kind}; allowed: one of the two"


def _replacements_are_parts(c: Config) -> str | None:
    objective = c.train.objective
    if not isinstance(objective, Masked) or objective.mask + objective.random <= 1:
        return None
    return f"{objective.random} and mask = {objective.mask} are more than all predicted tokens; allowed: a sum up to 1"


def _task_has_its_own_answers(c: Config) -> str | None:
    objective, task = c.train.objective, c.data.task
    if not isinstance(task, Task):
        return None
    form = "pairs" if isinstance(task, Transduction) else "task"
    if form in objective.fits_data:
        return None
    allowed = ", ".join(name for name, kind in kinds(Objective).items() if form in kind.fits_data)
    if "pairs" in objective.fits_data:
        pairs = ", ".join(kinds(Transduction))
        problem = f"{objective.kind} needs pairs of a source and a target, but data.task = {task.kind} has none"
        return f"{problem}; allowed: {allowed}; or data.task.kind={pairs}"
    return f"{objective.kind} chooses tokens of a text, but data.task = {task.kind} has answers; allowed: {allowed}"


def _layers_are_of_trained_weights(c: Config) -> str | None:
    layers = c.train.start_layers
    if layers is None or layers == "similar" or len(layers) == c.model.n_layers:
        return None
    return f"{len(layers)} layers; allowed: {c.model.n_layers}, one for each layer of the model"


def _prefix_is_of_one_text(c: Config) -> str | None:
    if not c.train.document_mask or c.train.objective.visibility != "prefix":
        return None
    return f"true, but with objective {c.train.objective.kind} each window is one text with a prefix; allowed: false"


def _teacher_has_an_effect(c: Config) -> str | None:
    teacher = c.train.teacher
    if teacher is None or teacher.logits or teacher.hidden:
        return None
    return "0, and hidden is 0, so the teacher has no effect; allowed: one of them above 0, or train.teacher: null"


def _temperature_has_an_effect(c: Config) -> str | None:
    teacher = c.train.teacher
    if teacher is None or teacher.logits or teacher.temperature == 1:
        return None
    return f"{teacher.temperature:g} has no effect, because train.teacher.logits is 0; leave it out"


def _only_for_archlabs_optimizers(field: str) -> Rule[Config]:
    """Return a rule: with a user-defined optimizer, `train.<field>` must have its default, because only archlab's
    optimizers read it."""

    def broken(c: Config) -> str | None:
        optimizer = c.train.optimizer
        default = TrainConfig.model_fields[field].default
        if not is_users(type(optimizer)) or getattr(c.train, field) == default:
            return None
        return f"applies only to AdamW; the optimizer {kind_of(type(optimizer))} ignores it, so leave it out"

    return Rule(f"train.{field}", (f"train.{field}", "train.optimizer"), broken)


_SEQ_LEN = ("train.seq_len", "model.max_seq_len")

CONFIG_RULES: tuple[Rule[Config], ...] = (
    Rule("train.seq_len", (*_SEQ_LEN, "model.position", "train.objective"), _learned_positions_suffice),
    Rule(
        "train.eval_seq_len",
        ("train.eval_seq_len", "model.max_seq_len", "model.position", "train.objective"),
        _learned_positions_suffice_for_evaluation,
    ),
    Rule("train.batch_tokens", (*_SEQ_LEN, "train.batch_tokens"), _batch_holds_sequences),
    Rule(
        "train.micro_batch_tokens",
        (*_SEQ_LEN, "train.batch_tokens", "train.micro_batch_tokens"),
        _micro_batch_divides,
    ),
    Rule("train.tokens", (*_SEQ_LEN, "train.tokens", "train.batch_tokens"), _one_step_at_least),
    Rule("train.warmup", (*_SEQ_LEN, "train.tokens", "train.batch_tokens", "train.warmup"), _warmup_ends),
    Rule("train.decay", ("train.decay", "train.schedule"), _decay_is_for_wsd),
    Rule("train.final_lr", ("train.final_lr", "train.schedule"), _constant_ends_at_its_peak),
    Rule("train.objective.random", ("train.objective",), _replacements_are_parts),
    Rule("train.objective.mean_span", (*_SEQ_LEN, "train.objective", "train.eval_seq_len"), _spans_are_apart),
    Rule("train.objective.parts", (*_SEQ_LEN, "train.objective", "train.eval_seq_len"), _spans_of_parts_are_apart),
    Rule("train.objective.kind", ("train.objective", "data.task"), _task_has_its_own_answers),
    Rule("train.document_mask", ("train.document_mask", "train.objective"), _prefix_is_of_one_text),
    Rule("train.start_layers", ("train.start_layers", "model.n_layers"), _layers_are_of_trained_weights),
    Rule("train.teacher.logits", ("train.teacher",), _teacher_has_an_effect),
    Rule("train.teacher.temperature", ("train.teacher",), _temperature_has_an_effect),
    Rule("data.path", ("data.path", "data.mixture"), _mixture_is_all_the_text),
    Rule("data.mixture", ("data.mixture", "data.task"), _mixture_is_of_text),
    Rule("data.pairs", ("data.pairs", "data.task"), _pairs_are_of_text),
    _only_for_archlabs_optimizers("betas"),
    _only_for_archlabs_optimizers("eps"),
    *ROLE_RULES,
    *MUP_CONFIG_RULES,
    *LORA_RULES,
    Rule("plugins", ("plugins", "model", "train", "data.task"), _plugins_name_what_is_used),
)
