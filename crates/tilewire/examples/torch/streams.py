"""Launches on PyTorch's streams and in its memory, captured by `torch.cuda.graph` and replayed 1,000 times.

Usage: streams.py PATH_OF_THE_LIBRARY (target/PROFILE/examples/libtorch_module.so, built by
`cargo build -p tilewire --example torch_module`). Needs a GPU and PyTorch.
"""

import ctypes
import sys
import time

import torch

REPLAYS = 1000
ROWS, COLS, WIDE, FIRST = 64, 96, 160, 32


class Theirs(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_uint64),
        ("rows", ctypes.c_size_t),
        ("cols", ctypes.c_size_t),
        ("stride", ctypes.c_size_t),
        ("number", ctypes.c_uint64),
    ]


Free = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
lib = ctypes.CDLL(sys.argv[1])
lib.last_error.restype = ctypes.c_char_p
lib.ranks_open.restype = ctypes.c_void_p
lib.ranks_open.argtypes = [ctypes.POINTER(Theirs), ctypes.POINTER(Theirs), Free]
lib.ranks_run.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
lib.ranks_sync.argtypes = [ctypes.c_void_p]
lib.ranks_close.argtypes = [ctypes.c_void_p]

# Tensors live here until the library says that it needs them no more.
kept = {}


@Free
def free(number):
    kept.pop(number, None)


def theirs(tensor):
    number = len(kept) + 1
    kept[number] = tensor
    rows, cols = tensor.shape
    assert tensor.stride(1) == 1 and tensor.dtype == torch.float32
    return Theirs(tensor.data_ptr(), rows, cols, tensor.stride(0), number)


def check(status):
    if status != 0:
        raise RuntimeError(lib.last_error().decode())


# The inputs and outputs are columns of wider matrices, so their rows are apart.
wide_x = [torch.full((ROWS, WIDE), -1.0, device="cuda") for _ in range(2)]
wide_y = [torch.full((ROWS, WIDE), -2.0, device="cuda") for _ in range(2)]
x = [wide[:, FIRST : FIRST + COLS] for wide in wide_x]
y = [wide[:, FIRST : FIRST + COLS] for wide in wide_y]
torch.cuda.synchronize()
ranks = lib.ranks_open((Theirs * 2)(*map(theirs, x)), (Theirs * 2)(*map(theirs, y)), free)
if not ranks:
    raise RuntimeError(lib.last_error().decode())
side = torch.cuda.Stream()


def both_ranks():
    """Both ranks side by side: one on the current stream, the other on a fork of it."""
    main = torch.cuda.current_stream()
    side.wait_stream(main)
    check(lib.ranks_run(ranks, 0, main.cuda_stream))
    check(lib.ranks_run(ranks, 1, side.cuda_stream))
    main.wait_stream(side)


def fill(step):
    x[0].fill_(float(step))
    x[1].copy_(torch.arange(ROWS * COLS, device="cuda", dtype=torch.float32).reshape(ROWS, COLS))


def must(step):
    return torch.arange(ROWS * COLS, dtype=torch.float32).reshape(ROWS, COLS) + float(step)


# Launches on its streams, in order with its kernels before and after.
logs = torch.zeros(20, 2, ROWS, COLS, device="cuda")
for step in range(20):
    fill(step)
    both_ranks()
    for rank in range(2):
        logs[step, rank].copy_(y[rank])
torch.cuda.synchronize()
check(lib.ranks_sync(ranks))
for step in range(20):
    for rank in range(2):
        assert torch.equal(logs[step, rank].cpu(), must(step)), f"step {step}, rank {rank}"
print("launches on its streams: ok")

# Captured by its own capture, and replayed with changing data; now and then with launches in between.
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    both_ranks()
logs = torch.zeros(REPLAYS, 2, 2, device="cuda")
for step in range(REPLAYS):
    fill(step)
    graph.replay()
    for rank in range(2):
        logs[step, rank, 0].copy_(y[rank][0, 5])
        logs[step, rank, 1].copy_(y[rank][ROWS - 1, COLS - 1])
    if step % 50 == 49:
        both_ranks()
torch.cuda.synchronize()
check(lib.ranks_sync(ranks))
steps = torch.arange(REPLAYS, dtype=torch.float32)
for rank in range(2):
    assert torch.equal(logs[:, rank, 0].cpu(), steps + 5), f"rank {rank}"
    assert torch.equal(logs[:, rank, 1].cpu(), steps + (ROWS * COLS - 1)), f"rank {rank}"
print(f"{REPLAYS} replays with changing data: ok")

# What lies beside the columns is as it was.
for wide, number in [(w, -1.0) for w in wide_x] + [(w, -2.0) for w in wide_y]:
    beside = torch.cat([wide[:, :FIRST], wide[:, FIRST + COLS :]], dim=1)
    assert bool((beside == number).all())
print("columns beside: ok")

# Its owner lets go of the tensors; the launch and the graph still use them.
fill(7)
both_ranks()
last = [matrix.data_ptr() for matrix in x + y]
del x, y, wide_x, wide_y
torch.cuda.synchronize()
assert len(kept) == 4 and sorted(t.data_ptr() for t in kept.values()) == sorted(last)
assert torch.equal(list(kept.values())[2].cpu(), must(7))
print("tensors that their owner let go of: ok")

lib.all_reduce_microseconds.restype = ctypes.c_double
lib.all_reduce_microseconds.argtypes = [ctypes.c_bool]
for _ in range(3):
    plain, busy = [lib.all_reduce_microseconds(word) for word in (False, True)]
    assert plain > 0 and busy > 0, lib.last_error().decode()
    print(f"an all-reduce of 16 numbers in a graph: {plain:.2f} us, with the busy word {busy:.2f} us")

for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
start = time.perf_counter()
for _ in range(REPLAYS):
    graph.replay()
torch.cuda.synchronize()
print(f"a replay takes {1e6 * (time.perf_counter() - start) / REPLAYS:.2f} us")
check(lib.ranks_sync(ranks))
del graph
torch.cuda.synchronize()
lib.ranks_close(ranks)
print(f"tensors still kept after the end: {len(kept)} (their graph was let go of later if not 0)")
