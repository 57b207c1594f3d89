// How long blocks that all need each other's part of some bytes take to exchange them, step after step: no less can a
// step of a recurrent loop take whose state is spread over them. Nothing is computed.
//
//   exchange_floor STEPS (cluster|grid BLOCKS BYTES)...     prints one line each: SCOPE BLOCKS BYTES MICROSECONDS
//
// cluster: every block stores its part into the shared memory of all blocks by st.async, whose bytes a barrier there
// counts (one block alone: shared memory and a barrier of the block). grid: through L2; the data itself says that it has
// come. Both have two buffers: who has all of a step knows that nobody reads the step before the last any more.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <cuda_runtime.h>

constexpr int THREADS = 256, REPEATS = 5;

#define CHECK(call)                                                                        \
  do {                                                                                     \
    const cudaError_t error = (call);                                                      \
    if (error != cudaSuccess) {                                                            \
      std::fprintf(stderr, "exchange_floor: %s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                                        \
    }                                                                                      \
  } while (0)

__device__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ uint32_t in_block(uint32_t address, uint32_t rank) {
  uint32_t result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}

__device__ void expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

__device__ void await(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
}

__device__ void await_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__global__ void in_cluster(int steps, int vectors, uint32_t* sink) {
  extern __shared__ uint4 buffers[];
  __shared__ uint64_t barriers[2];
  uint32_t rank, blocks;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  if (threadIdx.x == 0) {
    for (uint64_t* barrier : {barriers, barriers + 1}) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
      expect(barrier, vectors * 16);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  await_cluster();
  const int part = vectors / int(blocks);
  uint32_t sum = rank, parity[2] = {0, 0};
  for (int t = 0; t < steps; ++t) {
    const int which = t & 1;
    uint4* buffer = buffers + which * vectors;
    for (int k = threadIdx.x; k < part * int(blocks); k += THREADS) {
      const uint32_t peer = k / part;
      const uint32_t to = in_block(shared_address(buffer + rank * part + k % part), peer);
      const uint32_t barrier = in_block(shared_address(barriers + which), peer);
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %1, %2}, [%3];"
                   ::"r"(to), "r"(sum), "r"(t), "r"(barrier) : "memory");
    }
    await(barriers + which, parity[which]);
    parity[which] ^= 1;
    sum += buffer[(threadIdx.x * 7) % vectors].x;
    __syncthreads();
    // Armed again before this block sends the next step, so before anybody can send the one after it.
    if (threadIdx.x == 0) expect(barriers + which, vectors * 16);
    __syncthreads();
  }
  await_cluster();
  if (sum == 0xdeadbeef) *sink = sum;
}

__global__ void in_block_alone(int steps, int vectors, uint32_t* sink) {
  extern __shared__ uint4 buffers[];
  uint32_t sum = 0;
  for (int t = 0; t < steps; ++t) {
    uint4* buffer = buffers + (t & 1) * vectors;
    for (int i = threadIdx.x; i < vectors; i += THREADS) buffer[i] = make_uint4(sum, t, sum, t);
    __syncthreads();
    sum += buffer[(threadIdx.x * 7) % vectors].x;
  }
  if (sum == 0xdeadbeef) *sink = sum;
}

__device__ uint4 load(const uint4* p) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}

// Every thread reads EACH vectors, all of them before it looks at any.
template <int EACH>
__global__ void in_grid(int steps, int vectors, uint4* exchange, uint32_t* sink) {
  extern __shared__ uint4 copy[];
  const int part = (vectors + gridDim.x - 1) / gridDim.x;
  uint32_t sum = 0;
  for (int t = 0; t < steps; ++t) {
    uint4* buffer = exchange + (t & 1) * vectors;
    const uint32_t tag = t + 1;
    for (int i = threadIdx.x; i < part; i += THREADS) {
      const int at = blockIdx.x * part + i;
      if (at < vectors)
        asm volatile("st.volatile.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(buffer + at), "r"(tag) : "memory");
    }
    uint4 v[EACH];
    bool come;
    do {
      come = true;
#pragma unroll
      for (int k = 0; k < EACH; ++k) v[k] = load(buffer + min(int(threadIdx.x) + k * THREADS, vectors - 1));
#pragma unroll
      for (int k = 0; k < EACH; ++k) come &= v[k].x == tag && v[k].y == tag && v[k].z == tag && v[k].w == tag;
    } while (!come);
#pragma unroll
    for (int k = 0; k < EACH; ++k) copy[threadIdx.x + k * THREADS] = v[k];
    __syncthreads();
    sum += copy[(threadIdx.x * 7) % vectors].x;
    __syncthreads();
  }
  if (sum == 0xdeadbeef) *sink = sum;
}

// Microseconds a step, the median of REPEATS launches after one that warms up.
template <class Launch>
float timed(int steps, Launch launch) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  float times[REPEATS + 1];
  for (float& time : times) {
    CHECK(cudaEventRecord(begin));
    launch();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&time, begin, end));
  }
  std::sort(times + 1, times + REPEATS + 1);
  return times[1 + REPEATS / 2] * 1e3f / steps;
}

