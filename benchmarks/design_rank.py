"""Does `design` predict? Shapes that were no probes are predicted first, then cut, trained and measured; and its speed."""

import subprocess
import sys
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._drafts import layer_order
from benchmarks._evidence import ROOT, Lab, Result, refuse_busy, run
from benchmarks._taught import lessons, recorded, training
from draftsmith import api
from draftsmith.core.provenance import machine, timed_on
from draftsmith.core.records import Profile
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.core.store import read_json, read_record, write_json
from draftsmith.core.timing import watched
from draftsmith.forge.ground import shapes_to_time
from draftsmith.forge.rounds import pruners_by
from draftsmith.theory.latency import shape_arrays
from draftsmith.theory.law import AcceptanceLaw, Probe, fit_law
from draftsmith.theory.search import Traffic, rank
from draftsmith.theory.throughput import StepTable

PROBES: tuple[dict[str, int], ...] = ({"layers": 2}, {"layers": 10}, {"layers": 5, "intermediate": 768}, {"layers": 5, "hidden": 384, "heads": 6, "kv_heads": 2})  # fmt: skip  # noqa: E501
UNSEEN: tuple[dict[str, int], ...] = (
    {"layers": 1}, {"layers": 3}, {"layers": 4}, {"layers": 6}, {"layers": 8}, {"layers": 14}, {"layers": 20},
    {"layers": 3, "intermediate": 768}, {"layers": 8, "intermediate": 512}, {"layers": 12, "intermediate": 1024},
    {"layers": 4, "hidden": 384, "heads": 6, "kv_heads": 2}, {"layers": 10, "hidden": 288, "heads": 9, "kv_heads": 3},
)  # fmt: skip
PREDICTIONS = ROOT / "benchmarks" / "predictions"
LOOKAHEADS = (1, 2, 3, 4, 5, 6)
CONTEXT, STEPS, RATE = 256, 40, 1e-3


def measure(lab: Lab) -> Result:
    """Rank correlation of predicted with measured throughput, and how far the chosen shape is from the best."""
    seconds, considered = lab.kept("search", partial(_search_seconds, lab))
    study = _Study(lab)
    committed = (lab.store if lab.quick else PREDICTIONS) / "design_rank.json"
    if not committed.exists():
        write_json(committed, study.predict())
    if not lab.quick and not _is_committed(committed):
        sys.exit(f"predicted; commit {committed.relative_to(ROOT)} before any of them is trained, and run this again")
    promised = read_json(committed)
    if (here := timed_on(machine())) != promised["machine"]:
        sys.exit(f"predicted for {promised['machine']}: to be measured there, and this is {here}")
    predicted = [one["tokens_per_second"] for one in promised["shapes"]]
    measured = [lab.kept(_name(one["sizes"]), partial(study.measure, one["sizes"])) for one in promised["shapes"]]
    gains = [one["speedup"] for one in measured]
    correlation = _spearman(np.array(predicted), np.array(gains))
    chosen = gains[int(np.argmax(predicted))] / max(gains)
    return Result(
        claim="Design ranks shapes before they are trained as measurement does afterwards",
        value=f"Spearman {correlation:.3f}; the chosen shape reaches {100 * chosen:.1f}% of the best; {considered:,} "
        f"candidates in {seconds:.1f} s",
        unit="",
        goal="at least 0.9 over 12 shapes that span 1.5 x; within 5% of the best; 10^6 candidates under 5 s without torch",
        holds=correlation >= 0.9 and chosen >= 0.95 and seconds < 5 and considered >= 10**6 and max(gains) / min(gains) >= 1.5,
        spread=f"measured throughputs span {max(gains) / min(gains):.2f} x; errors of step times in the details",
        workload=f"SmolLM2-135M-Instruct, {len(promised['probes'])} probes, {len(measured)} unseen shapes, "
        f"{promised['probes'][0]['tokens'] / 1e6:.2f}M tokens each, batch 1, context {CONTEXT}, transformers, "
        f"{lab.arithmetic()}; live throughput over plain decoding in the same run, at the best lookahead by replay and a "
        "profile of each pair",
        details={"predicted": predicted, "measured": measured, "probes": promised["probes"], "law": promised["law"]},
    )


