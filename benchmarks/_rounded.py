"""bfloat16 as processors multiply it that have units for it, on one that has none and would take four times as long: exact
products of rounded numbers, added up in float32 and rounded once."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from draftsmith.core.provenance import has_bf16_units


def bfloat16_units() -> AbstractContextManager[Any]:
    """Training in bfloat16 within this does as a processor with units for it does."""
    return _Rounded() if has_bf16_units() is False else nullcontext()


class _Rounded(TorchFunctionMode):  # type: ignore[misc]
    """Linear layers and attention, which are nearly all of the products of a transformer."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear and args[0].dtype == torch.bfloat16:
            return _Linear.apply(*args, **kwargs)
        if func is functional.scaled_dot_product_attention and args[0].dtype == torch.bfloat16:
            return func(*(one.float() for one in args[:3]), *args[3:], **kwargs).bfloat16()
        return func(*args, **kwargs)


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """B samples of I numbers each to O numbers."""

    @staticmethod
    def forward(ctx: Any, input_BI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(input_BI, weight_OI)
        ctx.has_bias = bias_O is not None
        bias = None if bias_O is None else bias_O.float()
        return functional.linear(input_BI.float(), weight_OI.float(), bias).bfloat16()

    @staticmethod
    def backward(ctx: Any, slope_BO: Tensor) -> tuple[Tensor | None, ...]:
        input_BI, weight_OI = ctx.saved_tensors
        slope = slope_BO.float()
        flat_NO, flat_NI = slope.flatten(0, -2), input_BI.float().flatten(0, -2)
        return (
            (slope @ weight_OI.float()).bfloat16(),
            (flat_NO.T @ flat_NI).bfloat16(),
            flat_NO.sum(0).bfloat16() if ctx.has_bias else None,
        )
