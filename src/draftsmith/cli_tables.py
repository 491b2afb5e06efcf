"""What the command line prints of a record: one table a verb."""

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from draftsmith.api import Kept
from draftsmith.core.records import (
    Design,
    DistilledCheckpoint,
    Forged,
    LiveCard,
    Prediction,
    Profile,
    PrunedCheckpoint,
    RowsCard,
    Scorecard,
    ShapeProfile,
    ThroughputPoint,
    TrainingPlan,
)


def print_scorecard(kept: Kept[Scorecard]) -> None:
    card = kept.record
    several = len(card.by_dataset) > 1
    table = Table(title=f"tokens per step, {card.overall.num_prompts} prompts of the {card.split} split (± one standard error)")
    for name in (
        "lookahead",
        "all",
        *(card.by_dataset if several else ()),
        "accepted per step",
        "first position",
        "steps",
    ):
        table.add_column(name, justify="right")
    for i, point in enumerate(card.overall.points):
        others = [f"{one.points[i].tokens_per_step:.3f}" for one in card.by_dataset.values()] if several else []
        table.add_row(
            str(point.lookahead),
            _with_error(point.tokens_per_step, point.tokens_per_step_error),
            *others,
            f"{point.accepted_per_step:.3f}",
            f"{point.acceptance_by_position[0]:.1%}" if point.acceptance_by_position else "-",
            f"{point.steps:.0f}",
        )
    Console().print(table)


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def print_checkpoint(kept: Kept[PrunedCheckpoint]) -> None:
    made = kept.record
    typer.echo(
        f"{made.source} cut by {' and '.join(made.pruners)}: {made.shape.sizes}, {made.shape.vocabulary} output rows, "
        f"{made.parameters / 1e6:.1f}M parameters"
    )
    typer.echo(f"layers kept: {', '.join(map(str, made.layers_kept))}")


def print_design(kept: Kept[Design]) -> None:
    made = kept.record
    table = _narrow(f"The best draft of every depth, cut from {made.source}, after {made.training}")
    sizes = ("layers", "heads", "kv_heads", "hidden", "intermediate", "vocabulary")
    names = ("lay\ners", "heads", "kv", "hidden", "neu\nrons", "rows", "M wei\nghts", "ahead", "tokens\n/step", "draft\nms")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("tokens\n/s", "x plain"):
        table.add_column(name, justify="right", style="bold", no_wrap=True)
    for one in made.by_depth:
        table.add_row(
            *(str(getattr(one.shape, size)) for size in sizes),
            f"{one.parameters / 1e6:.1f}", str(one.lookahead), f"{one.tokens_per_step:.2f}", f"{one.draft_ms:.2f}",
            f"{one.tokens_per_second:.1f}", f"{one.speedup:.2f} ± {one.speedup * one.error:.2f}",
        )  # fmt: skip
    Console().print(table)
    best = made.by_depth[0]
    typer.echo(f"{made.considered:,} shapes; plain decoding gives {made.plain_tokens_per_second:.1f} tokens/s.")
    typer.echo("No shape is expected to gain anything." if best.speedup <= 1 else f"Cut to {best.shape.depth} first.")
    typer.echo(f"Worth a probe next: {made.next_probe.shape.sizes}.")


def print_forged(kept: Kept[Forged]) -> None:
    made = kept.record
    table = Table(title=f"Drafts for {made.target}, live on {made.engine} at batch {made.batch}")
    for name in ("draft", "layers", "M weights", "ahead", "tokens/step", "tokens/s", "x plain"):
        table.add_column(name, justify="left" if name == "draft" else "right")
    for one in made.contenders:
        table.add_row(
            one.name, str(one.layers or ""), f"{one.parameters / 1e6:.1f}" if one.parameters else "", str(one.lookahead),
            f"{one.tokens_per_step:.2f}" if one.tokens_per_step else "", f"{one.tokens_per_second:.1f}", f"{one.speedup:.2f}",
            style="bold" if one.name == made.best else None,
        )  # fmt: skip
    Console().print(table)
    if made.speedup <= 1:
        typer.echo("No draft that was tried is faster than plain decoding here.")
    typer.echo(f"The folder holds {made.best!r}, the fastest on the probe split; the table is of the test split.")
    if (first := made.contenders[0]).name != made.best:
        typer.echo(f"On the test split, {first.name!r} was faster.")