class _Study:
    """One target, what is learnt from it, and how long each shape is trained and timed. Nothing is made before it is needed."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._steps = lab, 3 if lab.quick else STEPS
        timing = (
            {"steps": 4, "min_rounds": 2, "max_rounds": 2} if lab.quick else {"steps": 16, "min_rounds": 5, "max_rounds": 10}
        )
        where: dict[str, Any] = {"batches": (1,), "contexts": (CONTEXT,)}
        # What the processor has units for: nobody would serve in bfloat16 where it is emulated.
        self._engine = {"kind": "transformers", "dtype": lab.arithmetic(), "threads": 2}
        self._common = {**where, "timing": timing, "engine": self._engine, "store": lab.store}

    @cached_property
    def _taught(self) -> dict[str, Any]:
        return lessons(self._lab, self._lab.smollm2, 400)

    @cached_property
    def _test(self) -> Path:
        more: dict[str, Any] = {"max_prompt_tokens": 400, "max_new_tokens": 96, "engine": self._engine}
        return recorded(self._lab, self._lab.smollm2, "test", ("hellaswag", "chat"), 8, **more)

    def predict(self) -> dict[str, Any]:
        """Tokens per second of shapes that were not trained, from those of the probes and the times of others."""
        lab = self._lab
        profile = api.profile(target=lab.smollm2, lookaheads=LOOKAHEADS, **self._common)
        refuse_busy(lab, profile.record.busy, profile.folder)
        file = lab.store / "design_rank.yaml"
        write_json(file, shapes_to_time(read_json(lab.smollm2 / "config.json"), model_shape(lab.smollm2)))  # JSON is YAML
        times = api.profile_shapes(shapes=file, **self._common)
        refuse_busy(lab, times.record.busy, times.folder)
        probed = [self._probed(sizes) for sizes in (PROBES[:2] if lab.quick else PROBES)]
        made = api.design(
            source=lab.smollm2, profile=profile.folder, shapes=times.folder, tokens=probed[0]["tokens"], context=CONTEXT,
            probes=[{"checkpoint": one["checkpoint"], "scorecard": one["scorecard"]} for one in probed],
            lookaheads=LOOKAHEADS, store=lab.store,
        )  # fmt: skip
        unseen = UNSEEN[:2] if lab.quick else UNSEEN
        speeds = _predicted(model_shape(lab.smollm2), made.record, read_record(Profile, profile.folder), unseen, probed)
        shapes = [{"sizes": sizes, "tokens_per_second": speed} for sizes, speed in zip(unseen, speeds, strict=True)]
        for one in probed:  # where they lie is of this machine only
            del one["checkpoint"], one["scorecard"], one["records"]
        return {"machine": timed_on(machine()), "shapes": shapes, "probes": probed, "law": made.record.law}

    def measure(self, sizes: dict[str, int]) -> dict[str, Any]:
        """Live, at the lookahead that replay and a profile of the pair say is best. Plain decoding runs beside it: the machine
        drifts between shapes."""
        target, store = self._lab.smollm2, self._lab.store
        one = self._trained(sizes)
        draft, card = Path(one.pop("checkpoint")) / "model", one.pop("scorecard")
        profile = api.profile(target=target, draft=draft, lookaheads=LOOKAHEADS, **self._common)
        refuse_busy(self._lab, profile.record.busy, profile.folder)
        points = api.predict(profile=profile.folder, scorecard=card, store=store).record.points
        best = max(points, key=lambda point: point.tokens_per_second)
        engine = {**self._engine, "batch_size": 1}
        with watched() as others:
            live = api.evaluate_live(
                trace=self._test, target=target, draft=draft, lookaheads=(0, best.lookahead), engine=engine, store=store
            )
        speeds = {cell.lookahead: cell.speed for cell in live.record.cells}
        refuse_busy(self._lab, others.busy, live.folder)
        row = {
            **one,
            "lookahead": best.lookahead,
            "speedup": speeds[best.lookahead] / speeds[0],
            "tokens_per_second": speeds[best.lookahead],
            "by replay and profile": {"speedup": best.speedup, "error": best.error},
        }
        print(sizes, row["speedup"], row["by replay and profile"], flush=True)
        return row

    def _probed(self, sizes: dict[str, int]) -> dict[str, Any]:
        """A probe: what `design` reads of it, its two records, is kept, so that another machine can go on."""

        def made() -> dict[str, Any]:
            one = self._trained(sizes)
            return {
                **one,
                "records": {kind: read_json(Path(one[kind]) / "record.json") for kind in ("checkpoint", "scorecard")},
            }

        one: dict[str, Any] = self._lab.kept(f"probe-{_name(sizes)}", made)
        for kind, record in one["records"].items():
            one[kind] = str(self._lab.store / "probes" / _name(sizes) / kind)
            write_json(Path(one[kind]) / "record.json", record)
        return one

    def _trained(self, sizes: dict[str, int]) -> dict[str, Any]:
        target, store, taught = self._lab.smollm2, self._lab.store, self._taught
        engine = {"dtype": "float32", "threads": 2}
        by = pruners_by(layer_order(self._lab, "smollm2"), sizes)
        cut = api.prune(source=target, trace=taught["trace"], shape=sizes, pruners=by, engine=engine, store=store)
        train = training(self._lab, self._steps, RATE)
        made = api.distill(student=cut.folder / "model", **taught, check_every=10**6, train=train, store=store)
        card = api.evaluate(
            trace=taught["held_out"], draft=made.folder / "model", lookaheads=LOOKAHEADS, engine=self._engine, store=store
        )
        widest = card.record.overall.points[-1]
        return {
            "sizes": sizes,
            "tokens": made.record.tokens,
            "checkpoint": str(made.folder),
            "scorecard": str(card.folder),
            "tokens_per_step": {str(point.lookahead): point.tokens_per_step for point in card.record.overall.points},
            "conditional": list(widest.conditional_acceptance_by_position),
            "looked_at": list(widest.looked_at_by_position),
        }


def _name(sizes: dict[str, int]) -> str:
    return "-".join(f"{size}-{name}" for name, size in sizes.items())


def _predicted(
    source: Shape, made: Any, profile: Profile, unseen: tuple[dict[str, int], ...], probed: list[dict[str, Any]]
) -> list[float]:
    shapes = [source.model_copy(update=sizes) for sizes in unseen]
    law: AcceptanceLaw = fit_law(
        source,
        [
            Probe(source.model_copy(update=one["sizes"]), one["tokens"], tuple(one["conditional"]), tuple(one["looked_at"]))
            for one in probed
        ],
    )
    table = StepTable.from_cells(profile.cells)
    found = rank(
        shape_arrays(shapes), source, made.latency, law, probed[0]["tokens"], table, Traffic({1: 1.0}, CONTEXT), LOOKAHEADS
    )
    return [float(speed) for speed in found.tokens_per_second]


def _is_committed(path: Path) -> bool:
    """As it stands: git sees nothing about it to tell."""
    words = ["git", "status", "--porcelain", "--ignored", "--", str(path)]
    return not subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _spearman(one: np.ndarray, other: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


_SEARCH = """
import sys, time
began = time.perf_counter()
from draftsmith.core.records import LatencyModel
from draftsmith.core.shapes import model_shape
from draftsmith.theory.latency import TERMS
from draftsmith.theory.law import Probe, fit_law
from draftsmith.theory.search import Bounds, Traffic, legal_shapes, pareto, rank
from draftsmith.theory.throughput import StepTable
from pathlib import Path
source = model_shape(Path(sys.argv[1]))
latency = LatencyModel(dtype="bfloat16", coefficients={name: 1.0 for name in TERMS}, most_tokens=8, num_shapes=12,
                       unseen_error_median=0.02, unseen_error_worst=0.05, unseen_error_rms=0.03)
law = fit_law(source, [Probe(source.model_copy(update={"layers": 2}), 1e6, (0.5, 0.6, 0.6, 0.6), (100.0, 50.0, 40.0, 35.0))])
steps = StepTable.from_numbers(plain_ms=30.0, verify_ms=32.0, draft_ms=1.0, overhead_ms=2.0, most=8)
shapes = legal_shapes(source, "multiple of heads", Bounds(), "bfloat16")
pareto(rank(shapes, source, latency, law, 1e6, steps, Traffic({1: 1.0}, 0), range(1, 9)))
assert "torch" not in sys.modules
print(time.perf_counter() - began, len(shapes.layers))
"""


def _search_seconds(lab: Lab) -> tuple[float, int]:
    """Of a whole search over the shapes of TinyLlama, imports included, in a new process."""
    words = [sys.executable, "-c", _SEARCH, str(lab.tinyllama)]
    done = [subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split() for _ in range(3)]
    return float(np.median([float(one[0]) for one in done])), int(done[0][1])


if __name__ == "__main__":
    run("design_rank", measure, carried=True)
