"""The words of kernel code: names, attributes, modules and kinds of syntax that `validate` lets pass."""

from __future__ import annotations

import ast
import re

import triton.language as tl
from triton.compiler.code_generator import CodeGenerator

BUILTINS = frozenset({"range", "len", "min", "max", "int", "float", "print"})
"""What Triton's compiler has under these names, releases 3.6 and 3.7, less what asks for Python's types and objects."""
OTHER_BUILTINS = frozenset(CodeGenerator.builtin_namespace) - BUILTINS
RESERVED = ("__", "_interpreted_", "interpreter_")
"""Beginnings of names that rewriting puts into kernels."""
NODES = (
    *(ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Return, ast.Pass, ast.Assert),
    *(ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Call, ast.keyword),
    *(ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Starred, ast.JoinedStr, ast.FormattedValue),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
TEXTS = frozenset({"static_assert", "static_print", "device_assert", "device_print", "print"})
"""Calls whose arguments may be f-strings."""
VALUE_ATTRIBUTES = frozenset(
    {"T", "shape", "dtype", "type", "value", "to", "cast", "numel", "scalar", "element_ty", "primitive_bitwidth"}
    | {"broadcast_to", "trans", "permute", "split", "view", "reshape", "expand_dims", "ravel", "flip", "item", "sort"}
    | {"exp", "exp2", "log", "log2", "cos", "sin", "sqrt", "sqrt_rn", "rsqrt", "abs", "erf", "floor", "ceil", "cdiv"}
    | {"sigmoid", "softmax", "max", "min", "argmax", "argmin", "sum", "xor_sum", "reduce_or", "cumsum", "cumprod"}
    | {"reduce", "associative_scan", "histogram", "logical_and", "logical_or", "gather", "scatter", "load", "store"}
    | {"advance", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor", "atomic_xchg"}
    | {"atomic_cas", "block_shape", "block_type", "strides", "is_ptr", "is_block", "is_floating", "is_int", "is_bool"}
    | {"is_fp8", "is_fp16", "is_bf16", "is_fp32", "is_fp64", "is_int8", "is_int16", "is_int32", "is_int64", "is_int1"}
    | {"is_uint8", "is_uint16", "is_uint32", "is_uint64", "is_int_signed", "is_int_unsigned", "is_standard_floating"}
)
GLUON_ATTRIBUTES = frozenset(
    {"index", "slice", "subslice", "layout", "rank", "permute", "store", "load", "gather", "scatter", "local_load"}
)
MODULES = frozenset(
    {"triton", "triton.language", "triton.language.core", "triton.language.math", "triton.language.standard"}
    | {"triton.language.random", "triton.language.extra", "triton.language.extra.libdevice"}
    | {"triton.language.extra.cuda", "triton.language.extra.cuda.libdevice"}
    | {"math", "triton.experimental"}
)
GLUON = "triton.experimental.gluon"
TRITON = frozenset({"language", "cdiv", "next_power_of_2", "experimental"})
MATH = frozenset({"sqrt", "exp", "exp2", "log", "log2", "log10", "ceil", "floor", "pow"})
REFUSED = frozenset(
    {"inline_asm_elementwise", "extern_elementwise", "dispatch", "extern", "str_to_ty", "builtin", "must_use_result"}
    | {"is_builtin", "builtin_min", "builtin_max"}
)
UNINTERPRETED = frozenset(
    {"globaltimer", "smid", "num_warps", "num_threads", "gdc_wait", "gdc_launch_dependents", "map_elementwise"}
    | {"dot_scaled", "experimental_device_tensormap_create1d", "experimental_device_tensormap_create2d"}
    | {"convert_custom_float8_sm70", "convert_custom_float8_sm80", "jn", "yn", "rcp64h"}
)
"""Of the language, but not of its interpreter: nobody could watch what a kernel does with them."""
CLASSES = (tl.constexpr, tl.range, tl.static_range, tl.condition, tl.pointer_type, tl.PropagateNan)
ANNOTATION = re.compile(r"[\w.* ]{1,40}")
