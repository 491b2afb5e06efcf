"""A causal language model with one KV slot per position and row, so that rows of a batch can be at different places. The
model must have been loaded with the attention of `_attention`, which takes the masks made here.

Slot number and position are the same thing: a query at position i sees the slots 0..i of its row and no other. Rolling back
is forgetting: a slot behind a row's last token is never seen, and is written anew before a later query could see it. The same
holds for the padding of shorter prompts. Shapes: B rows, Q new tokens, S slots, V vocabulary, H heads, D head size."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

_GROWTH = 256  # slots are allocated in blocks of this many
_PREFILL_TOKENS = 2048  # fed at once; more only spills the activations out of the cache


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    def __init__(self, places: "_Places") -> None:
        super().__init__()
        self.places = places

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self._empty(key_states), self._empty(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.keys.shape[2] < self.places.horizon:
            self.keys, self.values = self._grown(self.keys), self._grown(self.values)
        horizon, rows = self.places.horizon, self.places.rows_B
        self._write(self.keys, key_states)
        self._write(self.values, value_states)
        if len(rows) < len(self.keys):
            return self.keys[rows, :, :horizon], self.values[rows, :, :horizon]
        return self.keys[:, :, :horizon], self.values[:, :, :horizon]

    def _write(self, slots_BHSD: Tensor, new_BHQD: Tensor) -> None:
        places = self.places
        if places.start is None:
            slots_BHSD[places.rows_B[:, None], :, places.positions_BQ] = new_BHQD.transpose(1, 2)
        elif len(places.rows_B) < len(slots_BHSD):
            slots_BHSD[places.rows_B, :, places.start : places.horizon] = new_BHQD
        else:
            slots_BHSD[:, :, places.start : places.horizon] = new_BHQD

    def _empty(self, like_BHQD: Tensor) -> Tensor:
        _, heads, _, size = like_BHQD.shape
        capacity = -(-self.places.horizon // _GROWTH) * _GROWTH
        return like_BHQD.new_zeros((self.places.batch, heads, capacity, size))

    def _grown(self, slots_BHSD: Tensor) -> Tensor:
        bigger = self._empty(slots_BHSD)
        bigger[:, :, : slots_BHSD.shape[2]] = slots_BHSD
        return bigger

    def keep(self, rows: Tensor) -> None:
        for slots_BHSD in (self.keys, self.values):
            for at, row in enumerate(rows.tolist()):
                if at != row:
                    slots_BHSD[at, :, : self.places.horizon] = slots_BHSD[row, :, : self.places.horizon]
        self.keys, self.values = self.keys[: len(rows)], self.values[: len(rows)]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.places.horizon, 0

    def get_seq_length(self) -> int:
        return self.places.horizon

    def get_max_length(self) -> int:
        return -1


class _Places:
    """Where the tokens of the coming forward pass go: into which rows of the batch, and at which positions."""

    def __init__(self) -> None:
        self.positions_BQ = self.rows_B = torch.empty(0)
        self.batch = self.horizon = 0
        self.start: int | None = None

    def set(self, positions_BQ: Tensor, rows_B: Tensor | None, batch: int) -> None:
        self.positions_BQ, self.batch = positions_BQ, batch
        self.rows_B = torch.arange(batch, device=positions_BQ.device) if rows_B is None else rows_B
        first, last = int(positions_BQ[:, 0].min()), int(positions_BQ[:, -1].max())
        self.horizon = last + 1
        # Rows side by side (a batch of one, a prefill) are written as one slice: several times faster than scattering.
        self.start = first if last - first + 1 == positions_BQ.shape[1] else None


class SlotModel:
    """The model, its slots, and nothing else: `forward` writes tokens at positions and returns logits."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.device = model.device
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        self._heads_per_key = heads // (getattr(config, "num_key_value_heads", None) or heads)
        self._reset()

    def _reset(self) -> None:
        self._places = _Places()
        layers = [_SlotLayer(self._places) for _ in range(self.model.config.get_text_config().num_hidden_layers)]
        self._cache = Cache(layers=layers)

    def prefill(self, tokens_BS: Tensor, lengths_B: Tensor) -> None:
        """Start a new batch: fill the slots of all tokens but each row's last, which the first step feeds. A row takes part for
        as long as it has tokens left: one long prompt does not make all others as long."""
        self._reset()
        low, width = 0, int(lengths_B.max()) - 1
        while low < width:
            rows_B = torch.nonzero(lengths_B - 1 > low)[:, 0]
            high = min(low + max(1, _PREFILL_TOKENS // len(rows_B)), width)
            positions = torch.arange(low, high, device=self.device).expand(len(rows_B), -1)
            self.forward(tokens_BS[rows_B, low:high], positions, keep_logits=1, rows_B=rows_B, batch=len(tokens_BS))
            low = high

    @torch.inference_mode()
    def forward(
        self,
        tokens_BQ: Tensor,
        positions_BQ: Tensor,
        keep_logits: int,
        rows_B: Tensor | None = None,
        batch: int | None = None,
    ) -> Tensor:
        """Logits of the last `keep_logits` tokens, float32: of all rows, or of `rows_B` out of so large a `batch`."""
        self._places.set(positions_BQ, rows_B, batch or len(positions_BQ))
        slots = torch.arange(self._places.horizon, device=self.device)
        mask_B1NS = (slots <= positions_BQ[:, :, None])[:, None].repeat(1, 1, self._heads_per_key, 1)
        output = self.model(
            input_ids=tokens_BQ,
            attention_mask=mask_B1NS,
            position_ids=positions_BQ,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=keep_logits,
        )
        return output.logits.float()

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """Drop the other rows of the batch; the i-th that stays is `rows[i]`, which is i, or a row behind all that stay."""
        for layer in self._cache.layers:
            if layer.is_initialized:
                layer.keep(rows)
