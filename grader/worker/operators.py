"""Operations of torch's dispatcher that a launcher may use, by full name, and a call of one with its arguments named.

An operation that is in no table is refused: new ones of torch's aren't known to be harmless. The tables hold functional
forms; an in-place form counts as its functional one. None adds up at places that it takes (scatter's and index_put's
reductions): such a move is a product of matrices by another name.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


class Forbidden(Exception):
    """An operation that a launcher may not do; the message names operation and tensor, and says what to do instead."""


def _table(text: str) -> frozenset[str]:
    """Names of operations; `name:one,two` stands for `name.one` and `name.two`, and a bare name for its default."""
    entries = (entry.partition(":") for entry in text.split())
    return frozenset(f"{name}.{overload}" for name, _, all_ in entries for overload in (all_ or "default").split(","))


ALLOCATIONS = _table("""
    empty:memory_format empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like
    new_ones full full_like new_full arange arange:start,start_step linspace scalar_tensor eye eye:m
""")
"""Their result has no value of a tensor's in it."""
VIEWS = _table("""
    view view:dtype _unsafe_view as_strided expand permute transpose:int t squeeze squeeze:dim,dims unsqueeze select:int
    slice:Tensor diagonal unfold split:Tensor split_with_sizes unbind:int detach alias lift_fresh view_as_real
    view_as_complex
""")
MOVES = _table("""
    clone _to_copy copy constant_pad_nd cat stack repeat flip roll tril triu fill:Scalar,Tensor zero
    where:self,ScalarSelf,ScalarOther,Scalar masked_fill:Scalar,Tensor index:Tensor index_select gather index_put
    index_copy scatter:src,value slice_scatter select_scatter diagonal_scatter index_fill:int_Scalar,int_Tensor
""")
"""They keep values as they are, or cast them."""
SCALES = _table("mul:Tensor,Scalar div:Tensor,Scalar neg")
MATRICES = _table("mm bmm")
"""Products of matrices that rotary embeddings may take (positions by frequencies)."""
ARITHMETIC = SCALES | _table("""
    abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan tanh sigmoid erf floor ceil trunc frac
    round round:decimals sign sgn isnan isinf relu nan_to_num logical_not bitwise_not clamp clamp:Tensor
    clamp_min clamp_min:Tensor clamp_max clamp_max:Tensor polar complex
    add:Tensor,Scalar sub:Tensor,Scalar rsub:Tensor,Scalar div:Tensor_mode,Scalar_mode floor_divide floor_divide:Scalar
    remainder:Tensor,Scalar,Scalar_Tensor fmod:Tensor,Scalar pow:Tensor_Tensor,Tensor_Scalar,Scalar
    maximum minimum fmax fmin atan2 hypot copysign:Tensor,Scalar logaddexp logaddexp2 xlogy:Tensor
    addcmul addcdiv lerp:Scalar,Tensor
    eq:Tensor,Scalar ne:Tensor,Scalar lt:Tensor,Scalar le:Tensor,Scalar gt:Tensor,Scalar ge:Tensor,Scalar
    logical_and logical_or logical_xor bitwise_and:Tensor,Scalar,Scalar_Tensor bitwise_or:Tensor,Scalar,Scalar_Tensor
    bitwise_xor:Tensor,Scalar,Scalar_Tensor bitwise_left_shift:Tensor,Tensor_Scalar,Scalar_Tensor
    bitwise_right_shift:Tensor,Tensor_Scalar,Scalar_Tensor __lshift__:Tensor,Scalar __rshift__:Tensor,Scalar
    sum sum:dim_IntList mean mean:dim amax amin max max:dim min min:dim aminmax argmax argmin prod prod:dim_int
    any any:dim,dims all all:dim,dims cumsum cumprod cummax cummin logsumexp logcumsumexp sort sort:stable argsort topk
    searchsorted:Tensor,Scalar bucketize:Tensor,Scalar isin:Tensor_Tensor,Tensor_Scalar
""")

_NUMBERS = (bool, int, float)
_KINDS: dict[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor,),
    "int": (int,),
    "SymInt": (int,),
    "bool": (bool,),
    "float": (int, float),
    "number": (bool, int, float, complex),
    "str": (str,),
    "ScalarType": (torch.dtype,),
    "Device": (torch.device,),
    "Layout": (torch.layout,),
    "MemoryFormat": (torch.memory_format,),
}
"""Python's types by torch's; of tensors, subclasses too."""


def operator(name: str) -> Any:
    """The dispatcher's operation of a tape's name, e.g. ``aten.clone.default``.

    Raises:
        Forbidden: torch has none of that name.
    """
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None) if namespace == "aten" else None
    if not isinstance(found, torch._ops.OpOverload) or str(found) != name:
        raise Forbidden(f"{name[:80]} is not an operation of torch.")
    return found


def base_of(func: Any) -> str:
    """An operation's name without the mark of its in-place form."""
    name = str(func._schema.name).partition("::")[2]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def full_name(func: Any) -> str:
    """As the tables have it."""
    return f"{base_of(func)}.{func._overloadname}"


def bound(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name, those that it leaves out too; whoever checks a call looks at nothing else.

    Raises:
        Forbidden: one is unknown, given twice, missing, or of another type than the operation takes.
    """
    arguments = _arguments(func)
    positional = [argument for argument in arguments if not argument[2]]
    given = {name: value for (name, *_), value in zip(positional, args, strict=False)}
    if len(args) > len(positional) or given.keys() & kwargs.keys():
        raise _unfit(func, "too many")
    given |= kwargs
    unknown = given.keys() - {argument[0] for argument in arguments}
    if unknown:
        raise _unfit(func, f"an unknown one, {min(unknown)!r:.40}")
    found = {}
    for name, kind, _, required, default in arguments:
        if name not in given and required:
            raise _unfit(func, f"none for {name}")
        found[name] = given.get(name, default)
        number = kind == "Tensor" and name != arguments[0][0] and type(found[name]) in _NUMBERS  # x * 0.5
        if name in given and not number and not _fits(found[name], kind):
            raise _unfit(func, f"{found[name]!r:.60} for {name}, which takes {kind}")
    return found


def _unfit(func: Any, what: str) -> Forbidden:
    return Forbidden(f"torch.{base_of(func)} is given arguments that it doesn't take ({what}).")


@cache
def _arguments(func: Any) -> list[tuple[str, str, bool, bool, Any]]:
    """Name, type, whether it's given by name only, whether it must be given, and what it is otherwise."""
    return [
        (item.name, str(item.real_type), item.kwarg_only, not item.has_default_value(), item.default_value)
        for item in func._schema.arguments
    ]


def _fits(value: Any, kind: str) -> bool:
    if kind.startswith("Optional["):
        return value is None or _fits(value, kind[9:-1])
    if kind.startswith("List["):
        return type(value) in (list, tuple, torch.Size) and all(_fits(item, kind[5:-1]) for item in value)
    types = _KINDS.get(kind, ())
    if kind == "Tensor":
        return isinstance(value, types)
    if kind == "Layout":
        return value is torch.strided
    return type(value) in types and (type(value) is not int or -(2**63) <= value < 2**63)


def arranged(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The same arguments, by position where they have one."""
    args, kwargs = list(args), dict(kwargs)
    for name, _, by_name, *_ in _arguments(func)[len(args) :]:
        if by_name or name not in kwargs:
            break
        args.append(kwargs.pop(name))
    return args, kwargs
