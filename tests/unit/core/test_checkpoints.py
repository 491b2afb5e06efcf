"""Saved models: found by name, told apart without being read whole, refused where loading them would not be safe."""

import json
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftsmith.core.checkpoints import find_model, model_fingerprint, model_name
from draftsmith.core.errors import MissingDependencyError, ModelError
from draftsmith.core.store import write_json
from tests.unit.builders import assert_explains, safetensors, write_model

LARGE = 8192  # floats: 32 KiB, so that its ends are not all of it


def large_model(folder: Path, name: str = "weight", **values: float) -> Path:
    """Two tensors of zeros, with some values set: `first` and `last` of one, `other` of the other."""
    weight, bias = np.zeros(LARGE, np.float32), np.zeros(LARGE, np.float32)
    weight[0], weight[-1], bias[-1] = values.get("first", 0), values.get("last", 0), values.get("other", 0)
    write_model(folder)
    (folder / "model.safetensors").write_bytes(safetensors({name: weight, "bias": bias}))
    return folder


class TestFingerprint:
    def test_a_copy_elsewhere_is_the_same_model(self, tmp_path: Path) -> None:
        assert model_fingerprint(large_model(tmp_path / "a")) == model_fingerprint(large_model(tmp_path / "b"))

    @pytest.mark.parametrize("change", ["first", "last", "other"])
    def test_either_end_of_any_tensor_counts(self, tmp_path: Path, change: str) -> None:
        before = model_fingerprint(large_model(tmp_path))
        assert model_fingerprint(large_model(tmp_path, **{change: 1e-30})) != before

    def test_the_name_of_a_tensor_counts(self, tmp_path: Path) -> None:
        assert model_fingerprint(large_model(tmp_path)) != model_fingerprint(large_model(tmp_path, name="height"))

    def test_the_config_counts(self, tmp_path: Path) -> None:
        one, two = write_model(tmp_path / "a", config="{}"), write_model(tmp_path / "b", config='{"rope_theta": 1}')
        assert model_fingerprint(one) != model_fingerprint(two)

    def test_every_file_counts(self, tmp_path: Path) -> None:
        before = model_fingerprint(write_model(tmp_path))
        (tmp_path / "more.safetensors").write_bytes(safetensors({"more": np.zeros(1, np.float32)}))
        assert model_fingerprint(tmp_path) != before

    def test_tokenizers_and_readmes_do_not_count(self, tmp_path: Path) -> None:
        before = model_fingerprint(write_model(tmp_path))
        (tmp_path / "README.md").write_text("better than ever")
        assert model_fingerprint(tmp_path) == before

    def test_naming_64_gigabytes_does_not_read_them(self, tmp_path: Path) -> None:
        write_model(tmp_path)
        size = 2**36
        header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with (tmp_path / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)  # sparse: it takes no room on the disk
        assert len(model_fingerprint(tmp_path)) == 32


class TestRefused:
    def test_pickled_weights(self, tmp_path: Path) -> None:
        write_model(tmp_path)
        (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
        with pytest.raises(ModelError) as caught:
            model_fingerprint(tmp_path)
        assert_explains(caught.value, f"{tmp_path} holds no safetensors weights", way_out="reads no pickled weights")

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\x10\x00\x00",
            safetensors({"weight": np.zeros(8, np.float32)})[:40],
            struct.pack("<Q", 2) + b"\xff\xff",
            struct.pack("<Q", 15) + b'{"weight":   {}}'[:15],
        ],
        ids=["empty", "no length", "cut header", "no text", "no offsets"],
    )
    def test_no_whole_header(self, tmp_path: Path, content: bytes) -> None:
        write_model(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(ModelError) as caught:
            model_fingerprint(tmp_path)
        named = f"{tmp_path / 'model.safetensors'} is not a whole safetensors file"
        assert_explains(caught.value, named, way_out="copy or download it again")

    @pytest.mark.parametrize("lost", [1, 4096, 4 * LARGE])
    def test_a_download_that_broke_off(self, tmp_path: Path, lost: int) -> None:
        file = large_model(tmp_path) / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-lost])
        with pytest.raises(ModelError) as caught:
            model_fingerprint(tmp_path)
        assert_explains(caught.value, f"{file} is not a whole safetensors file", way_out="copy or download it again")

    def test_a_file_that_is_something_else(self, tmp_path: Path) -> None:
        file = write_model(tmp_path) / "model.safetensors"
        file.write_bytes(b"\xff" * 64)
        with pytest.raises(ModelError) as caught:
            model_fingerprint(tmp_path)
        assert_explains(caught.value, f"{file} is not a whole safetensors file", way_out="copy or download it again")

    def test_a_header_that_is_a_list(self, tmp_path: Path) -> None:
        file = write_model(tmp_path) / "model.safetensors"
        file.write_bytes(struct.pack("<Q", 2) + b"[]")
        with pytest.raises(ModelError) as caught:
            model_fingerprint(tmp_path)
        assert_explains(caught.value, f"{file} is not a whole safetensors file", way_out="copy or download it again")


