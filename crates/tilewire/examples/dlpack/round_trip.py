"""Tensors of tilewire as arrays of numpy and back, in place: round_trip.py LIBRARY."""

import ctypes
import gc
import sys
import weakref

import numpy as np

tw = ctypes.CDLL(sys.argv[1])
P, N = ctypes.c_void_p, ctypes.c_size_t
for name, result, arguments in [
    ("tensor_new", P, [N, N, N, N]),
    ("tensor_free", None, [P]),
    ("tensor_extent", N, [P, N]),
    ("tensor_get", ctypes.c_float, [P, N]),
    ("tensor_add", ctypes.c_bool, [P, ctypes.c_float]),
    ("freed", ctypes.c_uint32, []),
    ("tensor_give", P, [P, ctypes.c_bool]),
    ("capsule_free", None, [P, ctypes.c_bool]),
    ("tensor_take", P, [P, ctypes.c_bool, ctypes.POINTER(P)]),
    ("why_free", None, [P]),
]:
    function = getattr(tw, name)
    function.restype, function.argtypes = result, arguments

api = ctypes.pythonapi
api.PyCapsule_New.restype, api.PyCapsule_New.argtypes = ctypes.py_object, [P, ctypes.c_char_p, P]
api.PyCapsule_IsValid.restype, api.PyCapsule_IsValid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = P, [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

# Capsules point to their names: these live as long as the program.
NAMES = [b"dltensor", b"dltensor_versioned"]
USED = [b"used_dltensor", b"used_dltensor_versioned"]


# A capsule that is being destroyed has no references, so its address is passed, not an object.
raw_valid = ctypes.PYFUNCTYPE(ctypes.c_int, P, ctypes.c_char_p)(("PyCapsule_IsValid", api))
raw_pointer = ctypes.PYFUNCTYPE(P, P, ctypes.c_char_p)(("PyCapsule_GetPointer", api))


@ctypes.PYFUNCTYPE(None, P)
def destroyed(capsule):
    """A capsule that nobody took is freed by who made it."""
    for versioned, name in enumerate(NAMES):
        if raw_valid(capsule, name):
            tw.capsule_free(raw_pointer(capsule, name), bool(versioned))


class Tensor:
    """A tensor of tilewire, for consumers of DLPack."""

    def __init__(self, pointer):
        self.pointer = pointer

    def __del__(self):
        tw.tensor_free(self.pointer)

    def __dlpack__(self, *, max_version=None, **_):
        versioned = max_version is not None and max_version[0] >= 1
        content = tw.tensor_give(self.pointer, versioned)
        return api.PyCapsule_New(content, NAMES[versioned], ctypes.cast(destroyed, P))

    def __dlpack_device__(self):
        return (1, 0)

    def extents(self):
        return tuple(tw.tensor_extent(self.pointer, which) for which in range(3))


def take(array, **how):
    """The tensor of an array, or the reason why there is none."""
    capsule = array.__dlpack__(**how)
    versioned = bool(api.PyCapsule_IsValid(capsule, NAMES[1]))
    content = api.PyCapsule_GetPointer(capsule, NAMES[versioned])
    assert api.PyCapsule_SetName(capsule, USED[versioned]) == 0
    why = P()
    pointer = tw.tensor_take(content, versioned, ctypes.byref(why))
    if pointer:
        return Tensor(pointer)
    reason = ctypes.cast(why, ctypes.c_char_p).value.decode()
    tw.why_free(why)
    return reason


def collected():
    gc.collect()
    return tw.freed()


HAS_VERSIONS = tuple(int(x) for x in np.__version__.split(".")[:2]) >= (2, 1)


def out_and_back_in():
    """Columns of a larger matrix, in place on both sides."""
    before = collected()
    tensor = Tensor(tw.tensor_new(5, 3, 7, 2))
    array = np.from_dlpack(tensor)
    assert array.dtype == np.float32 and array.shape == (5, 3) and array.strides == (28, 4), array.strides
    assert (array == np.arange(35).reshape(5, 7)[:, 2:5]).all()
    # A kernel writes what numpy reads, and the other way round.
    assert tw.tensor_add(tensor.pointer, 100.0)
    assert array[4, 2] == 132.0
    if HAS_VERSIONS:
        array[4, 2] = -1.0
        assert tw.tensor_get(tensor.pointer, 14) == -1.0
        # And back again: the same memory, now kept by numpy's capsule, which keeps ours.
        again = take(array, max_version=(1, 0))
        assert again.extents() == (5, 3, 7)
        assert tw.tensor_add(again.pointer, 1.0)
        assert array[4, 2] == 0.0
        del again
    # The array keeps the memory.
    del tensor
    assert collected() == before
    assert array[0, 0] == (103.0 if HAS_VERSIONS else 102.0)
    del array
    assert collected() == before + 1


def one_row_is_one_axis():
    array = np.from_dlpack(Tensor(tw.tensor_new(1, 9, 9, 0)))
    assert array.shape == (9,) and array[8] == 8.0


def capsules_that_nobody_takes_are_freed():
    before = collected()
    for version in [None, (1, 0)]:
        tensor = Tensor(tw.tensor_new(2, 2, 2, 0))
        capsule = tensor.__dlpack__(max_version=version)
        del tensor
        assert collected() == before
        del capsule
        before += 1
        assert collected() == before


class Array(np.ndarray):
    """An array that says when it goes."""


def arrays_come_in_and_go_once():
    versions = [{}, {"max_version": (1, 0)}] if HAS_VERSIONS else [{}]
    for how in versions:
        base = np.arange(24, dtype=np.float32).reshape(4, 6).view(Array)
        gone = weakref.ref(base)
        tensor = take(base[:, 1:4], **how)
        assert tensor.extents() == (4, 3, 6), tensor
        assert tw.tensor_get(tensor.pointer, 3) == 7.0
        assert tw.tensor_add(tensor.pointer, 0.5)
        assert base[3, 3] == 21.5 and base[3, 0] == 18.0 and base[3, 4] == 22.0
        base[0, 1] = 8.0
        assert tw.tensor_get(tensor.pointer, 0) == 8.0
        del base
        gc.collect()
        assert gone() is not None, "the tensor keeps the array"
        del tensor
        gc.collect()
        assert gone() is None, "and lets it go"


def what_cannot_come_in_is_refused_and_goes():
    def refused(array, reason, **how):
        array = array.view(Array)
        gone = weakref.ref(array)
        said = take(array, **how)
        assert isinstance(said, str) and reason in said, said
        del array
        gc.collect()
        assert gone() is None, "a refusal lets it go"

    refused(np.zeros((2, 2)), "not f32")
    refused(np.zeros((4, 3), dtype=np.float32).T, "contiguous()")
    refused(np.zeros((4, 6), dtype=np.float32)[:, ::4], "contiguous()")
    if HAS_VERSIONS:
        read_only = np.zeros(4, dtype=np.float32)
        read_only.flags.writeable = False
        refused(read_only, "is read-only", max_version=(1, 0))


for check in [
    out_and_back_in,
    one_row_is_one_axis,
    capsules_that_nobody_takes_are_freed,
    arrays_come_in_and_go_once,
    what_cannot_come_in_is_refused_and_goes,
]:
    check()
    print(f"{check.__name__}: ok")
print(f"numpy {np.__version__}, capsules with versions: {HAS_VERSIONS}")