def print_rows(kept: Kept[RowsCard]) -> None:
    card = kept.record
    table = Table(title=f"{card.draft} drafting for {card.target}: tokens per step with fewer output rows")
    known = [point.lookahead for point in card.points[-1].curve.points]
    lookaheads = [k for k in known if k in (1, 3, 5, 8)] or known[:4]
    for name in ("rows", "ceiling", *(f"ahead {k}" for k in lookaheads)):
        table.add_column(name, justify="right")
    for one in card.points:
        cells = (f"{one.curve.at(k).tokens_per_step:.3f}" for k in lookaheads)
        table.add_row(f"{one.rows:,}", f"{one.ceiling:.3f}", *cells)
    Console().print(table)


def print_learnt(kept: Kept[DistilledCheckpoint]) -> None:
    made = kept.record
    first, last = made.curve[0], made.curve[-1]
    typer.echo(
        f"{made.student}, {made.parameters / 1e6:.1f}M parameters, has seen {made.tokens:,} tokens: "
        f"{made.loss.replace('_', ' ')} {first.loss:.3f} to {last.loss:.3f}"
    )
    if measured := [point for point in made.curve if point.tokens_per_step is not None]:
        said = ", ".join(f"{point.tokens_per_step:.3f} after {point.tokens:,}" for point in measured[-3:])
        typer.echo(f"tokens per step at lookahead {made.lookahead} on what was held out: {said}")


def print_plan(kept: Kept[TrainingPlan]) -> None:
    plan = kept.record
    typer.echo(f"{plan.source} on {plan.ranks} x {plan.device}, if {plan.efficiency:.0%} of the devices' flops are reached")
    for one in plan.stages:
        table = Table(title=f"{one.pruner}: GB of one rank, at the peak of a step", title_justify="left", box=SIMPLE_HEAD)
        table.add_column("what", min_width=40)
        table.add_column("GB", justify="right")
        for name, count in sorted(one.memory_bytes.items(), key=lambda item: -item[1]):
            table.add_row(name, f"{count / 1e9:.2f}")
        table.add_row("all", f"{one.peak_bytes / 1e9:.2f}", style="bold")
        Console().print(table)
        typer.echo(
            "It fits." if one.fits else "It does not fit: more ranks, a smaller micro_batch, or save_activations: false."
        )
        typer.echo(
            f"{one.tokens / 1e6:.1f}M tokens at {one.tokens_per_second:,.0f} tokens/s: {one.hours:.1f} hours. "
            f"A checkpoint is {one.checkpoint_bytes / 1e9:.1f} GB."
        )
    if len(plan.stages) > 1:
        typer.echo(f"All together: {sum(one.hours for one in plan.stages):.1f} hours.")


def print_live(kept: Kept[LiveCard]) -> None:
    card = kept.record
    plain = next((cell.tokens_per_second for cell in card.cells if cell.lookahead == 0), None)
    table = Table(title=f"live on {card.engine.kind}, {card.cells[0].num_prompts} prompts of the {card.split} split")
    for name in ("lookahead", "tokens/s", "against plain", "tokens per step", "steps", "outputs that differ"):
        table.add_column(name, justify="right")
    for cell in card.cells:
        table.add_row(
            str(cell.lookahead),
            f"{cell.tokens_per_second:.1f}",
            f"{cell.tokens_per_second / plain:.2f} x" if plain else "no baseline",
            "-" if cell.tokens_per_step is None else f"{cell.tokens_per_step:.3f}",
            str(cell.steps),
            str(len(cell.differences)) if card.sampling.is_greedy else "sampled",
        )
    Console().print(table)
    if plain is None:
        typer.secho("no plain baseline was run: add lookahead 0 before you judge the speed", err=True)


def print_profile(kept: Kept[Profile]) -> None:
    """Milliseconds per step: the baseline, and every lookahead by phase."""
    record = kept.record
    table = _narrow(f"milliseconds per step on {record.engine.kind}: {record.draft or 'no draft'} for {record.target}")
    columns = ("context", "batch", "look\nahead", "draft", "verify", "over\nhead", "step", "median", "10% to 90%", "error")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    plain = [("plain", cell) for cell in record.plain]
    for name, cell in [*plain, *((str(cell.lookahead), cell) for cell in record.cells)]:
        phases = (cell.draft_ms, cell.verify_ms, cell.overhead_ms, cell.step_ms, cell.median_ms)
        table.add_row(
            str(cell.context),
            str(cell.batch),
            name,
            *(f"{value:.2f}" for value in phases),
            f"{cell.low_ms:.1f} to {cell.high_ms:.1f}",
            f"{cell.error:.1%}",
        )
    Console().print(table)
    _warn_if_busy(kept)


