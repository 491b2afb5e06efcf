"""Saved models by name: where they lie, and what they are, without loading them."""

import hashlib
import json
import struct
from pathlib import Path

from draftsmith.core.errors import MissingDependencyError, ModelError
from draftsmith.core.shapes import counted_layers
from draftsmith.core.store import read_json

_SAMPLE_BYTES = 4096
_SAVE_SAFELY = "save it with `save_pretrained`; draftsmith reads no pickled weights, because loading them runs their code"
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def find_model(name: str) -> Path:
    """A local folder, or, where a network exists, a Hugging Face repository (weights as safetensors only)."""
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return folder.resolve()
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ModelError(f"{name} is no model folder: it has no config.json", "give the path of a saved checkpoint")
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise MissingDependencyError(
            f"there is no folder {name}, and to fetch it from Hugging Face a package is missing",
            "pip install 'draftsmith[transformers]', or give the folder of a model",
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except Exception as error:
        raise ModelError(
            f"there is no folder {name}, and as a Hugging Face repository it cannot be had ({type(error).__name__})",
            "check the name, or download the model and give its folder",
        ) from None


def model_name(folder: Path) -> str:
    """What people know a checkpoint by. Those that draftsmith makes all lie in a folder `model`: of them, what they were made
    from, which the record beside it says."""
    record = folder.parent / "record.json"
    if folder.name != "model" or not record.is_file():
        return folder.name
    made = read_json(record)
    match made.get("kind"):
        case "checkpoint":
            return f"{made['source']}, {counted_layers(made['shape']['layers'])}"
        case "distilled":
            return f"{made['student']}, distilled"
        case "forged":
            return f"forged for {made['target']}"
    return folder.name


def has_weights(folder: Path) -> bool:
    """Whether a model folder is a checkpoint, or only a shape: a config without weights."""
    return any(folder.glob("*.safetensors"))


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that engines load: those of the index, else `model.safetensors`, else all there are."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        named = json.loads(index.read_text())["weight_map"].values()
        return [folder / name for name in sorted(set(named))]
    whole = folder / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} holds no safetensors weights", _SAVE_SAFELY)
    return files


def weight_names(folder: Path) -> list[str]:
    """Of every weight of a checkpoint, from the headers of its files."""
    names: list[str] = []
    for path in weight_files(folder):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            names += [name for name in json.loads(file.read(length)) if name != "__metadata__"]
    return names


def model_fingerprint(folder: Path) -> str:
    """Digest of config.json, every safetensors header, and the first and last 4 KiB of each tensor.

    Reading 140 GB to name a model would cost more than using it; a change that leaves both ends of every tensor as they
    were is not made by training, noise, pruning or quantising."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder} holds no safetensors weights",
            _SAVE_SAFELY,
        )
    total = hashlib.sha256((folder / "config.json").read_bytes())
    for file in files:
        _add_safetensors(total, file)
    return total.hexdigest()[:32]


def _add_safetensors(total: "hashlib._Hash", path: Path) -> None:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size:
                raise ValueError("the header is longer than the file")
            header = file.read(length)
            total.update(header)
            for name, entry in sorted(json.loads(header).items()):
                if name == "__metadata__":
                    continue
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                if end > size:
                    raise ValueError("a tensor ends behind the file")
                for at in (begin, max(begin, end - _SAMPLE_BYTES)):
                    file.seek(at)
                    total.update(file.read(min(_SAMPLE_BYTES, end - begin)))
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        raise ModelError(f"{path} is not a whole safetensors file", "copy or download it again") from None
