"""Stage `record`: run the target alone over prompts, once, and keep what it wrote. Reads a model and data sets, writes a Trace.

Prompts are ordered by a hash of their text, so a larger recording contains the smaller one, and cut into fixed shards. A shard
is recorded whole or not at all, and each prompt has its own seed: an interrupted call goes on to the same bytes."""

import hashlib
import time
from pathlib import Path

import numpy as np
from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model, model_fingerprint, model_name
from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import ConfigError, DataError
from draftsmith.core.log import log
from draftsmith.core.progress import progress
from draftsmith.core.prompts import Prompt, Split
from draftsmith.core.protocols import Dataset, Engine, EngineConfig, Generation, Limits, Recorder, Request
from draftsmith.core.sampling import Sampling
from draftsmith.core.store import Run, Store, digest, write_json
from draftsmith.core.trace import Trace, TraceRow, describe_shard, write_shard


class RecordConfig(StrictConfig):
    """What to record. `num_prompts` counts per data set; None takes all of the split."""

    target: str
    datasets: tuple[str, ...] = Field(min_length=1)
    data: str | None = None
    split: Split = "test"
    num_prompts: int | None = Field(64, ge=1)
    max_prompt_tokens: int | None = Field(None, ge=1)
    max_new_tokens: int = Field(200, ge=1)
    tail: int = Field(0, ge=0)
    top_logprobs: int = Field(0, ge=0)
    shard_size: int = Field(64, ge=1)
    sampling: Sampling = Sampling()
    engine: EngineConfig = EngineConfig()


def record(config: RecordConfig, store: Store, worker: tuple[int, int] = (0, 1)) -> Path:
    """The folder of the trace. `worker` = (i, n) records every n-th shard from i, so that n machines share one store; the
    trace is finished by whichever of them ends last."""
    if not 0 <= worker[0] < worker[1]:
        raise ConfigError(f"there is no worker {worker[0]} of {worker[1]}", "count workers from 0: 0/4, 1/4, 2/4, 3/4")
    target = find_model(config.target)
    prompts = _prompts(config)
    run = store.run("traces", _inputs(config, target, prompts))
    if run.is_current:
        log.info("already recorded: %s", run.path)
        return run.path
    if config.engine.batch_size > config.shard_size:
        log.warning(
            "a batch ends with its shard: --shard-size %d leaves %d rows of --batch-size %d",
            *(config.shard_size, config.shard_size, config.engine.batch_size),
        )
    began = time.monotonic()
    engine: Engine = registry.load("engines", config.engine.kind)
    run.begin(engine.versions())
    with engine.recorder(target, config.engine) as recorder:
        chosen = _encode(prompts, config, recorder)
        _record_shards(config, run, recorder, chosen, worker)
        trace = _describe(config, run, engine, recorder, target, len(chosen))
    if trace is None:
        log.info("this worker's shards are recorded; the trace is complete once the other workers are done")
        return run.path
    run.finish(trace, time.monotonic() - began)
    log.info("recorded %d tokens of %d prompts: %s", trace.num_tokens, trace.num_prompts, run.path)
    return run.path


def _inputs(config: RecordConfig, target: Path, prompts: list[Prompt]) -> dict[str, object]:
    """What the trace depends on. Paths do not count: the same model elsewhere is the same model."""
    settings = config.model_dump(mode="json", exclude={"target", "data"})
    return {
        "settings": settings,
        "model": model_fingerprint(target),
        "prompts": digest([prompt.model_dump(mode="json") for prompt in prompts]),
    }


def prompts_digest(config: RecordConfig) -> str:
    """What stands for the prompts that would be recorded, wherever they lie."""
    return digest([prompt.model_dump(mode="json") for prompt in _prompts(config)])


def _prompts(config: RecordConfig) -> list[Prompt]:
    """Every prompt of the split, data set by data set, each ordered by hash."""
    chosen: list[Prompt] = []
    for name in dict.fromkeys(config.datasets):
        dataset: Dataset = registry.load("datasets", name)
        found = [
            prompt for prompt in dataset.prompts(Path(config.data) if config.data else None) if prompt.split == config.split
        ]
        if not found:
            raise DataError(
                f"the data set {name!r} has no prompt in the {config.split} split",
                "bring more prompts or, for `record`, choose another --split",
            )
        chosen += sorted(found, key=prompt_id)
    return chosen


def prompt_id(prompt: Prompt) -> str:
    """A prompt's name in every trace."""
    return hashlib.sha256(f"{prompt.dataset}\n{prompt.key}".encode()).hexdigest()[:16]