def print_shapes(kept: Kept[ShapeProfile]) -> None:
    """Milliseconds per step of each shape."""
    record = kept.record
    table = _narrow(f"{record.architecture} shapes on {record.engine.kind}, plain decoding")
    columns = ("group", "layers", "hidden", "inter\nmediate", "vocab\nulary", "param\neters", "batch", "context", "ms", "error")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=name != "group")
    for cell in record.cells:
        shape = cell.shape
        sizes = (shape.layers, shape.hidden, shape.intermediate, shape.vocabulary)
        table.add_row(
            cell.group,
            *map(str, sizes),
            f"{shape.parameters / 1e6:.0f} M",
            str(cell.batch),
            str(cell.context),
            f"{cell.step_ms:.2f}",
            f"{cell.error:.1%}",
        )
    Console().print(table)
    _warn_if_busy(kept)


def _warn_if_busy(kept: Kept[Profile] | Kept[ShapeProfile]) -> None:
    if kept.record.busy:
        again = f"to measure again on a quiet machine, delete {kept.folder} and give the command again"
        typer.secho(f"something else was running meanwhile: {again}", fg="yellow", err=True)


def _narrow(title: str) -> Table:
    """For ten columns on eighty characters."""
    return Table(title=title, box=SIMPLE_HEAD, padding=0, pad_edge=False)


def print_prediction(kept: Kept[Prediction]) -> None:
    """The verdict, then the best lookahead at each batch size and context; all lookaheads where there is one such place."""
    record = kept.record
    typer.secho(record.verdict.sentence, bold=True)
    for doubt in record.caveats:
        typer.secho(f"take it with care: {doubt}", fg="yellow", err=True)
    table = _narrow(f"{record.draft} for {record.target} on {record.engine}")
    wanted = record.inverses[0].wanted_tokens_per_second
    names = [
        "context",
        "batch",
        "look\nahead",
        "tokens\nper step",
        "tokens/s",
        "x plain",
        "parity:\ntokens",
        "parity:\ndraft ms",
    ]
    for name in [*names, f"tokens for\n{wanted:g}/s"] if wanted else names:
        table.add_column(name, justify="right", no_wrap=True)
    best: dict[tuple[int, int], ThroughputPoint] = {}
    for point in sorted(record.points, key=lambda point: point.speedup):
        best[point.context, point.batch] = point
    for point, inverse in zip(record.points, record.inverses, strict=True):
        is_best = best[point.context, point.batch] is point
        if len(best) > 1 and not is_best:
            continue
        table.add_row(
            str(point.context or "any"),
            str(point.batch),
            str(point.lookahead),
            f"{point.tokens_per_step:.3f}",
            f"{point.tokens_per_second:.1f}",
            f"{point.speedup:.2f}" + (f" ± {2 * point.error * point.speedup:.2f}" if point.error else ""),
            _or_none(inverse.parity_tokens_per_step),
            _or_none(inverse.parity_draft_ms),
            *([_or_none(inverse.required_tokens_per_step)] if wanted else []),
            style="bold" if is_best else None,
        )
    Console().print(table)
    if any(point.speedup < 1 for point in best.values()):
        typer.echo("Where x plain is below 1, serving is faster with the draft switched off.")
    if record.engine == "vllm":
        for context, ranges in sorted(record.vllm_schedules.items()):
            typer.echo(f"at context {context}: num_speculative_tokens_per_batch_size = {[list(one) for one in ranges]}")
    if record.memory is not None:
        cost = record.memory
        fit = f"at context {cost.context}, {cost.rows_with_draft} rows fit instead of {cost.rows_without_draft}"
        if not cost.rows_without_draft:
            fit = f"even without it, the target has no room for a row at context {cost.context}"
        typer.echo(
            f"memory: the draft takes {cost.draft_weight_gb:.2f} GB of weights and "
            f"{cost.draft_kv_bytes_per_token / 1e3:.1f} kB a token; {fit}"
        )


def _or_none(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
