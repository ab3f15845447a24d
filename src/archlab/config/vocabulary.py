"""Common terms of the field and names in other libraries, with the archlab fields to use instead.

They are used only for hints. A valid config never contains them.
"""

import re

from archlab.config.core.merge import fields_below
from archlab.config.core.registry import cache_of_kinds
from archlab.config.schema import Config

_YARN = "model.position.kind=rope model.position.scaling.kind={} model.position.scaling.factor=4"
_LATENT = "model.attention.kind=latent model.attention.kv_rank=512 model.attention.nope_dim=128"

WRITE = {
    # gated MLPs
    "swiglu": "model.mlp.kind=gated model.mlp.activation=silu",
    "geglu": "model.mlp.kind=gated model.mlp.activation=gelu",
    "reglu": "model.mlp.kind=gated model.mlp.activation=relu",
    "glu": "model.mlp.kind=gated model.mlp.activation=sigmoid",
    "bilinear liglu": "model.mlp.kind=gated model.mlp.activation=identity",
    "plain ffn feedforward": "model.mlp.kind=plain",
    "gated": "model.mlp.kind=gated",
    "squaredrelu relusquare": "model.mlp.activation=relu_squared",
    "gelupytorchtanh gelufast newgelu": "model.mlp.activation=gelu_tanh",
    # mixtures of experts
    "moe mixtureofexperts mixture experts numexperts numlocalexperts nexperts nroutedexperts moenumexperts": (
        "model.mlp.kind=moe model.mlp.experts=8"
    ),
    "topk numexpertspertok numexpertspertoken expertspertoken moek moetopk": "model.mlp.kind=moe model.mlp.active=2",
    "moeintermediatesize expertdim expertwidth": "model.mlp.kind=moe model.mlp.d_ff=512 (of one expert)",
    "sharedexpert sharedexperts nsharedexperts numsharedexperts sharedexpertintermediatesize": (
        "model.mlp.kind=moe model.mlp.shared.d_ff=512 (of all shared experts together)"
    ),
    "moelatentsize latentmoe latentexperts moelatentdim": "model.mlp.kind=moe model.mlp.latent.width=64",
    "normtopkprob moerenormalize": "model.mlp.kind=moe model.mlp.router.normalise=true",
    "routedscalingfactor": "model.mlp.kind=moe model.mlp.router.factor=2.5",
    "scoringfunc scoringfunction": "model.mlp.kind=moe model.mlp.router.score=sigmoid",
    "ngroup topkgroup expertgroups": (
        "model.mlp.kind=moe model.mlp.router.groups.n=4 model.mlp.router.groups.kept=2"
    ),
    "escorecorrectionbias auxlossfree lossfree": "model.mlp.kind=moe model.mlp.router.correction.rate=0.001",
    "auxloss routerauxloss routerauxlosscoef loadbalancing balanceloss": (
        "model.mlp.kind=moe model.mlp.balance.loss=0.01"
    ),
    "routerzloss routerzlosscoef": "model.mlp.kind=moe model.mlp.balance.router_z_loss=0.001",
    "swiglulimit": "model.mlp.clamp=7 model.mlp.up_offset=1",
    # attention
    "mha multihead": "model.attention.n_kv_heads=null (as many as n_heads)",
    "gqa groupedquery groupedqueryattention": "model.attention.n_kv_heads=2 (or another number that divides n_heads)",
    "mqa multiquery multiqueryattention": "model.attention.n_kv_heads=1",
    "swa sliding slidingwindow local localattention": "model.attention.window=4096 (or another number of keys)",
    "full global fullattention": "model.attention.window=null",
    "causal iscausal isdecoder": "model.attention.visibility=causal",
    "bidirectional twosided encoderonly usebidirectionalattention": "model.attention.visibility=two_sided",
    "prefixlm noncausal": "model.attention.visibility=prefix",
    "encoder encoderdecoder isencoderdecoder encoderlayers numencoderlayers": (
        "model.encoder.n_layers=4 (or another number of layers)"
    ),
    "crossattention addcrossattention encoderattention": "model.encoder.cross (overrides of model.attention)",
    # objectives
    "mlm maskedlm maskedlanguagemodeling mlmprobability": "train.objective.kind=masked",
    "spancorruption noisedensity": "train.objective.kind=span_corruption",
    "qknorm useqknorm qklayernorm": "model.attention.qk_norm.kind=rmsnorm",
    "attentionbias qkvbias addbiaslinear": "model.attention.qkv_bias=true model.attention.out_bias=true",
    "attnlogitsoftcapping logitsoftcap": "model.attention.softcap=50",
    "mla multiheadlatent multiheadlatentattention latentattention": f"{_LATENT} model.attention.rope_dim=64",
    "kvlorarank": "model.attention.kv_rank",
    "qlorarank": "model.attention.q_rank",
    "qknopeheaddim": "model.attention.nope_dim",
    "qkropeheaddim": "model.attention.rope_dim",
    "vheaddim valueheaddim": "model.attention.v_dim",
    "sink attentionsink attentionsinks saux": "model.attention.sinks=true",
    "outputgate attnoutputgate attentiongate gatedattention": "model.attention.gate.per=element",
    "attntemperaturetuning attentiontemperature": (
        "model.attention.temperature.beta=0.1 model.attention.temperature.length=8192"
    ),
    "attentionchunksize chunked chunkedattention": "model.attention.blocks.size=8192 model.attention.blocks.summary=0",
    # recurrent mixers
    "mamba1 s6 selectivessm selectivescan": "model.mixer.kind=mamba",
    "dtrank timesteprank mambadtrank": "model.mixer.kind=mamba model.mixer.dt_rank=48",
    "mamba2 ssm ssd statespace": "model.mixer.kind=mamba2",
    "gateddeltanet deltanet gdn deltarule linearattention": "model.mixer.kind=gated_delta",
    "kda kimideltaattention kimilinear": "model.mixer.kind=kimi_delta",
    "rglru griffin hawk recurrentgemma realgatedlru": "model.mixer.kind=rglru",
    "shortconvolution conv lfm liv": "model.mixer.kind=short_conv",
    "dconv convkernel convkernelsize kernelsize convlcache": "model.mixer.kind=mamba2 model.mixer.taps=4",
    "dstate statesize ssmstatesize": "model.mixer.kind=mamba2 model.mixer.d_state=128",
    # positions
    "nope noposition nopositions nopos nopositionalencoding": "model.position.kind=none",
    "rope rotary rotaryembedding roformer": "model.position.kind=rope",
    "alibi": "model.position.kind=alibi",
    "absolute learnedabsolute wpe": "model.position.kind=learned",
    "sincos sinusoid fixed": "model.position.kind=sinusoidal",
    "transformerxl txl xlnet relativesinusoid": "model.position.kind=transformer_xl",
    "relative relativebias t5bias": "model.position.kind=t5",
    "pos pe positional positionembedding positionembeddingtype posemb": "model.position.kind",
    "yarn": f"{_YARN.format('yarn')} model.position.scaling.original_max_seq_len=4096",
    "ntk dynamicntk ntkaware": f"{_YARN.format('dynamic')} model.position.scaling.original_max_seq_len=4096",
    "llama3 llama31": _YARN.format("llama3"),
    "positioninterpolation": _YARN.format("linear"),
    "ropetheta rotarybase ropebase rotaryembbase": "model.position.theta",
    "ropescaling ropeparameters": "model.position.scaling",
    "partialrotaryfactor rotarypct rotarydim": "model.position.fraction",
    # norms
    "prenorm preln prelayernorm": "model.norm.placement=pre",
    "postnorm postln postlayernorm": "model.norm.placement=post (on the stream, as in 2017; OLMo 2's is output)",
    "sandwich sandwichnorm peri periln doublenorm": "model.norm.placement=double",
    "reordered respost respostnorm outputnorm": "model.norm.placement=output",
    "nonorm": "model.norm.kind=none",
    "rmsnormeps layernormeps layernormepsilon normeps epsilon": "model.norm.eps",
    "parallelresidual useparallelresidual parallelblock": "model.block.parallel=separate",
    # sizes
    "hiddensize nembd dim embeddim embeddingdim modeldim width": "model.d_model",
    "numhiddenlayers nlayer numlayers depth": "model.n_layers",
    "numattentionheads nhead numheads heads": "model.attention.n_heads",
    "numkeyvalueheads nkvhead numkvheads kvheads": "model.attention.n_kv_heads",
    "intermediatesize ffndim ninner ffnhiddensize mlpdim hiddendim dimfeedforward": "model.mlp.d_ff",
    "mlpratio ffnmultiplier expansion": "model.mlp.d_ff (a width, not a ratio)",
    "vocab nvocab vocabulary paddedvocabsize": "model.vocab_size",
    "maxpositionembeddings npositions nctx blocksize contextlength context maxlength maxseqlength seqlength": (
        "model.max_seq_len"
    ),
    "hiddenact activationfunction actfn act hiddenactivation": "model.mlp.activation",
    # the ends
    "tiewordembeddings tieembeddings tieweights weighttying tying tied": "model.head.tied=true",
    "finallogitsoftcapping": "model.head.softcap=30",
    "logitscale logitsscaling": "model.head.scale",
    "embeddingmultiplier scaleembedding scaleemb": "model.embedding.scale=sqrt_d_model",
    "initializerrange initstd std": (
        "model.init.embedding=0.02 model.init.input=0.02 model.init.output=0.02 (and model.init.head=0.02 for an "
        "untied head)"
    ),
    "attentiondropout attnpdrop attndropout": "model.dropout.attention",
    "residpdrop hiddendropout residdropout residualdropout": "model.dropout.branch",
    "embdpdrop embeddropout": "model.dropout.embedding",
    "layertypes slidingwindowpattern": "model.layers (named kinds and their pattern)",
    # trained weights
    "finetune finetuning sft continuedpretraining warmstart": "train.start (a folder with weights, or a hub id)",
    "distillation knowledgedistillation distill kd": "train.teacher (the trained model to learn from)",
    "peft lowrankadaptation": "train.lora (with its fields rank, alpha, modules, dropout)",
    "lorarank lorar": "train.lora.rank",
    "loraalpha": "train.lora.alpha",
    "loradropout": "train.lora.dropout",
    "loratargetmodules targetmodules": "train.lora.modules",
    # training and data
    "learningrate maxlr": "train.lr",
    "minlr minlrratio": "train.final_lr (as a fraction of train.lr)",
    "batchsize globalbatchsize trainbatchsize": "train.batch_tokens (in tokens: sequences times train.seq_len)",
    "microbatchsize gradientaccumulationsteps gradaccum": "train.micro_batch_tokens (in tokens)",
    "maxsteps steps iters maxiters numsteps trainsteps": "train.tokens (steps times train.batch_tokens)",
    "epochs numtrainepochs": "train.tokens (tokens of one epoch times the number of epochs)",
    "warmupsteps warmupratio warmupiters": "train.warmup",
    "scheduler lrscheduler lrschedule lrschedulertype": "train.schedule",
    "warmupstabledecay trapezoidal trapezoid": "train.schedule=wsd",
    "maxgradnorm clip gradclipnorm gradientclipping": "train.grad_clip",
    "adambeta1 adambeta2 beta1 beta2": "train.betas=[0.9,0.95]",
    "adamepsilon adameps": "train.eps",
    "adam": "train.optimizer.kind=adamw",
    "newtonschulz muonlr": "train.optimizer.kind=muon (with its fields momentum, steps, scale, adam_lr)",
    "embeddinglr lrscale layerwiselr": "train.lr_multipliers.embedding=2 (or another role)",
    "mutransfer maximalupdate mupbasewidth": "model.mup.base_width=256 (d_model at which the rate was tuned)",
    "wd": "train.weight_decay",
    "bf16 bfloat fp32 float precision mixedprecision torchdtype": "train.dtype=bfloat16 (or float32)",
    "evalinterval evalsteps": "train.eval_every",
    "saveinterval savesteps": "train.checkpoint_every",
    "randomseed": "train.seed",
    "gpu": "train.device=cuda",
    "dataset datapath datasetpath corpus": "data.path",
}  # fmt: skip
"""Map from terms with the same meaning to the fields and values to write. Terms are in lower case, without dashes and
underscores. A remark may follow in parentheses."""

