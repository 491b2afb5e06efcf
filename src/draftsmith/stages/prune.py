"""Stage `prune`: a source becomes a smaller checkpoint of the shape that was asked for.
Reads a source and a Trace of the train or probe split; writes a Checkpoint, with the model in the folder `model` beside it."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model, model_fingerprint, model_name, weight_names
from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.errors import ConfigError, DataError, PlanError
from draftsmith.core.families import family_of, is_computed, split_name
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.log import log
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.pruning import PruneJob, Pruner, PrunerChoice, WantedShape, forget_unfinished, wait_for
from draftsmith.core.records import PrunedCheckpoint
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.core.store import Store, read_json, write_json
from draftsmith.core.trace import TraceReader, TraceRow


class PruneConfig(StrictConfig):
    """What to cut, to which shape, and by what. Without `pruners`, those without training that the shape needs: `depth` for
    layers, `width` for the rest, then `rows` for the output head. `trace` is recorded output of the target, `num_rows` of its
    rows are looked at."""

    source: str
    trace: str
    shape: WantedShape
    pruners: tuple[PrunerChoice, ...] | None = None
    num_rows: int = Field(32, ge=1)
    engine: EngineConfig = EngineConfig()


def prune(config: PruneConfig, store: Store) -> Path:
    """The folder of the finished checkpoint record. Under torchrun every rank calls this; the first one writes."""
    source, trace = find_model(config.source), TraceReader(Path(config.trace))
    trace.refuse_test()
    fingerprint = model_fingerprint(source)  # refuses a damaged file
    whole, wanted = config.shape.of(source)
    _check_names(source)
    choices = config.pruners or _needed(whole, wanted)
    chain: list[tuple[PrunerChoice, Pruner]] = [(choice, registry.load("pruners", choice.kind)) for choice in choices]
    _check_they_can(chain, whole, wanted)
    inputs = {
        "source": fingerprint,
        "trace": trace.record.fingerprint,
        "shape": wanted.model_dump(mode="json"),
        "pruners": [[choice.kind, pruner.identity(choice.settings)] for choice, pruner in chain],
        "settings": {"num_rows": config.num_rows, "dtype": config.engine.dtype},
    }
    run = store.run("checkpoints", inputs)
    if run.is_current:
        log.info("already pruned: %s", run.path)
        return run.path
    began, first = time.monotonic(), os.environ.get("RANK", "0") == "0"
    if first:
        run.begin(chain[-1][1].versions())
    job = PruneJob(
        source=source,
        wanted=wanted,
        rows=_rows(trace, config.num_rows),
        sampling=trace.record.sampling,
        vocabulary=trace.vocabulary(),
        engine=config.engine,
        scratch=run.path,
        searches=store.root / "searches",
        trace=trace.folder,
    )
    layers_kept = _run_chain(chain, job, run.path, first)
    if not first:
        wait_for(run.path / "record.json")
        return run.path
    record = PrunedCheckpoint(
        source=model_name(source),
        source_fingerprint=fingerprint,
        trace=trace.record.fingerprint,
        shape=wanted,
        parameters=wanted.parameters,
        layers_kept=tuple(layers_kept),
        pruners=tuple(choice.kind for choice in choices),
        fingerprint=model_fingerprint(run.path / "model"),
    )
    run.finish(record, time.monotonic() - began)
    forget_unfinished(run.path)
    return run.path


def _run_chain(chain: list[tuple[PrunerChoice, Pruner]], job: PruneJob, folder: Path, first: bool) -> list[int]:
    """Let every pruner go on from what the one before it left: a plan, or weights that it has trained. The last one's model is
    the outcome. Returns the layers of the source that stayed."""
    plan, kept = KeepPlan.everything(model_shape(job.source)), list(range(model_shape(job.source).layers))
    for place, (choice, pruner) in enumerate(chain):
        own, last = folder / f"{place}-{choice.kind}", place == len(chain) - 1
        job = replace(job, scratch=own)
        plan = _planned(choice, pruner, job, plan, first)
        if not (pruner.trains or last):
            continue
        if not _is_there(plan.shape(model_shape(job.source)), job.wanted, last):
            raise PlanError(f"{choice.kind} ended at another shape than {job.wanted}", "report this: it is a fault of a pruner")
        model = folder / "model" if last else own / "model"
        if first and model.exists():
            shutil.rmtree(model)
        if first or pruner.trains:
            pruner.cut(job, plan, model)
        kept = [kept[layer.index] for layer in plan.layers]
        if not last:
            job = replace(job, source=model)
            plan = KeepPlan.everything(job.wanted)
    return kept


def _is_there(found: Shape, wanted: Shape, last: bool) -> bool:
    """Whether a chain has come to its shape. Output rows are cut by the last of its pruners only."""
    return found == wanted if last else not _others(found, wanted) and found.layers == wanted.layers


def _planned(choice: PrunerChoice, pruner: Pruner, job: PruneJob, so_far: KeepPlan, first: bool) -> KeepPlan:
    """A pruner's plan, kept in a file: one that was made is not made again, and ranks with nothing to train wait for it."""
    path = job.scratch / "plan.json"
    if not path.exists() and (first or pruner.trains):
        plan = pruner.plan(job, so_far, choice.settings)
        if first:
            job.scratch.mkdir(parents=True, exist_ok=True)
            write_json(path, plan.model_dump(mode="json"))
        return plan
    wait_for(path)
    return parse_config(KeepPlan, read_json(path), str(path))