class TestFinding:
    def hub(self, monkeypatch: pytest.MonkeyPatch, answer: Path | Exception) -> list[dict[str, Any]]:
        """A hub that gives this folder, or fails; returns what it was asked."""
        asked: list[dict[str, Any]] = []

        def snapshot_download(name: str, **options: Any) -> str:
            asked.append({"name": name, **options})
            if isinstance(answer, Exception):
                raise answer
            return str(answer)

        monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
        return asked

    def test_a_folder_is_found_from_anywhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = write_model(tmp_path / "org" / "model")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert find_model(str(model)) == find_model("org/model") == find_model("~/org/model") == model

    @pytest.mark.parametrize("name", ["gpt2", "./org/model", "/org/model", "~/model", "a/b/c"])
    def test_what_can_only_be_a_folder_is_not_looked_for_elsewhere(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = self.hub(monkeypatch, OSError())
        with pytest.raises(ModelError) as caught:
            find_model(name)
        assert_explains(caught.value, f"{name} is no model folder", "config.json", way_out="path of a saved checkpoint")
        assert not asked

    def test_a_folder_without_a_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "org" / "model").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        asked = self.hub(monkeypatch, OSError())
        with pytest.raises(ModelError) as caught:
            find_model("org/model")
        assert_explains(caught.value, "org/model is no model folder", way_out="path of a saved checkpoint")
        assert not asked

    def test_a_name_of_the_hub_brings_safetensors_only(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = write_model(tmp_path / "cache")
        monkeypatch.chdir(tmp_path)
        asked = self.hub(monkeypatch, model)
        assert find_model("org/model") == model
        assert asked[0]["name"] == "org/model"
        assert "*.safetensors" in asked[0]["allow_patterns"]
        assert not [pattern for pattern in asked[0]["allow_patterns"] if pattern.endswith((".bin", ".pt", ".pth", ".py", "*"))]

    @pytest.mark.parametrize("error", [OSError("no network"), ValueError("no such repository")])
    def test_a_name_that_the_hub_does_not_give(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        monkeypatch.chdir(tmp_path)
        self.hub(monkeypatch, error)
        with pytest.raises(ModelError) as caught:
            find_model("org/model")
        assert_explains(caught.value, "org/model", type(error).__name__, way_out="download the model and give its folder")

    def test_no_hub_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(MissingDependencyError) as caught:
            find_model("org/model")
        assert_explains(caught.value, "org/model", "a package is missing", way_out="'draftsmith[transformers]'")


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ({"kind": "checkpoint", "source": "target", "shape": {"layers": 2}}, "target, 2 layers"),
        ({"kind": "checkpoint", "source": "target", "shape": {"layers": 1}}, "target, 1 layer"),
        ({"kind": "distilled", "student": "target, 2 layers"}, "target, 2 layers, distilled"),
        ({"kind": "forged", "target": "target"}, "forged for target"),
    ],
)
def test_what_we_make_is_known_by_what_it_was_made_from(tmp_path: Path, made: dict[str, Any], name: str) -> None:
    assert model_name(tmp_path / "model") == "model"
    write_json(tmp_path / "record.json", made)
    assert model_name(tmp_path / "model") == name
    assert model_name(tmp_path / "draft") == "draft"
