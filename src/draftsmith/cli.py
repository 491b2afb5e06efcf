"""The command line. Verbs only: parse, call `draftsmith.api`, print. `--help` imports neither torch nor anything slow."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from draftsmith import __version__
from draftsmith.pipeline import STAGES

_FLOW = "The flow: " + "; ".join(f"{stage.verb}, {stage.summary}" for stage in STAGES) + "."

_INTERRUPTED = 130  # typer's exit code for Ctrl-C

app = typer.Typer(
    help="Which draft model makes your LLM fastest on your hardware.",
    epilog=_FLOW,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: rich would double the time it takes to answer
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file of settings; options given here win.")]
StoreFolder = Annotated[
    Path | None, typer.Option("--store", help="Where records are kept. Default: DRAFTSMITH_STORE or ./runs.")
]
EngineName = Annotated[str | None, typer.Option("--engine", help="transformers or vllm.", show_default="transformers")]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.", show_default="auto")]
BatchSize = Annotated[int | None, typer.Option(help="Prompts in flight at once.", show_default="16")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.")]
TensorParallel = Annotated[
    int | None, typer.Option(help="Devices (or CPU ranks) one model is split over; vllm only.", show_default="1")
]
MaxModelLen = Annotated[int | None, typer.Option(help="Longest prompt plus output the engine makes room for; vllm only.")]
Quantization = Annotated[str | None, typer.Option(help="int8: weights as 8-bit integers; vllm: any of its methods.")]
TrustRemoteCode = Annotated[bool | None, typer.Option("--trust-remote-code", help="Run Python code that a checkpoint brings.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")] = False,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    from draftsmith.core.log import setup_logging

    setup_logging(verbose)


@app.command()
def record(
    target: Annotated[str | None, typer.Option(help="The model being served: a folder, or a Hugging Face name.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Prompts to use; may be given several times.")] = None,
    data: Annotated[str | None, typer.Option(help="Local folder of the data sets.")] = None,
    split: Annotated[str | None, typer.Option(help="train, probe or test.", show_default="test")] = None,
    num_prompts: Annotated[int | None, typer.Option(help="Prompts per data set.", show_default="64")] = None,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Leave longer prompts out.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest output.", show_default="200")] = None,
    tail: Annotated[
        int | None, typer.Option(help="Tokens kept past the end, to reproduce vLLM's raw counters.", show_default="0")
    ] = None,
    top_logprobs: Annotated[
        int | None, typer.Option(help="Also keep this many best tokens at each position.", show_default="0")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", show_default="0")] = None,
    top_k: Annotated[int | None, typer.Option(help="0 switches it off.", show_default="0")] = None,
    top_p: Annotated[float | None, typer.Option(help="1 switches it off.", show_default="1")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.", show_default="0")] = None,
    shard_size: Annotated[
        int | None, typer.Option(help="Prompts per shard: what an interrupted call loses at most.", show_default="64")
    ] = None,
    worker: Annotated[str, typer.Option(help="i/n: record only every n-th shard from i; n machines share one store.")] = "0/1",
    engine: EngineName = None,
    dtype: Dtype = None,
    batch_size: BatchSize = None,
    threads: Threads = None,
    tensor_parallel: TensorParallel = None,
    max_model_len: MaxModelLen = None,
    quantization: Quantization = None,
    trust_remote_code: TrustRemoteCode = None,
    config: ConfigFile = None,
    store: StoreFolder = None,
) -> None:
    """Run the target once over prompts; keep every token and its log-probability."""
    from draftsmith import api

    settings = _settings(
        config,
        {
            "target": target, "datasets": tuple(dataset) if dataset else None, "data": data, "split": split,
            "num_prompts": num_prompts, "max_prompt_tokens": max_prompt_tokens, "max_new_tokens": max_new_tokens,
            "tail": tail, "top_logprobs": top_logprobs, "shard_size": shard_size,
            "sampling": {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed},
            "engine": _engine(
                engine, dtype, batch_size, threads, tensor_parallel, max_model_len, trust_remote_code, quantization
            ),
        },
    )  # fmt: skip
    index, _, count = worker.partition("/")
    if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise typer.BadParameter("write it as i/n with i below n, for example 0/4", param_hint="--worker")
    typer.echo(api.record_part((int(index), int(count)), store=store, **settings))


@app.command()
def evaluate(
    trace: Annotated[str | None, typer.Option(help="Folder of a recorded trace.")] = None,
    draft: Annotated[str | None, typer.Option(help="The draft: a folder, a Hugging Face name, or `ngram`.")] = None,
    method: Annotated[
        str | None, typer.Option(help="How the draft proposes: greedy or probabilistic.", show_default="greedy")
    ] = None,
    lookahead: Annotated[
        str | None,
        typer.Option(help="Comma-separated; 0 is plain decoding (live only).", show_default="1,2,3,4,5,6,7,8; live 0,3"),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Run target and draft together in the engine.")] = False,
    target: Annotated[str | None, typer.Option(help="The recorded target's folder (live only).")] = None,
    serve: Annotated[str | None, typer.Option(help="Replay: the engine whose steps to predict.")] = None,
    rows: Annotated[str | None, typer.Option(help="Replay as if the output head kept so many rows, such as 1024,4096.")] = None,
    counted: Annotated[str | None, typer.Option(help="Rows: the trace by which tokens are ranked.")] = None,
    engine: EngineName = None,
    dtype: Dtype = None,
    batch_size: BatchSize = None,
    threads: Threads = None,
    tensor_parallel: TensorParallel = None,
    max_model_len: MaxModelLen = None,
    quantization: Quantization = None,
    trust_remote_code: TrustRemoteCode = None,
    config: ConfigFile = None,
    store: StoreFolder = None,
) -> None:
    """How many tokens per step a draft gives: replayed from a trace at every lookahead, or run live."""
    from draftsmith import api
    from draftsmith.cli_tables import print_live, print_rows, print_scorecard

    if bool(rows) != bool(counted) or (rows and (live or serve)):
        raise typer.BadParameter("give both --rows and --counted, without --live and --serve", param_hint="--rows")
    if live and serve:
        raise typer.BadParameter("a live run serves with --engine", param_hint="--serve")
    if target and not live:
        raise typer.BadParameter("replay needs the trace only; add --live to run the target", param_hint="--target")
    common = {
        "trace": trace,
        "draft": _named_draft(draft, method),
        "lookaheads": _numbers(lookahead),
        "engine": _engine(engine, dtype, batch_size, threads, tensor_parallel, max_model_len, trust_remote_code, quantization),
    }
    if live:
        measured = api.evaluate_live(store=store, **_settings(config, {**common, "target": target}))
        print_live(measured)
        typer.echo(measured.folder)
        return
    if rows:
        trimmed = {**common, "rows": _numbers(rows, "--rows"), "counted": counted}
        card = api.evaluate_rows(store=store, **_settings(config, trimmed))
        print_rows(card)
        _draw(lambda: api.rows_picture(card))
        typer.echo(card.folder)
        return
    kept = api.evaluate(store=store, **_settings(config, {**common, "serve": serve}))
    print_scorecard(kept)
    _draw(lambda: api.picture(kept))
    typer.echo(kept.folder)


@app.command()
def profile(
    target: Annotated[str | None, typer.Option(help="The model being served: a folder, or a Hugging Face name.")] = None,
    draft: Annotated[
        str | None, typer.Option(help="The draft: a checkpoint, a folder with only a config.json (a shape), or `ngram`.")
    ] = None,
    shapes: Annotated[str | None, typer.Option(help="YAML file of shapes to time instead of a target.")] = None,
    lookahead: Annotated[
        str | None, typer.Option(help="Comma-separated; plain decoding is always measured.", show_default="1,2,3,5,8")
    ] = None,
    batch: Annotated[str | None, typer.Option(help="Comma-separated batch sizes.", show_default="1,4,8; shapes 1")] = None,
    context: Annotated[
        str | None, typer.Option(help="Comma-separated context lengths.", show_default="128,1024; shapes 128")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps timed per visit of a cell.", show_default="12")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Stop when every cell's relative error is below this.", show_default="0.02")
    ] = None,
    max_rounds: Annotated[int | None, typer.Option(help="Stop after this many rounds in any case.", show_default="12")] = None,
    engine: EngineName = None,
    dtype: Dtype = None,
    threads: Threads = None,
    tensor_parallel: TensorParallel = None,
    max_model_len: MaxModelLen = None,
    quantization: Quantization = None,
    trust_remote_code: TrustRemoteCode = None,
    config: ConfigFile = None,
    store: StoreFolder = None,
) -> None:
    """Measure step times on the engine that will serve: plain, and every lookahead with its draft."""
    from draftsmith import api
    from draftsmith.cli_tables import print_profile, print_shapes

    common = {
        "batches": _numbers(batch, "--batch"),
        "contexts": _numbers(context, "--context"),
        "timing": {"steps": steps, "tolerance": tolerance, "max_rounds": max_rounds},
        "engine": _engine(engine, dtype, None, threads, tensor_parallel, max_model_len, trust_remote_code, quantization),
    }
    if shapes is not None:
        if target or draft or lookahead:
            raise typer.BadParameter(
                "shapes are timed alone: leave --target, --draft and --lookahead out", param_hint="--shapes"
            )
        measured = api.profile_shapes(store=store, **_settings(config, {**common, "shapes": shapes}))
        print_shapes(measured)
        _draw(lambda: api.shape_picture(measured))
        typer.echo(measured.folder)
        return
    settings = {**common, "target": target, "draft": _named_draft(draft, None), "lookaheads": _numbers(lookahead)}
    kept = api.profile(store=store, **_settings(config, settings))
    print_profile(kept)
    typer.echo(kept.folder)


@app.command()
def predict(
    profile: Annotated[str | None, typer.Option(help="Folder of a profile.")] = None,
    scorecard: Annotated[str | None, typer.Option(help="Folder of a scorecard: acceptance from a replayed trace.")] = None,
    trace: Annotated[str | None, typer.Option(help="The scorecard's trace: replay real batches row by row.")] = None,
    tokens_per_step: Annotated[
        str | None, typer.Option(help="Instead of a scorecard: lookahead=tokens, comma-separated, such as 3=2.1,5=2.4.")
    ] = None,
    acceptance: Annotated[float | None, typer.Option(help="Instead of a scorecard: one chance for every token.")] = None,
    plain_ms: Annotated[float | None, typer.Option(help="Instead of a profile: a plain step.")] = None,
    verify_ms: Annotated[
        float | None, typer.Option(help="Instead of a profile: a verification; default: a plain step.")
    ] = None,
    draft_ms: Annotated[float | None, typer.Option(help="Instead of a profile: one token of the draft.")] = None,
    overhead_ms: Annotated[
        float | None, typer.Option(help="Instead of a profile: the rest of a step.", show_default="0")
    ] = None,
    lookahead: Annotated[str | None, typer.Option(help="Comma-separated; default: all that are known.")] = None,
    batch: Annotated[str | None, typer.Option(help="Comma-separated batch sizes; default: those profiled.")] = None,
    context: Annotated[str | None, typer.Option(help="Comma-separated context lengths; default: those profiled.")] = None,
    wanted: Annotated[float | None, typer.Option(help="Tokens per second you want: how many tokens per step it takes.")] = None,
    memory_gb: Annotated[float | None, typer.Option(help="Memory for weights and caches: what the draft displaces.")] = None,
    pictures: Annotated[bool, typer.Option(help="Draw the page and its pictures.")] = True,
    config: ConfigFile = None,
    store: StoreFolder = None,
) -> None:
    """Is it worth it, and how many tokens ahead? From records or typed numbers; needs no engine."""
    from draftsmith import api
    from draftsmith.cli_tables import print_prediction

    settings = {
        "profile": profile, "scorecard": scorecard, "trace": trace,
        "tokens_per_step": _pairs(tokens_per_step), "acceptance": acceptance,
        "numbers": {"plain_ms": plain_ms, "verify_ms": verify_ms, "draft_ms": draft_ms, "overhead_ms": overhead_ms},
        "lookaheads": _numbers(lookahead), "batches": _numbers(batch, "--batch"), "contexts": _numbers(context, "--context"),
        "wanted_tokens_per_second": wanted, "memory_gb": memory_gb,
    }  # fmt: skip
    kept = api.predict(store=store, **_settings(config, settings))
    print_prediction(kept)
    if pictures:
        _draw(lambda: api.predict_pictures(kept))
    typer.echo(kept.folder)


@app.command()
def prune(
    source: Annotated[str | None, typer.Option(help="The model to cut: the target, or a sibling with its tokenizer.")] = None,
    trace: Annotated[str | None, typer.Option(help="Recorded output of the target, of the train or the probe split.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers to keep; sizes not given stay as they are.")] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads to keep in each layer.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key and value heads to keep in each layer.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Hidden dimensions to keep.")] = None,
    intermediate: Annotated[int | None, typer.Option(help="Neurons to keep in each layer.")] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows of the output head to keep: the tokens the target writes most.")
    ] = None,
    pruner: Annotated[
        list[str] | None, typer.Option(help="How to choose; may be given several times. Default: depth for layers, then width.")
    ] = None,
    num_rows: Annotated[int | None, typer.Option(help="Recorded rows to judge by.", show_default="32")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Load nothing; say what training would take.")] = False,
    ranks: Annotated[int | None, typer.Option(help="Plan: devices to train on.", show_default="1")] = None,
    device: Annotated[
        str | None, typer.Option(help="Plan: which kind, such as h100 or a100-80gb.", show_default="h100")
    ] = None,
    dtype: Dtype = None,
    batch_size: BatchSize = None,
    threads: Threads = None,
    trust_remote_code: TrustRemoteCode = None,
    config: ConfigFile = None,
    store: StoreFolder = None,
) -> None:
    """Cut a source to a smaller shape. The new checkpoint loads in transformers and vLLM as it is."""
    from draftsmith import api
    from draftsmith.cli_tables import print_checkpoint, print_plan

    common = {
        "source": source,
        "shape": {"layers": layers, "heads": heads, "kv_heads": kv_heads, "hidden": hidden, "intermediate": intermediate,
                  "rows": rows},
        "pruners": tuple({"kind": kind} for kind in pruner) if pruner else None,
    }  # fmt: skip
    if plan:
        given = _settings(config, {**common, "ranks": ranks, "device": device})
        run = {name: value for name, value in given.items() if name not in ("trace", "num_rows", "engine")}
        planned = api.plan_training(store=store, **run)
        print_plan(planned)
        typer.echo(planned.folder)
        return
    if ranks or device:
        raise typer.BadParameter("torchrun says how many ranks there are; these two are for --plan", param_hint="--ranks")
    settings = {
        **common, "trace": trace, "num_rows": num_rows,
        "engine": _engine(None, dtype, batch_size, threads, None, None, trust_remote_code, None),
    }  # fmt: skip
    kept = api.prune(store=store, **_settings(config, settings))
    print_checkpoint(kept)
    typer.echo(kept.folder / "model")


@app.command()
def design(
    source: Annotated[str | None, typer.Option(help="The model to cut from: a folder.")] = None,
    profile: Annotated[str | None, typer.Option(help="A profile of the target.")] = None,
    shapes: Annotated[str | None, typer.Option(help="A profile of shapes of the source's kind (`profile --shapes`).")] = None,
    probe: Annotated[
        list[str] | None, typer.Option(help="CHECKPOINT,SCORECARD: a draft that was distilled and evaluated; several times.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens that the draft may be trained on.")] = None,
    batch: Annotated[
        str | None, typer.Option(help="Batch sizes with their shares of the traffic, such as 1=0.5,8=0.5.", show_default="1=1")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Context length; the profile's shortest if nothing is said.")] = None,
    lookahead: Annotated[str | None, typer.Option(help="Lookaheads to consider, such as 1,2,4.", show_default="1 to 8")] = None,
    rows: Annotated[str | None, typer.Option(help="A card of `evaluate --rows`: choose the number of output rows too.")] = None,
    most_parameters: Annotated[int | None, typer.Option(help="Parameters that a draft may have.")] = None,
    most_layers: Annotated[int | None, typer.Option(help="Layers that a draft may have.")] = None,
    memory_gb: Annotated[float | None, typer.Option(help="Memory that a draft's weights may take.")] = None,
    pictures: Annotated[bool, typer.Option(help="Draw the candidates beside the record.")] = True,
    config: ConfigFile = None,
    store: StoreFolder = None,
) -> None:
    """Which shape to cut: every legal one, ranked by the throughput it would give."""
    from draftsmith import api
    from draftsmith.cli_tables import print_design

    settings = {
        "source": source, "profile": profile, "shapes": shapes, "tokens": tokens, "batches": _pairs(batch, "--batch"),
        "probes": tuple(_probe(one) for one in probe) if probe else None,
        "context": context, "lookaheads": _numbers(lookahead), "rows": rows, "most_parameters": most_parameters,
        "most_layers": most_layers, "memory_gb": memory_gb,
    }  # fmt: skip
    kept = api.design(store=store, **_settings(config, settings))
    print_design(kept)
    if pictures:
        _draw(lambda: api.design_picture(kept))
    typer.echo(kept.folder)


@app.command()
def distill(
    student: Annotated[str | None, typer.Option(help="The draft that is to learn: a folder.")] = None,
    trace: Annotated[str | None, typer.Option(help="Recorded output of the target, of the train split.")] = None,
    held_out: Annotated[str | None, typer.Option(help="Another trace (probe split), to measure tokens per step by.")] = None,
    loss: Annotated[str | None, typer.Option(help="What to make small.", show_default="forward_kl")] = None,
    teacher: Annotated[str | None, typer.Option(help="A model to ask, where too little was recorded of it.")] = None,
    method: Annotated[
        str | None, typer.Option(help="How the draft will propose: greedy or probabilistic.", show_default="greedy")
    ] = None,
    lookahead: Annotated[int | None, typer.Option(help="Tokens per step are measured at this one.", show_default="5")] = None,
    on_policy_every: Annotated[int | None, typer.Option(help="Every so many steps, learn from what the draft writes.")] = None,
    check_every: Annotated[
        int | None, typer.Option(help="Measure tokens per step every so many steps.", show_default="100")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps to train.", show_default="1000")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences in a step, over all ranks.", show_default="16")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a sequence.", show_default="512")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The highest learning rate.", show_default="1e-4")] = None,
    trust_remote_code: TrustRemoteCode = None,
    pictures: Annotated[bool, typer.Option(help="Draw the curves beside the record.")] = True,
    config: ConfigFile = None,
    store: StoreFolder = None,
) -> None:
    """Let a draft learn to write what its target writes."""
    from draftsmith import api
    from draftsmith.cli_tables import print_learnt

    settings = {
        "student": student, "trace": trace, "held_out": held_out, "loss": loss, "teacher": teacher, "method": method,
        "lookahead": lookahead, "on_policy_every": on_policy_every, "check_every": check_every,
        "train": {"steps": steps, "batch": batch, "length": length, "learning_rate": learning_rate},
        "trust_remote_code": trust_remote_code,
    }  # fmt: skip
    kept = api.distill(store=store, **_settings(config, settings))
    print_learnt(kept)
    if pictures:
        _draw(lambda: api.learning_picture(kept))
    typer.echo(kept.folder / "model")


@app.command()
def forge(
    target: Annotated[str | None, typer.Option(help="The model being served: a folder, or a Hugging Face name.")] = None,
    source: Annotated[str | None, typer.Option(help="What to cut the draft from; the target if nothing is said.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Prompts to use; may be given several times.")] = None,
    data: Annotated[str | None, typer.Option(help="Where the prompts lie.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="How long it may take, such as 2h, 45m or 1h30m.", show_default="2h")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="Batch sizes with their shares of the traffic, such as 1=0.5,8=0.5.", show_default="1=1")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Context length to time steps at.", show_default="128")] = None,
    train_prompts: Annotated[
        int | None, typer.Option(help="Prompts of each data set to learn from.", show_default="2000")
    ] = None,
    held_prompts: Annotated[
        int | None, typer.Option(help="Prompts of each data set to replay meanwhile.", show_default="48")
    ] = None,
    live_prompts: Annotated[
        int | None, typer.Option(help="Prompts of each data set to run live in the end.", show_default="8")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens to record for each prompt.", show_default="128")] = None,
    loss: Annotated[str | None, typer.Option(help="What training makes small.", show_default="forward_kl")] = None,
    draft: Annotated[list[str] | None, typer.Option(help="Another draft to run beside it; may be given several times.")] = None,
    deep_thin: Annotated[bool | None, typer.Option(help="Train the deep, thin draft of equal parameters beside it.")] = None,
    engine: EngineName = None,
    dtype: Dtype = None,
    batch_size: BatchSize = None,
    threads: Threads = None,
    tensor_parallel: TensorParallel = None,
    max_model_len: MaxModelLen = None,
    quantization: Quantization = None,
    trust_remote_code: TrustRemoteCode = None,
    config: ConfigFile = None,
    store: StoreFolder = None,
) -> None:
    """Make the fastest draft for a target that can be had in the time given, and prove it."""
    from draftsmith import api
    from draftsmith.cli_tables import print_forged

    settings = {
        "target": target, "source": source, "datasets": tuple(dataset) if dataset else None, "data": data,
        "hours": _hours(budget), "batches": _pairs(batch, "--batch"), "context": context, "train_prompts": train_prompts,
        "held_prompts": held_prompts, "live_prompts": live_prompts, "max_new_tokens": max_new_tokens, "loss": loss,
        "drafts": tuple(draft) if draft else None, "deep_thin": deep_thin,
        "engine": _engine(engine, dtype, batch_size, threads, tensor_parallel, max_model_len, trust_remote_code, quantization),
    }  # fmt: skip
    kept = api.forge(store=store, **_settings(config, settings))
    print_forged(kept)
    _draw(lambda: api.forge_page(kept))
    typer.echo(kept.folder / "model")


@app.command()
def doctor() -> None:
    """Which engines, devices and versions are usable here, and what to install for the rest."""
    from rich.console import Console
    from rich.markup import escape

    from draftsmith import api

    out = Console(soft_wrap=True)
    found = api.doctor()
    machine = found.machine
    out.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB; GPUs: {', '.join(machine['gpus']) or 'none'}"
    )
    for engine in found.engines:
        if engine.usable:
            versions = ", ".join(f"{name} {version}" for name, version in engine.versions.items())
            out.print(f"[green]usable[/]   {engine.name}: {versions}")
        else:
            out.print(f"[red]missing[/]  {engine.name}: {escape(engine.problem or '')}")
            out.print(f"           {engine.way_out}", markup=False)
    for warning in found.warnings:
        out.print(f"[yellow]warning[/]  {escape(warning)}")
    if not any(engine.usable for engine in found.engines):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; a DraftsmithError ends it with its message and exit code 1, never with a traceback."""
    from draftsmith.core.errors import DraftsmithError

    try:
        app()
    except DraftsmithError as error:
        from draftsmith.cli_errors import said

        typer.secho(f"draftsmith: {said(error, options())}", fg="red", err=True)
        raise SystemExit(1) from None
    except SystemExit as stop:
        if stop.code == _INTERRUPTED:
            typer.secho("interrupted; the same command goes on where it stopped", err=True)
        raise


