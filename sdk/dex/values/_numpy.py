"""numpy arrays and scalars: dtype, shape and the bytes in C order. numpy is imported only where such a value is.

An array is written without a copy where its memory is in that order already. A small one is read into memory of its
own, writable. One of a megabyte or more is read where it lies, which may be memory that other processes read as well:
it is read-only, whatever way it came, and who wants to change it makes a copy (`array.copy()`).
Arrays of objects are refused: their bytes are not their values.
"""

from __future__ import annotations

import ast
import math
import sys
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

from dex.values._format import NDARRAY, NUMPY_SCALAR, Tree, marker_of, memory_tree
from dex.values._node import Node
from dex.values._refusal import Refused, bad_data, type_name, wrong_type

if TYPE_CHECKING:
    import numpy as np

KINDS: Final = "biufcmMSU"  # bool, ints, floats, complex, times, fixed text: all that their bytes and dtype describe


def loaded() -> Any:
    """numpy if anyone imported it, else None: without it there are no values of it."""
    return sys.modules.get("numpy")


def is_array_type(cls: Any) -> bool:
    numpy = loaded()
    return numpy is not None and cls is numpy.ndarray


def is_scalar_type(cls: Any) -> bool:
    numpy = loaded()
    return numpy is not None and isinstance(cls, type) and issubclass(cls, numpy.generic)


def _checked(dtype: Any) -> str:
    if dtype.kind not in KINDS or dtype.hasobject or dtype.itemsize == 0:
        raise Refused(
            f"numpy dtype {dtype} has no stored form: "
            "use numbers, bools, times or fixed-width text, or register a Codec"
        )
    text: str = dtype.str
    return text


def _array_dtype(dtype: Any) -> str:
    """As `_checked`; a dtype with fields is told by the text of its description, as in npy files."""
    if dtype.fields is None:
        return _checked(dtype)
    import numpy as np

    if dtype.hasobject or dtype.itemsize == 0:
        raise Refused(
            f"numpy dtype {dtype} has no stored form: its fields must be numbers, bools, times or fixed-width text"
        )
    return repr(np.lib.format.dtype_to_descr(dtype))


def write_array(value: Any) -> Tree:
    import numpy as np

    if type(value) is not np.ndarray:
        raise wrong_type("numpy.ndarray", value, np.ndarray)
    dtype = _array_dtype(value.dtype)
    if value.size == 0:
        return [NDARRAY.extension, dtype, list(value.shape), b""]
    memory = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    return [NDARRAY.extension, dtype, list(value.shape), memory_tree(memory)]


def read_array(tree: Tree) -> Any:
    if marker_of(tree) is not NDARRAY or len(tree) != 4:
        raise bad_data("numpy.ndarray", tree)
    _, text, shape, data = tree
    dtype = _dtype(text)
    is_shape = type(shape) is list and not any(type(n) is not int or n < 0 for n in shape)
    if not is_shape or type(data) not in (bytes, memoryview):
        raise Refused("the stored array is damaged: its shape or data has the wrong type")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise Refused(f"the stored array is damaged: {len(data)} bytes for shape {tuple(shape)} of {dtype}")
    import numpy as np

    try:
        if not data:
            return np.empty(shape, dtype=dtype)
        memory = data if type(data) is memoryview else bytearray(data)
        return np.frombuffer(memory, dtype=dtype).reshape(shape)
    except ValueError as error:
        raise Refused(f"the stored array is damaged: {error}") from None


def write_scalar(value: Any) -> Tree:
    return [NUMPY_SCALAR.extension, _checked(value.dtype), value.tobytes()]


def read_scalar(tree: Tree) -> Any:
    if marker_of(tree) is not NUMPY_SCALAR or len(tree) != 3 or type(tree[2]) is not bytes:
        raise bad_data("a numpy scalar", tree)
    dtype = _dtype(tree[1])
    if dtype.itemsize != len(tree[2]):
        raise Refused(f"the stored numpy scalar is damaged: {len(tree[2])} bytes of {dtype}")
    import numpy as np

    return np.frombuffer(tree[2], dtype=dtype)[0]


def _dtype(text: Any) -> np.dtype[Any]:
    try:
        import numpy as np
    except ImportError:
        raise Refused("the value is a numpy array, and numpy is not installed here") from None
    if type(text) is not str:
        raise bad_data("the name of a dtype", text)
    try:
        if text.startswith("["):
            fields: np.dtype[Any] = np.lib.format.descr_to_dtype(ast.literal_eval(text))
            _array_dtype(fields)
            return fields
        dtype: np.dtype[Any] = np.dtype(text)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"numpy has no dtype {text[:40]!r}: {error}") from None
    _checked(dtype)
    return dtype


def array_node(hint: Any) -> Node:
    """`np.ndarray` and `NDArray[np.float64]`: the dtype is checked when the hint names one."""
    import numpy as np

    name = type_name(hint)
    element: Any = None
    for argument in get_args(hint):
        if get_origin(argument) is np.dtype:
            (element,) = get_args(argument)
    if not (isinstance(element, type) and issubclass(element, np.generic)):
        element = None

    def checked(array: Any) -> Any:
        if element is not None and not np.issubdtype(array.dtype, element):
            raise Refused(f"expected {name}, got an array of {array.dtype}")
        return array

    def write(value: Any) -> Tree:
        tree = write_array(value)
        checked(value)
        return tree

    def read(tree: Tree) -> Any:
        return checked(read_array(tree))

    def from_json(data: Any) -> Any:
        dtype = None if element is None or _is_abstract(element) else np.dtype(element)
        try:
            array = np.array(data, dtype=dtype)
            _array_dtype(array.dtype)
        except (ValueError, TypeError) as error:
            raise Refused(f"expected nested arrays of numbers: {error}") from None
        return checked(array)

    return Node(name, write, read, from_json, frozenset({np.ndarray}), frozenset({NDARRAY}))


def _is_abstract(cls: Any) -> bool:
    """np.generic, np.number, np.floating and such: any scalar below them."""
    import numpy as np

    return cls in (
        np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact, np.floating,
        np.complexfloating, np.flexible, np.character,
    )  # fmt: skip


def scalar_node(cls: Any) -> Node:
    import numpy as np

    name = type_name(cls)
    abstract = _is_abstract(cls)

    def fits(value: Any) -> bool:
        return isinstance(value, cls) if abstract else type(value) is cls

    def write(value: Any) -> Tree:
        if not (fits(value) and isinstance(value, np.generic)):
            raise wrong_type(name, value, cls)
        return write_scalar(value)

    def read(tree: Tree) -> Any:
        value = read_scalar(tree)
        if not fits(value):
            raise bad_data(name, value)
        return value

    def from_json(data: Any) -> Any:
        try:
            return cls(data)
        except (TypeError, ValueError, OverflowError) as error:
            raise Refused(f"expected {name}: {error}") from None

    return Node(name, write, read, from_json, None if abstract else frozenset({cls}), frozenset({NUMPY_SCALAR}))