LACKING = {
    "rwkv retnet hyena": (
        "no such recurrent mixer; `archlab explain model.mixer` lists the available ones"
    ),
    "batchnorm groupnorm instancenorm": "no norm across sequences or tokens",
    "deepnorm": "no DeepNorm",
    "rezero layerscale": (
        "no learned factor on a branch; model.block.attention_multiplier and mlp_multiplier are fixed"
    ),
    "capacityfactor tokendropping": "no capacity limit of experts: no token is dropped",
    "expertchoice": "no experts that choose their tokens; tokens choose their experts",
    "nsa nativesparseattention dsa deepseeksparseattention moba": (
        "no attention that chooses its keys by content; model.attention.window, stride and blocks choose by position"
    ),
    "valueresidual resformer": "no value residual: every layer attends over its own values",
    "fp8 float8": "no training in 8 bits; train.dtype is bfloat16 or float32",
    "xpos fire kerple cope": "no such position encoding; `archlab explain model.position` lists the available ones",
    "mtp multitokenprediction": "no prediction of several tokens at once",
    "lion sgd adafactor shampoo soap": "no optimizer except AdamW and Muon; docs/plugins.md shows how to add your own",
    "nsp nextsentenceprediction": "no next-sentence prediction, only BERT's other objective: masked",
    "rlhf dpo ppo grpo": "no training on preferences and no reinforcement learning",
    "labelsmoothing": "no label smoothing; only train.z_loss can be added to the cross-entropy",
    "ema exponentialmovingaverage weightaveraging averagedweights polyak": "no average of weights over training steps",
    "inversesqrt inversesquareroot noam": "no inverse square root schedule",
    "fp16 float16 half amp": "no float16",
    "flash flashattention attnimplementation": "no choice of kernel: it uses the fastest one that supports the model",
}  # fmt: skip
"""Map from terms with the same meaning to the description of a feature that archlab lacks."""

