// The hand-written kernels that `tilewire bench sendrecv --engine cuda` compares with. Frozen: what the benchmark loads is frozen.ptx beside
// this file, made from it once by
//     nvcc -ptx -O3 -std=c++17 -arch=sm_80 -o frozen.ptx frozen.cu
// so that nothing but the driver is needed to run it. All arguments are 8 bytes wide.
//
// They are the best schemes that were found by hand: four groups of 256 threads that take slots in turn (one way), four and four
// groups of 128 (both ways), a slot's TAIL and HEAD each on a line of its own, start counters in memory, packets with credits. They poll
// without deadline or abort word: whatever those cost us counts against us.
#include <cstdint>
typedef unsigned long long u64;

static __device__ __forceinline__ u64 load_acquire(const u64 *p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
static __device__ __forceinline__ u64 load_relaxed(const u64 *p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
static __device__ __forceinline__ void store_release(u64 *p, u64 v) {
  asm volatile("st.release.sys.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
static __device__ __forceinline__ void store_relaxed(u64 *p, u64 v) {
  asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
static __device__ __forceinline__ void group_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// U vectors of 16 bytes in flight for each thread.
template <int U> static __device__ __forceinline__ void copy(uint4 *to, const uint4 *from, u64 n, int thread, int threads) {
  u64 i = thread;
  for (; i + (U - 1) * threads < n; i += U * threads) {
    uint4 v[U];
#pragma unroll
    for (int j = 0; j < U; j++) v[j] = from[i + j * threads];
#pragma unroll
    for (int j = 0; j < U; j++) to[i + j * threads] = v[j];
  }
  for (; i < n; i += threads) to[i] = from[i];
}

extern "C" __global__ void empty() {}

// Holds a stream for so long: what the host queues meanwhile then runs without waiting for it.
extern "C" __global__ void hold(u64 ns) {
  u64 start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - start < ns);
}

// One hop: every block copies its part.
extern "C" __global__ void __launch_bounds__(512) one_hop(char *to, const char *from, u64 bytes) {
  u64 part = bytes / gridDim.x, first = part * blockIdx.x;
  copy<8>((uint4 *)(to + first), (const uint4 *)(from + first), part / 16, threadIdx.x, blockDim.x);
}

// Two hops, one way. Words of a slot are 16 apart: a line of 128 bytes.
#define LINE 16
template <int U, int T> static __device__ __forceinline__ void sender(char *staging, const char *from, u64 bytes, u64 slot_bytes, u64 depth, u64 *tail, u64 *head, u64 *step) {
  int groups = blockDim.x / T, group = threadIdx.x / T, thread = threadIdx.x % T;
  u64 steps = bytes / slot_bytes / gridDim.x, block = blockIdx.x;
  from += steps * slot_bytes * block;
  staging += block * depth * slot_bytes;
  tail += block * depth * LINE;
  head += block * depth * LINE;
  step += block * 16;
  u64 start = *step;
  __syncthreads();
  for (u64 t = group; t < steps; t += groups) {
    u64 g = start + t, slot = g % depth;
    if (thread == 0 && g >= depth) while (load_relaxed(head + slot * LINE) < g - depth + 1);
    group_barrier(group + 1, T);
    copy<U>((uint4 *)(staging + slot * slot_bytes), (const uint4 *)(from + t * slot_bytes), slot_bytes / 16, thread, T);
    group_barrier(group + 1, T);
    if (thread == 0) store_release(tail + slot * LINE, g + 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) *step = start + steps;
}
template <int U, int T> static __device__ __forceinline__ void receiver(char *to, const char *staging, u64 bytes, u64 slot_bytes, u64 depth, u64 *tail, u64 *head, u64 *step) {
  int groups = blockDim.x / T, group = threadIdx.x / T, thread = threadIdx.x % T;
  u64 steps = bytes / slot_bytes / gridDim.x, block = blockIdx.x;
  to += steps * slot_bytes * block;
  staging += block * depth * slot_bytes;
  tail += block * depth * LINE;
  head += block * depth * LINE;
  step += block * 16;
  u64 start = *step;
  __syncthreads();
  for (u64 t = group; t < steps; t += groups) {
    u64 g = start + t, slot = g % depth;
    if (thread == 0) while (load_acquire(tail + slot * LINE) < g + 1);
    group_barrier(group + 1, T);
    copy<U>((uint4 *)(to + t * slot_bytes), (const uint4 *)(staging + slot * slot_bytes), slot_bytes / 16, thread, T);
    group_barrier(group + 1, T);
    if (thread == 0) store_relaxed(head + slot * LINE, g + 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) *step = start + steps;
}
extern "C" __global__ void __launch_bounds__(1024) two_hop_send(char *staging, const char *from, u64 bytes, u64 slot_bytes, u64 depth, u64 *tail, u64 *head, u64 *step) {
  sender<4, 256>(staging, from, bytes, slot_bytes, depth, tail, head, step);
}
extern "C" __global__ void __launch_bounds__(1024) two_hop_receive(char *to, const char *staging, u64 bytes, u64 slot_bytes, u64 depth, u64 *tail, u64 *head, u64 *step) {
  receiver<4, 256>(to, staging, bytes, slot_bytes, depth, tail, head, step);
}

// Both ways in one block: groups 0 to G - 1 send, the others receive.
template <int U, int T, int G>
static __device__ __forceinline__ void both(char *to, const char *from, char *staging_there, const char *staging_here, u64 bytes, u64 slot_bytes, u64 depth, u64 *tail_there, u64 *tail_here, u64 *head_there, u64 *head_here, u64 *step) {
  int number = threadIdx.x / T, thread = threadIdx.x % T, group = number % G;
  bool sends = number < G;
  u64 steps = bytes / slot_bytes / gridDim.x, block = blockIdx.x, first = steps * slot_bytes * block;
  u64 area = block * depth * slot_bytes, words = block * depth * LINE;
  u64 *own = step + (block * 2 + (sends ? 0 : 1)) * 16 + group, start = *own;
  group_barrier(number + 1, T);
  for (u64 t = group; t < steps; t += G) {
    u64 g = start + t, slot = g % depth, at = area + slot * slot_bytes, word = words + slot * LINE;
    if (sends) {
      if (thread == 0 && g >= depth) while (load_relaxed(head_here + word) < g - depth + 1);
      group_barrier(number + 1, T);
      copy<U>((uint4 *)(staging_there + at), (const uint4 *)(from + first + t * slot_bytes), slot_bytes / 16, thread, T);
      group_barrier(number + 1, T);
      if (thread == 0) store_release(tail_there + word, g + 1);
    } else {
      if (thread == 0) while (load_acquire(tail_here + word) < g + 1);
      group_barrier(number + 1, T);
      copy<U>((uint4 *)(to + first + t * slot_bytes), (const uint4 *)(staging_here + at), slot_bytes / 16, thread, T);
      group_barrier(number + 1, T);
      if (thread == 0) store_relaxed(head_there + word, g + 1);
    }
  }
  if (thread == 0) *own = start + steps;
}
extern "C" __global__ void __launch_bounds__(1024) both_ways(char *to, const char *from, char *staging_there, const char *staging_here, u64 bytes, u64 slot_bytes, u64 depth, u64 *tail_there, u64 *tail_here, u64 *head_there, u64 *head_here, u64 *step) {
  both<4, 128, 4>(to, from, staging_there, staging_here, bytes, slot_bytes, depth, tail_there, tail_here, head_there, head_here, step);
}

// Packets {data, flag, data, flag}: two areas in turn, credited.
extern "C" __global__ void __launch_bounds__(1024) packet_send(uint4 *packets, const uint2 *from, u64 bytes, u64 *step, const u64 *credit) {
  step += blockIdx.x * 16;
  u64 number = *step + 1, count = bytes / 8 / gridDim.x, first = count * blockIdx.x;
  uint32_t flag = (uint32_t)number;
  if (threadIdx.x == 0 && number > 2) while (load_relaxed(credit + blockIdx.x * LINE) < number - 2);
  __syncthreads();
  uint4 *area = packets + (number & 1) * (bytes / 8);
  for (u64 i = first + threadIdx.x; i < first + count; i += blockDim.x) {
    uint2 v = from[i];
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(area + i), "r"(v.x), "r"(flag), "r"(v.y), "r"(flag) : "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) *step = number;
}
extern "C" __global__ void __launch_bounds__(1024) packet_receive(uint2 *to, uint4 *packets, u64 bytes, u64 *step, u64 *credit) {
  step += blockIdx.x * 16;
  u64 number = *step + 1, count = bytes / 8 / gridDim.x, first = count * blockIdx.x;
  uint32_t flag = (uint32_t)number;
  uint4 *area = packets + (number & 1) * (bytes / 8);
  for (u64 i = first + threadIdx.x; i < first + count; i += blockDim.x) {
    uint32_t a, b, c, d;
    do {
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(area + i) : "memory");
    } while (b != flag || d != flag);
    to[i] = make_uint2(a, c);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    store_relaxed(credit + blockIdx.x * LINE, number);
    *step = number;
  }
}

// One-shot all-reduce of four ranks in packets, all of whom have an inbox: [launch mod 2][from][packets]. No credits: whoever has what a peer
// sent in one launch knows that it has read what came in the one before. `step` is a line for each block.
extern "C" __global__ void __launch_bounds__(1024) packet_reduce(float2 *to, const float2 *from, uint4 *inbox0, uint4 *inbox1, uint4 *inbox2, uint4 *inbox3, u64 bytes, u64 rank, u64 *step) {
  uint4 *inbox[4] = {inbox0, inbox1, inbox2, inbox3};
  step += blockIdx.x * 16;
  u64 number = *step + 1, count = bytes / 8, half = (number & 1) * 4 * count;
  uint32_t flag = (uint32_t)number;
  for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    float2 own = from[i];
    uint4 packet = make_uint4(__float_as_uint(own.x), flag, __float_as_uint(own.y), flag);
#pragma unroll
    for (int peer = 0; peer < 4; peer++)
      if (peer != rank) asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(inbox[peer] + half + rank * count + i), "r"(packet.x), "r"(packet.y), "r"(packet.z), "r"(packet.w) : "memory");
    uint4 got[4];
    bool all;
    do {
      all = true;
#pragma unroll
      for (int peer = 0; peer < 4; peer++) {
        if (peer == rank) { got[peer] = packet; continue; }
        asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(got[peer].x), "=r"(got[peer].y), "=r"(got[peer].z), "=r"(got[peer].w) : "l"(inbox[rank] + half + peer * count + i) : "memory");
        all &= got[peer].y == flag && got[peer].w == flag;
      }
    } while (!all);
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int peer = 0; peer < 4; peer++) { sum.x += __uint_as_float(got[peer].x); sum.y += __uint_as_float(got[peer].z); }
    to[i] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) *step = number;
}