float cluster(int steps, int blocks, int bytes, uint32_t* sink) {
  int vectors = bytes / 16;
  const auto kernel = blocks == 1 ? in_block_alone : in_cluster;
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 2 * bytes));
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {unsigned(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = 2 * bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return timed(steps, [&] { CHECK(cudaLaunchKernelEx(&config, kernel, steps, vectors, sink)); });
}

template <int EACH>
float grid_of(int steps, int blocks, int vectors, uint4* exchange, uint32_t* sink) {
  CHECK(cudaFuncSetAttribute(in_grid<EACH>, cudaFuncAttributeMaxDynamicSharedMemorySize, EACH * THREADS * 16));
  void* arguments[] = {&steps, &vectors, &exchange, &sink};
  return timed(steps, [&] {
    CHECK(cudaMemsetAsync(exchange, 0, 2 * vectors * 16));
    CHECK(cudaLaunchCooperativeKernel((const void*)in_grid<EACH>, dim3(blocks), dim3(THREADS), arguments, EACH * THREADS * 16, 0));
  });
}

float grid(int steps, int blocks, int bytes, uint32_t* sink) {
  const int vectors = bytes / 16, each = (vectors + THREADS - 1) / THREADS;
  uint4* exchange;
  CHECK(cudaMalloc(&exchange, 2 * bytes));
  const float time = each <= 1   ? grid_of<1>(steps, blocks, vectors, exchange, sink)
                     : each <= 2 ? grid_of<2>(steps, blocks, vectors, exchange, sink)
                     : each <= 4 ? grid_of<4>(steps, blocks, vectors, exchange, sink)
                     : each <= 8 ? grid_of<8>(steps, blocks, vectors, exchange, sink)
                                 : -1;
  CHECK(cudaFree(exchange));
  return time;
}

int main(int count, char** words) {
  const int steps = count > 1 ? std::atoi(words[1]) : 0;
  if (steps < 1 || count < 5 || (count - 2) % 3 != 0) {
    std::fprintf(stderr, "usage: exchange_floor STEPS (cluster|grid BLOCKS BYTES)...\n");
    return 2;
  }
  uint32_t* sink;
  CHECK(cudaMalloc(&sink, 4));
  for (int i = 2; i < count; i += 3) {
    const int blocks = std::atoi(words[i + 1]), bytes = std::atoi(words[i + 2]);
    const bool is_grid = std::strcmp(words[i], "grid") == 0;
    const float time = is_grid ? grid(steps, blocks, bytes, sink) : cluster(steps, blocks, bytes, sink);
    std::printf("%s %d %d %.4f\n", words[i], blocks, bytes, time);
  }
  return 0;
}