def options() -> dict[str, set[str]]:
    """Of every verb, as they are typed."""
    verbs = typer.main.get_group(app).commands
    return {verb: {name for option in command.params for name in option.opts} for verb, command in verbs.items()}


def _engine(
    kind: str | None,
    dtype: str | None,
    batch_size: int | None,
    threads: int | None,
    tensor_parallel: int | None,
    max_model_len: int | None,
    trust_remote_code: bool | None,
    quantization: str | None,
) -> dict[str, Any]:
    return {
        "kind": kind, "dtype": dtype, "batch_size": batch_size, "threads": threads,
        "tensor_parallel": tensor_parallel, "max_model_len": max_model_len, "trust_remote_code": trust_remote_code,
        "quantization": quantization,
    }  # fmt: skip


def _named_draft(draft: str | None, method: str | None) -> dict[str, Any]:
    named: dict[str, Any] = {"kind": None if draft is None else "ngram" if draft == "ngram" else "model", "method": method}
    return {**named, "path": draft} if named["kind"] == "model" else named


def _settings(config: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """The YAML file's values, with the options that were really given on top."""
    base: dict[str, Any] = {}
    if config is not None:
        from draftsmith.core.config import read_yaml
        from draftsmith.core.errors import ConfigError

        base = read_yaml(config)
        if strange := [name for name in base if not isinstance(name, str) or name in ("store", "worker")]:
            raise ConfigError(f"{config} sets {strange[0]!r}, which is no setting of a stage", "give it as an option instead")
    return _merge(base, options)


def _merge(base: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in options.items():
        if not isinstance(value, dict) or name in ("tokens_per_step", "batches"):
            if value is not None:
                merged[name] = value
        elif given := {key: inner for key, inner in value.items() if inner is not None}:
            before = base.get(name, {})
            if name == "draft" and isinstance(before, str):
                before = {} if "kind" in given else {"kind": "model", "path": before}
            elif name == "draft" and given.get("kind", before.get("kind")) != before.get("kind"):
                before = {}  # what the file says of another kind of draft says nothing of this one
            merged[name] = {**before, **given} if isinstance(before, dict) else before
    return merged


def _numbers(text: str | None, option: str = "--lookahead") -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers like 1,2,3,5", param_hint=option) from None


def _pairs(text: str | None, option: str = "--tokens-per-step") -> dict[int, float] | None:
    if text is None:
        return None
    try:
        pairs = [(int(name), float(value)) for name, _, value in (part.partition("=") for part in text.split(","))]
    except ValueError:
        example = "3=2.1,5=2.4" if option == "--tokens-per-step" else "1=0.5,8=0.5"
        raise typer.BadParameter(f"{text!r} is not a list like {example}", param_hint=option) from None
    if len(dict(pairs)) < len(pairs):
        raise typer.BadParameter(f"{text!r} says something twice", param_hint=option)
    return dict(pairs)


def _hours(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?", text)
    if not text or found is None:
        raise typer.BadParameter(f"{text!r} is not a time like 2h, 45m or 1h30m", param_hint="--budget")
    return float(found[1] or 0) + float(found[2] or 0) / 60


def _probe(text: str) -> dict[str, str]:
    checkpoint, comma, scorecard = text.partition(",")
    if not comma:
        raise typer.BadParameter(f"{text!r} is not CHECKPOINT,SCORECARD", param_hint="--probe")
    return {"checkpoint": checkpoint, "scorecard": scorecard}


def _draw(pictures: Callable[[], list[Path]]) -> None:
    from draftsmith.core.errors import MissingDependencyError

    try:
        for path in pictures():
            typer.echo(path)
    except MissingDependencyError as error:
        typer.secho(f"no picture: {error}", err=True)