_WRITE, _LACKING = (
    {word: answer for words, answer in table.items() for word in words.split()} for table in (WRITE, LACKING)
)


def meant(word: str) -> str:
    """Return a hint for a common term: what to write instead, or that archlab lacks the feature. Return an empty string
    for an unknown term."""
    plain = _plain(word)
    if written := _WRITE.get(plain):
        return f"write {written}"
    if lacking := _LACKING.get(plain):
        return f"archlab has {lacking}"
    return ""


def elsewhere(key: str, section: str) -> str:
    """Return a hint that names the fields called `key` in other sections, or an empty string.

    Fields in the same top-level section are preferred, then those with the shortest paths. The hint is empty if another
    kind of `section` has the field.
    """
    paths = _fields().get(_plain(key), [])
    if key == "kind" or not paths or any(path.rpartition(".")[0] == section for path in paths):
        return ""
    paths = [path for path in paths if section and path.startswith(f"{section.split('.')[0]}.")] or paths
    fewest = min(path.count(".") for path in paths)
    return f"write {' or '.join(dict.fromkeys(path for path in paths if path.count('.') == fewest))}"


@cache_of_kinds
def _fields() -> dict[str, list[str]]:
    by_name: dict[str, list[str]] = {}
    for path, _, _ in fields_below(Config):
        by_name.setdefault(_plain(path.rpartition(".")[2]), []).append(path)
    return by_name


def _plain(word: str) -> str:
    return re.sub(r"[-_ .]+", "", word.lower())
