"""The command line: quick to answer, settings from file and options, errors without a traceback."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from draftsmith import __version__, api, cli
from draftsmith.core import timing
from draftsmith.core.doctor import Diagnosis, EngineState
from draftsmith.core.errors import MissingDependencyError
from draftsmith.core.protocols import EngineConfig
from tests.unit.builders import LLAMA, FakeEngine, profile_record, save_record, write_model

COMMANDS = typer.main.get_command(cli.app).commands
VERBS = tuple(COMMANDS)
SLOW = ("torch", "transformers", "vllm", "numpy", "pyarrow", "altair")


class Main:
    """`draftsmith ...`, as a shell would see it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        self._monkeypatch.setattr(sys, "argv", ["draftsmith", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self._capsys.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out, err


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    monkeypatch.setenv("COLUMNS", "200")
    return Main(monkeypatch, capsys)


class StopError(Exception):
    """The verb was called; nothing more is wanted of it."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Parse a command line and give what the verb was called with."""

    def parse(*words: object) -> dict[str, Any]:
        calls: list[dict[str, Any]] = []

        def call(**settings: Any) -> None:
            calls.append(settings)
            raise StopError

        monkeypatch.setattr(api, "record_part", lambda worker, **settings: call(worker=worker, **settings))
        for verb in ("evaluate", "evaluate_live", "profile", "profile_shapes", "predict"):
            monkeypatch.setattr(api, verb, call)
        told = CliRunner().invoke(cli.app, [str(word) for word in words])
        assert isinstance(told.exception, StopError), (told.output, told.exception)
        return calls[0]

    return parse


class TestHelp:
    def test_it_answers_in_a_third_of_a_second(self) -> None:
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-m", "draftsmith", "--help"], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - began)
        assert min(seconds) < 0.3

    @pytest.mark.parametrize("words", [["--help"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
    def test_it_imports_nothing_slow(self, words: list[str]) -> None:
        code = (
            f"import sys; sys.argv = ['draftsmith', *{words}]\n"
            "from draftsmith.cli import main\n"
            "try: main()\n"
            f"finally: print([name for name in {SLOW} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"

    @pytest.mark.parametrize("verb", VERBS)
    def test_every_verb_has_its_own(self, main: Main, verb: str) -> None:
        code, out, _ = main(verb, "--help")
        assert code == 0
        assert f"draftsmith {verb}" in out

    def test_every_option_says_what_it_is_for(self) -> None:
        for verb, command in COMMANDS.items():
            assert command.help, verb
            assert not [option.name for option in command.params if not option.help], verb

    def test_no_verb_is_help_too(self, main: Main) -> None:
        _, out, err = main()
        assert "Commands" in out + err

    def test_the_version(self, main: Main) -> None:
        assert main("--version") == (0, f"{__version__}\n", "")
        assert main("--verbose", "--version", "record") == (0, f"{__version__}\n", "")


class TestSettings:
    def test_only_what_was_given_is_passed_on(self, asked: Any) -> None:
        assert asked("record", "--target", "t") == {"store": None, "worker": (0, 1), "target": "t"}
        assert asked("evaluate") == {"store": None}

    def test_options_of_record(self, asked: Any, tmp_path: Path) -> None:
        words = "record --target t --dataset mmlu --dataset chat --tail 3 --temperature 0.5 --engine vllm --worker 1/4"
        assert asked(*words.split(), "--store", tmp_path) == {
            "target": "t",
            "datasets": ("mmlu", "chat"),
            "tail": 3,
            "sampling": {"temperature": 0.5},
            "engine": {"kind": "vllm"},
            "worker": (1, 4),
            "store": tmp_path,
        }

    @pytest.mark.parametrize(
        ("words", "draft"),
        [
            ("--draft ngram", {"kind": "ngram"}),
            ("--draft path", {"kind": "model", "path": "path"}),
            ("--draft path --method probabilistic", {"kind": "model", "path": "path", "method": "probabilistic"}),
        ],
    )
    def test_the_draft(self, asked: Any, words: str, draft: dict[str, str]) -> None:
        assert asked("evaluate", *words.split())["draft"] == draft
        assert asked("evaluate", "--live", *words.split())["draft"] == draft

    def test_the_target_and_the_serving_engine(self, asked: Any) -> None:
        assert asked("evaluate", "--live", "--target", "t") == {"store": None, "target": "t"}
        assert asked("evaluate", "--serve", "vllm") == {"store": None, "serve": "vllm"}

    def test_lookaheads_are_sorted_and_once_each(self, asked: Any) -> None:
        assert asked("evaluate", "--lookahead", "5,1,3,1")["lookaheads"] == (1, 3, 5)

    def test_options_of_profile(self, asked: Any, tmp_path: Path) -> None:
        words = "--target t --draft d --lookahead 5,1 --batch 8,1 --context 1024,64 --steps 4 --tolerance 0.1 --max-rounds 3"
        more = ("--engine", "vllm", "--quantization", "int8", "--store", tmp_path)
        assert asked("profile", *words.split(), *more) == {
            "target": "t",
            "draft": {"kind": "model", "path": "d"},
            "lookaheads": (1, 5),
            "batches": (1, 8),
            "contexts": (64, 1024),
            "timing": {"steps": 4, "tolerance": 0.1, "max_rounds": 3},
            "engine": {"kind": "vllm", "quantization": "int8"},
            "store": tmp_path,
        }
        assert asked("profile", "--target", "t", "--draft", "ngram") == {
            "store": None,
            "target": "t",
            "draft": {"kind": "ngram"},
        }
        assert asked("profile") == {"store": None}

    def test_options_of_profile_shapes(self, asked: Any) -> None:
        words = "profile --shapes s.yaml --batch 1 --context 128 --steps 4 --dtype bfloat16"
        assert asked(*words.split()) == {
            "shapes": "s.yaml",
            "batches": (1,),
            "contexts": (128,),
            "timing": {"steps": 4},
            "engine": {"dtype": "bfloat16"},
            "store": None,
        }

    def test_options_of_predict(self, asked: Any) -> None:
        words = "predict --profile p --scorecard c --trace t --lookahead 3,1 --batch 4 --context 99 --wanted 50 --memory-gb 80"
        assert asked(*words.split()) == {
            "profile": "p",
            "scorecard": "c",
            "trace": "t",
            "lookaheads": (1, 3),
            "batches": (4,),
            "contexts": (99,),
            "wanted_tokens_per_second": 50.0,
            "memory_gb": 80.0,
            "store": None,
        }
        assert asked("predict") == {"store": None}

    def test_numbers_of_predict(self, asked: Any) -> None:
        words = "predict --tokens-per-step 3=2.1,5=2.4 --plain-ms 20 --verify-ms 22 --draft-ms 0 --overhead-ms 0"
        assert asked(*words.split()) == {
            "tokens_per_step": {3: 2.1, 5: 2.4},
            "numbers": {"plain_ms": 20.0, "verify_ms": 22.0, "draft_ms": 0.0, "overhead_ms": 0.0},
            "store": None,
        }
        assert asked("predict", "--acceptance", "0")["acceptance"] == 0.0

    def test_zero_is_a_setting_too(self, asked: Any) -> None:
        settings = asked("record", "--temperature", "0", "--tail", "0")
        assert (settings["sampling"], settings["tail"]) == ({"temperature": 0.0}, 0)


class TestConfigFile:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "run.yaml"

    def test_options_lie_on_top_of_it(self, asked: Any, file: Path) -> None:
        file.write_text("target: t\ntail: 1\nengine: {kind: vllm, threads: 2}\nsampling: {top_k: 5}\n")
        settings = asked("record", "--config", file, "--tail", "3", "--threads", "4", "--temperature", "1")
        assert settings["target"] == "t"
        assert settings["tail"] == 3
        assert settings["engine"] == {"kind": "vllm", "threads": 4}
        assert settings["sampling"] == {"top_k": 5, "temperature": 1.0}

    def test_options_lie_on_top_of_a_profiles_and_a_predictions(self, asked: Any, file: Path) -> None:
        file.write_text("target: t\ntiming: {steps: 9, tolerance: 0.1}\nlookaheads: [1, 2]\n")
        settings = asked("profile", "--config", file, "--steps", "3", "--batch", "2")
        assert settings["timing"] == {"steps": 3, "tolerance": 0.1}
        assert (settings["lookaheads"], settings["batches"]) == ([1, 2], (2,))
        file.write_text("numbers: {plain_ms: 20, draft_ms: 2}\ntokens_per_step: {3: 2.1}\n")
        settings = asked("predict", "--config", file, "--draft-ms", "3")
        assert settings["numbers"] == {"plain_ms": 20, "draft_ms": 3.0}
        assert settings["tokens_per_step"] == {3: 2.1}

    def test_a_draft_named_by_one_word(self, asked: Any, file: Path) -> None:
        file.write_text("draft: ngram\n")
        assert asked("evaluate", "--config", file)["draft"] == "ngram"

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("max_new_token: 3", "there is no setting 'max_new_token', did you mean 'max_new_tokens'?"),
            ("tail: many", "--tail should be a valid integer"),
            ("- target", "holds a list, not settings"),
            ("target: [", "is not valid YAML"),
        ],
    )
    def test_what_is_wrong_in_it(self, main: Main, file: Path, text: str, problem: str) -> None:
        file.write_text(text)
        code, _, err = main("record", "--target", "t", "--dataset", "mmlu", "--config", file)
        assert code == 1
        assert problem in err
        assert "What to do:" in err

    def test_it_is_not_there(self, main: Main, file: Path) -> None:
        code, _, err = main("record", "--config", file)
        assert (code, f"there is no configuration file {file}" in err) == (1, True)

    def test_a_word_where_settings_belong(self, main: Main, file: Path) -> None:
        file.write_text("engine: vllm\n")
        code, _, err = main("record", "--target", "t", "--dataset", "mmlu", "--config", file)
        assert code == 1
        assert "engine" in err

    @pytest.mark.parametrize("verb", ["record", "evaluate", "evaluate --live", "profile", "predict"])
    @pytest.mark.parametrize(("text", "named"), [("store: kept", "'store'"), ("worker: 0/2", "'worker'"), ("1: one", "1")])
    def test_a_name_that_is_no_setting_of_a_stage(self, main: Main, file: Path, verb: str, text: str, named: str) -> None:
        file.write_text(text)
        code, _, err = main(*verb.split(), "--config", file)
        assert code == 1
        assert f"{file} sets {named}, which is no setting of a stage" in err
        assert "What to do: give it as an option instead" in err

    @pytest.mark.parametrize("draft", ["ngram", "{kind: ngram, max_ngram: 4}"])
    def test_another_kind_of_draft_replaces_the_files(self, asked: Any, file: Path, draft: str) -> None:
        file.write_text(f"draft: {draft}\n")
        assert asked("evaluate", "--config", file, "--draft", "path")["draft"] == {"kind": "model", "path": "path"}

    def test_another_draft_of_the_same_kind_changes_the_files(self, asked: Any, file: Path) -> None:
        file.write_text("draft: {kind: ngram, max_ngram: 4}\n")
        assert asked("evaluate", "--config", file, "--draft", "ngram")["draft"] == {"kind": "ngram", "max_ngram": 4}
        file.write_text("draft: {kind: model, path: file, method: probabilistic}\n")
        draft = asked("evaluate", "--config", file, "--draft", "option")["draft"]
        assert draft == {"kind": "model", "path": "option", "method": "probabilistic"}

    def test_another_method_for_the_files_draft(self, asked: Any, file: Path) -> None:
        file.write_text("draft: {kind: model, path: path}\n")
        draft = asked("evaluate", "--config", file, "--method", "probabilistic")["draft"]
        assert draft == {"kind": "model", "path": "path", "method": "probabilistic"}

    def test_another_method_for_the_files_draft_of_one_word(self, asked: Any, file: Path) -> None:
        file.write_text("draft: path\n")
        draft = asked("evaluate", "--config", file, "--method", "probabilistic")["draft"]
        assert draft == {"kind": "model", "path": "path", "method": "probabilistic"}

    @pytest.mark.parametrize("before", ["threads: 2, dtype: bfloat16", "kind: transformers, threads: 2, dtype: bfloat16"])
    def test_another_engine_keeps_what_the_file_says_about_it(self, asked: Any, file: Path, before: str) -> None:
        file.write_text(f"engine: {{{before}}}\n")
        settings = asked("record", "--config", file, "--engine", "vllm", "--threads", "4")
        assert settings["engine"] == {"kind": "vllm", "threads": 4, "dtype": "bfloat16"}

    def test_a_word_where_settings_belong_is_not_hidden_by_an_option(self, asked: Any, file: Path) -> None:
        """Or `engine: vllm` with --threads would run transformers."""
        file.write_text("engine: vllm\n")
        assert asked("record", "--config", file, "--threads", "4")["engine"] != {"threads": 4}


class TestErrors:
    @pytest.mark.parametrize("worker", ["2/2", "1", "a/b", "1/", "/2", "-1/2", "0/0", ""])
    def test_a_worker_that_cannot_be(self, main: Main, worker: str) -> None:
        code, _, err = main("record", "--target", "t", f"--worker={worker}")
        assert (code, "--worker" in err, "for example 0/4" in err) == (2, True, True)

    def test_an_option_of_the_other_kind_of_evaluation(self, main: Main) -> None:
        code, _, err = main("evaluate", "--live", "--serve", "vllm")
        assert (code, "--serve" in err, "a live run serves with --engine" in err) == (2, True, True)
        code, _, err = main("evaluate", "--target", "t")
        assert (code, "--target" in err, "add --live to run the target" in err) == (2, True, True)

    @pytest.mark.parametrize("text", ["three", "1,,2", "", "1.5", "1;2"])
    def test_lookaheads_that_are_no_numbers(self, main: Main, text: str) -> None:
        code, _, err = main("evaluate", f"--lookahead={text}")
        assert (code, f"{text!r} is not a list of numbers" in err, "--lookahead" in err) == (2, True, True)

    @pytest.mark.parametrize("verb", ["profile", "predict"])
    @pytest.mark.parametrize("option", ["--lookahead", "--batch", "--context"])
    @pytest.mark.parametrize("text", ["three", "1,,2", "", "1.5"])
    def test_lists_that_are_no_numbers(self, main: Main, verb: str, option: str, text: str) -> None:
        code, _, err = main(verb, f"{option}={text}")
        assert (code, f"{text!r} is not a list of numbers" in err, option in err) == (2, True, True)

    @pytest.mark.parametrize("text", ["3", "3=", "=2", "3=two", "3=2.1,,5=2", "2.5=2", "", "3:2.1"])
    def test_tokens_per_step_that_are_no_pairs(self, main: Main, text: str) -> None:
        code, _, err = main("predict", f"--tokens-per-step={text}")
        assert (code, f"{text!r} is not a list like 3=2.1,5=2.4" in err, "--tokens-per-step" in err) == (2, True, True)

    def test_a_lookahead_named_twice(self, main: Main) -> None:
        code, _, err = main("predict", "--tokens-per-step=3=2,3=2.5")
        assert (code, "says something twice" in err) == (2, True)

    @pytest.mark.parametrize("option", ["--target=t", "--draft=d", "--draft=ngram", "--lookahead=3"])
    def test_shapes_are_timed_alone(self, main: Main, option: str) -> None:
        code, _, err = main("profile", "--shapes", "s.yaml", option)
        assert (code, "--shapes" in err) == (2, True)
        assert "leave --target, --draft and --lookahead out" in " ".join(err.split())

    @pytest.mark.parametrize(
        ("words", "problem"),
        [
            ("profile", "profile cannot run: --target is missing"),
            ("profile --target t --batch 0", "--batch should be greater than or equal to 1 (got 0)"),
            ("profile --target t --lookahead 0", "--lookahead should be greater than or equal to 1 (got 0)"),
            ("profile --target t --max-rounds 1", "--max-rounds should be"),
            ("profile --target t --tolerance 0", "--tolerance should be"),
            ("profile --target nowhere", "nowhere is no model folder"),
            ("forge --target t --dataset d --budget 0h", "forge cannot run: --budget should be greater than 0"),
            ("forge --target t", "forge cannot run: --dataset is missing"),
            ("record --target t --dataset d --temperature -1", "record cannot run: --temperature should be"),
            ("record --target t --dataset d --batch-size 0", "record cannot run: --batch-size should be"),
            ("prune --source s --layers 0", "prune cannot run: --trace is missing; --layers should be"),
            ("evaluate --trace t", "evaluate cannot run: --draft is missing"),
            ("profile --shapes nowhere.yaml", "there is no configuration file nowhere.yaml"),
            ("profile --shapes nowhere.yaml --context 0", "--context should be"),
            ("predict", "there is no plain baseline"),
            ("predict --plain-ms 20", "nothing says how long the draft takes"),
            ("predict --plain-ms 20 --draft-ms 2", "acceptance must come from one place"),
            (
                "predict --plain-ms 20 --draft-ms 2 --acceptance 0.5 --tokens-per-step 3=2",
                "acceptance must come from one place",
            ),
            ("predict --plain-ms 20 --draft-ms 2 --acceptance 1.5", "--acceptance should be less than or equal to 1"),
            ("predict --plain-ms 20 --draft-ms 2 --tokens-per-step 3=5", "5.0 tokens per step at lookahead 3 cannot be"),
            ("predict --plain-ms 20 --draft-ms 2 --tokens-per-step 0=1", "--tokens-per-step should be"),
            ("predict --plain-ms 0 --draft-ms 2 --acceptance 0.5", "--plain-ms should be"),
            ("predict --plain-ms inf --draft-ms 2 --acceptance 0.5", "--plain-ms should be a finite number"),
            ("predict --plain-ms 20 --draft-ms 2 --acceptance 0.5 --store /dev/null", "cannot be written: Not a directory"),
            ("predict --plain-ms 20 --draft-ms 2 --acceptance 0.5 --batch 2", "batch size 2 was not profiled"),
            ("predict --plain-ms 20 --draft-ms 2 --acceptance 0.5 --trace nowhere", "nowhere holds no finished record"),
            ("predict --profile nowhere --acceptance 0.5", "nowhere holds no finished record"),
            ("predict --scorecard nowhere", "nowhere holds no finished record"),
        ],
    )
    def test_what_cannot_be_is_a_message_with_a_way_out(
        self, main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, problem: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        code, out, err = main(*words.replace("nowhere", "./nowhere").split())
        assert (code, out) == (1, "")
        assert err.startswith("draftsmith: ")
        assert problem in err.replace("./nowhere", "nowhere")
        assert "What to do:" in err

    def test_an_error_of_ours_is_a_message_and_exit_code_1(self, main: Main, tmp_path: Path) -> None:
        code, out, err = main("evaluate", "--trace", tmp_path, "--draft", "ngram")
        assert (code, out) == (1, "")
        assert err.startswith(f"draftsmith: {tmp_path} holds no finished record")
        assert "What to do: check the path" in err

    def test_a_wrong_engine(self, main: Main, tmp_path: Path, engine: FakeEngine) -> None:
        model = write_model(tmp_path / "target")
        code, _, err = main("record", "--target", model, "--dataset", "fake", "--engine", "vlm", "--store", tmp_path)
        assert (code, "did you mean 'vllm'?" in err) == (1, True)

    def test_an_unknown_option(self, main: Main) -> None:
        assert main("record", "--nonsense")[0] == 2

    def test_an_error_that_is_not_ours_is_not_hidden(self, main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(worker: tuple[int, int], **settings: Any) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(api, "record_part", fail)
        with pytest.raises(ZeroDivisionError):
            main("record")


class TestInterrupted:
    @pytest.fixture(autouse=True)
    def interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(worker: tuple[int, int], **settings: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(api, "record_part", interrupt)

    def test_it_ends_with_130(self, main: Main) -> None:
        assert main("record")[0] == 130

    def test_it_says_that_nothing_is_lost(self, main: Main) -> None:
        assert "the same command goes on where it stopped" in main("record")[2]


class TestDoctor:
    def found(self, monkeypatch: pytest.MonkeyPatch, *engines: EngineState, warnings: tuple[str, ...] = ()) -> None:
        machine = {"cpu": "a processor", "cores": 2, "memory_gb": 8.0, "gpus": []}
        monkeypatch.setattr(api, "doctor", lambda: Diagnosis(machine=machine, packages={}, engines=engines, warnings=warnings))

    USABLE = EngineState(name="transformers", usable=True, versions={"torch": "2.13.0"})

    def broken(self, problem: str = "needs the package 'vllm'") -> EngineState:
        return EngineState(
            name="vllm", usable=False, versions={}, problem=problem, way_out="pip install 'draftsmith[vllm]' (CUDA)"
        )

    def test_what_is_usable_and_what_to_do_for_the_rest(self, main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found(monkeypatch, self.USABLE, self.broken(), warnings=("pip install 'draftsmith[report]'",))
        code, out, _ = main("doctor")
        assert code == 0
        assert "a processor, 2 cores, 8.0 GB; GPUs: none" in out
        assert "transformers: torch 2.13.0" in out
        assert "vllm: needs the package 'vllm'" in out
        assert "pip install 'draftsmith[vllm]' (CUDA)" in out
        assert "pip install 'draftsmith[report]'" in out

    def test_no_engine_at_all_is_exit_code_1(self, main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found(monkeypatch, self.broken())
        assert main("doctor")[0] == 1

    @pytest.mark.parametrize("problem", ["cannot open [/usr/lib/libx.so]", "list[int] is not a type", "run [bold] again"])
    def test_brackets_in_a_problem(self, main: Main, monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
        self.found(monkeypatch, self.USABLE, self.broken(problem))
        assert problem in main("doctor")[1]


class TestTheFlow:
    @pytest.fixture
    def models(self, tmp_path: Path, engine: FakeEngine) -> tuple[Path, Path]:
        return write_model(tmp_path / "target", 1.0), write_model(tmp_path / "draft")

    def record(self, main: Main, target: Path, store: Path, *more: object) -> tuple[int, str, str]:
        words = "--dataset fake --num-prompts 4 --max-new-tokens 6 --shard-size 2 --engine fake"
        return main("record", "--target", target, *words.split(), "--store", store, *more)

    def test_record_evaluate_live(self, main: Main, tmp_path: Path, models: tuple[Path, Path]) -> None:
        target, draft = models
        code, out, err = self.record(main, target, tmp_path)
        trace = Path(out.strip())
        assert (code, (trace / "record.json").exists()) == (0, True)
        assert "recorded 24 tokens of 4 prompts" in " ".join(err.split())

        common = ("--trace", trace, "--draft", draft, "--engine", "fake", "--store", tmp_path)
        code, out, _ = main("evaluate", *common, "--lookahead", "1,2")
        *table, png, svg, page, folder = out.splitlines()
        assert code == 0
        assert "4 prompts of the test split" in "".join(table)
        assert "2.000" in "".join(table)
        assert "3.000" in "".join(table)
        assert all(Path(one).is_file() and Path(one).parent == Path(folder) for one in (png, svg, page))

        code, out, err = main("evaluate", "--live", "--target", target, *common, "--lookahead", "0,2")
        assert code == 0
        assert "live on fake, 4 prompts of the test split" in out
        assert "1.00 x" in out
        assert "no plain baseline" not in err

    def test_a_live_run_without_a_baseline_says_so(self, main: Main, tmp_path: Path, models: tuple[Path, Path]) -> None:
        trace = self.record(main, models[0], tmp_path)[1].strip()
        words = ("--live", "--target", models[0], "--trace", trace, "--draft", "ngram", "--engine", "fake")
        code, out, err = main("evaluate", *words, "--lookahead", "2", "--store", tmp_path)
        assert (code, "no baseline" in out) == (0, True)
        assert "add lookahead 0 before you judge the speed" in err

    def test_without_altair_there_are_numbers_and_a_hint(
        self, main: Main, tmp_path: Path, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(card: Any) -> None:
            raise MissingDependencyError("pictures need Altair", "pip install 'draftsmith[report]'")

        monkeypatch.setattr(api, "picture", refuse)
        trace = self.record(main, models[0], tmp_path)[1].strip()
        code, out, err = main("evaluate", "--trace", trace, "--draft", "ngram", "--engine", "fake", "--store", tmp_path)
        assert (code, "tokens per step" in out) == (0, True)
        assert "no picture: pictures need Altair" in err

    def test_a_worker_that_is_not_the_last(self, main: Main, tmp_path: Path, models: tuple[Path, Path]) -> None:
        code, out, err = self.record(main, models[0], tmp_path, "--worker", "0/2")
        assert code == 0
        assert (Path(out.strip()) / "shard-00000.parquet").exists()
        assert "complete once the other workers are done" in " ".join(err.split())

    def test_one_prompt_has_no_error(self, main: Main, tmp_path: Path, models: tuple[Path, Path]) -> None:
        trace = self.record(main, models[0], tmp_path, "--num-prompts", "1")[1].strip()
        words = ("--trace", trace, "--draft", models[1], "--lookahead", "1", "--engine", "fake", "--store", tmp_path)
        code, out, _ = main("evaluate", *words)
        table = out.split("first position")[1]
        assert (code, "2.000" in table, "±" in table) == (0, True, False)


@pytest.mark.usefixtures("quiet")
class TestProfileAndPredict:
    @pytest.fixture
    def models(self, tmp_path: Path, engine: FakeEngine) -> tuple[Path, Path]:
        config = json.dumps(LLAMA)
        return write_model(tmp_path / "target", 1.0, config), write_model(tmp_path / "draft", config=config)

    def profile(self, main: Main, models: tuple[Path, Path], store: Path, *more: object) -> tuple[int, str, str]:
        words = "--lookahead 1,3 --batch 1,4 --context 64 --steps 2 --max-rounds 2 --engine fake"
        return main("profile", "--target", models[0], "--draft", models[1], *words.split(), "--store", store, *more)

    def test_the_table_of_a_profile(self, main: Main, tmp_path: Path, models: tuple[Path, Path]) -> None:
        code, out, err = self.profile(main, models, tmp_path)
        assert code == 0
        assert "milliseconds per step on fake: draft for target" in out
        assert "plain" in out
        assert "14.50" in out  # three drafted tokens, a verification of one row, and the rest
        assert Path(out.splitlines()[-1]).parent == tmp_path / "profiles"
        assert "something else was running" not in err

    def test_a_busy_machine_is_told_of(
        self, main: Main, tmp_path: Path, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(timing, "others_share", lambda: 1.0)
        assert "measure again on a quiet machine" in self.profile(main, models, tmp_path)[2]

    def shapes(self, main: Main, folder: Path) -> tuple[int, str, str]:
        file = folder / "shapes.yaml"
        groups = {"depth": [{"num_hidden_layers": layers} for layers in (1, 2, 4)]}
        file.write_text(json.dumps({"architecture": LLAMA, "groups": groups}))
        words = "--batch 1 --context 64 --steps 2 --max-rounds 2 --engine fake"
        return main("profile", "--shapes", file, *words.split(), "--store", folder)

    def test_the_table_and_the_picture_of_shapes(self, main: Main, tmp_path: Path, engine: FakeEngine) -> None:
        code, out, _ = self.shapes(main, tmp_path)
        *table, png, svg, page, folder = out.splitlines()
        assert code == 0
        assert "llama shapes on fake, plain decoding" in "".join(table)
        assert all(Path(one).is_file() and Path(one).parent == Path(folder) for one in (png, svg, page))

    def test_a_busy_machine_is_told_of_with_shapes_too(
        self, main: Main, tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(timing, "others_share", lambda: 1.0)
        assert "measure again on a quiet machine" in self.shapes(main, tmp_path)[2]

    def test_predict_from_a_profile(self, main: Main, tmp_path: Path, models: tuple[Path, Path]) -> None:
        profile = self.profile(main, models, tmp_path)[1].splitlines()[-1]
        words = ("--tokens-per-step", "1=1.6,3=2.4", "--memory-gb", "1", "--store", tmp_path)
        code, out, _ = main("predict", "--profile", profile, *words)
        assert code == 0
        assert out.startswith("Go: ")
        assert "draft for target on fake" in out
        assert "memory: the draft takes" in out
        *_, page, _, _, _, _, _, _, folder = out.splitlines()
        assert (Path(page).is_file(), Path(page).parent) == (True, Path(folder))
        assert Path(page).name == "prediction.html"

    def test_vllm_is_given_its_schedule(self, main: Main, tmp_path: Path) -> None:
        record = profile_record(contexts=(128, 1024), engine=EngineConfig(kind="vllm"))
        words = ("--tokens-per-step", "1=1.6,4=3.5", "--no-pictures", "--store", tmp_path)
        code, out, _ = main("predict", "--profile", save_record(tmp_path / "profile", record), *words)
        assert code == 0
        for context in (128, 1024):
            assert f"at context {context}: num_speculative_tokens_per_batch_size = [[1, 4, 4]]" in out

    NUMBERS = ("--plain-ms", "20", "--draft-ms", "2", "--overhead-ms", "1", "--tokens-per-step", "3=2.5")

    def test_predict_from_numbers(self, main: Main, tmp_path: Path) -> None:
        """A step of 27 ms: 92.6 tokens/s, 1.85 times as fast; parity at 1.35 tokens or 29 ms."""
        code, out, _ = main("predict", *self.NUMBERS, "--no-pictures", "--store", tmp_path)
        assert code == 0
        assert out.startswith("Go: 1.85 x plain decoding with lookahead 3 at batch 1.")
        for figure in ("any", "2.500", "92.6", "1.85", "1.35", "29.0"):
            assert figure in out
        assert "switched off" not in out
        folder = Path(out.splitlines()[-1])
        assert (folder / "record.json").exists()
        assert not list(folder.glob("*.html"))

    def test_what_was_wished_for_is_answered(self, main: Main, tmp_path: Path) -> None:
        """Or that it cannot be had."""
        words = (*self.NUMBERS, "--no-pictures", "--store", tmp_path)
        possible, impossible = (main("predict", *words, "--wanted", wanted)[1] for wanted in (120, 1200))
        assert "3.24" in possible
        assert "none" in impossible

    def test_no_answer_where_there_is_none(self, main: Main, tmp_path: Path) -> None:
        words = "--plain-ms 10 --verify-ms 90 --draft-ms 2 --tokens-per-step 3=2.5 --no-pictures"
        code, out, _ = main("predict", *words.split(), "--store", tmp_path)
        assert (code, out.startswith("No-go: ")) == (0, True)
        assert out.count("none") == 2
        assert "faster with the draft switched off" in out

    def test_without_altair_there_are_numbers_and_a_hint(
        self, main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "altair", None)
        code, out, err = main("predict", *self.NUMBERS, "--store", tmp_path)
        assert (code, out.startswith("Go: ")) == (0, True)
        assert "no picture: pictures need Altair" in err