def _rows(trace: TraceReader, count: int) -> list[TraceRow]:
    """As many rows of every data set, as far as they go."""
    by_dataset: dict[str, list[TraceRow]] = {name: [] for name in trace.record.datasets}
    share = -(-count // len(by_dataset))
    for row in trace.rows():
        if row.num_output > 0 and len(by_dataset.setdefault(row.dataset, [])) < share:
            by_dataset[row.dataset].append(row)
    rows = [row for chosen in by_dataset.values() for row in chosen][:count]
    if not rows:
        raise DataError(f"no prompt of {trace.folder} has any output to judge by", "record a trace with longer outputs")
    return rows


def _check_names(source: Path) -> None:
    """Refuse weights that surgery would not know before anything has been computed."""
    config = read_json(source / "config.json")
    layout = family_of(config, str(source)).layout(config)
    for name in weight_names(source):
        if not is_computed(name):
            split_name(name, layout)


def _needed(source: Shape, wanted: Shape) -> tuple[PrunerChoice, ...]:
    kinds = [
        *(["depth"] if wanted.layers < source.layers else []),
        *(["width"] if _others(source, wanted) else []),
        *(["rows"] if wanted.vocabulary < source.vocabulary else []),
    ]
    if not kinds:
        raise ConfigError(
            "the shape asked for is the source's own", "say what to cut: --layers, --hidden, --intermediate, --rows"
        )
    return tuple(PrunerChoice(kind=kind) for kind in kinds)


def _others(source: Shape, wanted: Shape) -> bool:
    return any(getattr(wanted, name) != getattr(source, name) for name in ("heads", "kv_heads", "hidden", "intermediate"))


def _check_they_can(pruners: list[tuple[PrunerChoice, Pruner]], source: Shape, wanted: Shape) -> None:
    cutting = [(choice.kind, name) for choice, pruner in pruners for name in pruner.cuts]
    if twice := [name for _, name in cutting if sum(1 for _, other in cutting if other == name) > 1]:
        raise ConfigError(
            f"two of the pruners cut {twice[0].replace('_', ' ')}", "take one of them; depth and width are a pair, l0 is alone"
        )
    kinds = [choice.kind for choice, _ in pruners]
    if "depth" in kinds and "width" in kinds[: kinds.index("depth")]:
        raise ConfigError("depth judges layers with all their heads and neurons", "let depth come before width")
    if "rows" in kinds[:-1]:
        raise ConfigError("what has fewer output rows is not cut or trained further", "let rows come last")
    if "refit" in kinds and (kinds[-1] != "refit" or any(pruner.trains for _, pruner in pruners)):
        raise ConfigError(
            "refit fits the output head to what all others have cut, before anything is trained",
            "let refit come last, and train what it leaves with `draftsmith distill`",
        )
    for at, (choice, pruner) in enumerate(pruners):
        before = next((one.kind for one, other in pruners[:at] if other.trains), None)
        if before is not None and any(name != "vocabulary" for name in pruner.cuts):
            raise ConfigError(f"{choice.kind} would cut what {before} has trained", f"let {choice.kind} come before {before}")
    for name in ("layers", "heads", "kv_heads", "hidden", "intermediate", "vocabulary"):
        if getattr(wanted, name) != getattr(source, name) and not any(name in pruner.cuts for _, pruner in pruners):
            named = " and ".join(choice.kind for choice, _ in pruners)
            raise ConfigError(
                f"{named} cannot cut {name.replace('_', ' ')}",
                "add a pruner that can: depth for layers, rows for output rows, width else",
            )