def _encode(prompts: list[Prompt], config: RecordConfig, recorder: Recorder) -> list[tuple[Prompt, list[int]]]:
    """The first `num_prompts` of each data set that are not too long, with their token ids."""
    chosen: list[tuple[Prompt, list[int]]] = []
    for name in dict.fromkeys(config.datasets):
        kept = skipped = 0
        for prompt in (prompt for prompt in prompts if prompt.dataset == name):
            if config.num_prompts is not None and kept == config.num_prompts:
                break
            ids = recorder.encode(prompt)
            if config.max_prompt_tokens is not None and len(ids) > config.max_prompt_tokens:
                skipped += 1
                continue
            kept += 1
            chosen.append((prompt, ids))
        if not kept:
            raise ConfigError(
                f"every prompt of {name!r} is longer than {config.max_prompt_tokens} tokens",
                "raise --max-prompt-tokens",
            )
        if skipped:
            log.info("%s: %d prompts are longer than %d tokens and left out", name, skipped, config.max_prompt_tokens)
        if config.num_prompts is not None and kept < config.num_prompts:
            log.warning("%s has only %d of the %d prompts asked for", name, kept, config.num_prompts)
    return chosen


def _record_shards(
    config: RecordConfig, run: Run, recorder: Recorder, chosen: list[tuple[Prompt, list[int]]], worker: tuple[int, int]
) -> None:
    if config.top_logprobs > recorder.vocabulary.rows:
        raise ConfigError(
            f"{config.top_logprobs} log-probabilities cannot be kept of {recorder.vocabulary.rows} tokens",
            "ask for fewer --top-logprobs; 64 hold nearly all of the chance",
        )
    limits = Limits(config.max_new_tokens, recorder.eos_ids, config.tail, config.top_logprobs)
    mine = range(worker[0], _num_shards(len(chosen), config), worker[1])
    missing = [index for index in mine if not _shard_path(run, index).exists()]
    write_json(run.path / "vocabulary.json", recorder.vocabulary.model_dump(mode="json"))
    with progress("recording, shards", len(mine), already=len(mine) - len(missing)) as bar:
        for index in missing:
            part = chosen[index * config.shard_size : (index + 1) * config.shard_size]
            requests = [Request(np.array(ids, dtype=np.int32), _seed(config.sampling, prompt)) for prompt, ids in part]
            generations = recorder.record(requests, config.sampling, limits)
            rows = [
                _row(prompt, request, generation)
                for (prompt, _), request, generation in zip(part, requests, generations, strict=True)
            ]
            write_shard(_shard_path(run, index), rows)
            bar.advance()


def _num_shards(num_prompts: int, config: RecordConfig) -> int:
    return -(-num_prompts // config.shard_size)


def _shard_path(run: Run, index: int) -> Path:
    return run.path / f"shard-{index:05d}.parquet"


def _seed(sampling: Sampling, prompt: Prompt) -> int:
    """Each prompt's own seed: what is drawn for it does not depend on its neighbours."""
    return int(digest([sampling.seed, prompt_id(prompt)])[:8], 16)


def _row(prompt: Prompt, request: Request, generation: Generation) -> TraceRow:
    return TraceRow(
        prompt_id=prompt_id(prompt),
        dataset=prompt.dataset,
        split=prompt.split,
        prompt_ids=request.prompt_ids,
        output_ids=generation.output_ids,
        num_output=generation.num_output,
        logprobs=generation.logprobs,
        finish_reason=generation.finish_reason,
        seed=request.seed,
        top_ids=generation.top_ids,
        top_logprobs=generation.top_logprobs,
    )


def _describe(
    config: RecordConfig, run: Run, engine: Engine, recorder: Recorder, target: Path, num_prompts: int
) -> Trace | None:
    """The record, or None while other workers still owe shards."""
    paths = [_shard_path(run, index) for index in range(_num_shards(num_prompts, config))]
    if not all(path.exists() for path in paths):
        return None
    return Trace(
        model=model_name(target),
        model_fingerprint=model_fingerprint(target),
        vocabulary_fingerprint=recorder.vocabulary.fingerprint,
        engine=config.engine.kind,
        versions=engine.versions(),
        dtype=recorder.dtype,
        first_drafted=engine.first_drafted,
        sampling=config.sampling,
        max_new_tokens=config.max_new_tokens,
        tail=config.tail,
        top_logprobs=config.top_logprobs,
        eos_ids=recorder.eos_ids,
        split=config.split,
        datasets=config.datasets,
        shards=tuple(describe_shard(path) for path in paths),
    )
