// Lab 04: copies and warp reductions in CUDA C++, compiled by NVRTC (no headers are needed, none is there).
//
// Every kernel is launched with blocks of a multiple of 32 threads. `src` and `dst` don't overlap and begin at multiples
// of 16 bytes. Nothing outside dst[0 … n-1] may be written, nothing outside src may be read.

#define WARP_LANES 32
#define FULL_MASK 0xffffffffu
#define MINUS_INFINITY __int_as_float(0xff800000)

// dst[i] = src[i] for i < n, any number of blocks. 16 bytes a load: every lane moves a float4.
extern "C" __global__ void copy_coalesced(const float* __restrict__ src, float* __restrict__ dst, long long n) {
    // BEGIN SOLUTION
    // STARTER: // TODO: float4 loads and stores in a loop over the grid, then what is left when 4 doesn't divide n
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long threads = (long long)gridDim.x * blockDim.x;
    const long long vectors = n / 4;
    const float4* __restrict__ wide_src = reinterpret_cast<const float4*>(src);
    float4* __restrict__ wide_dst = reinterpret_cast<float4*>(dst);
    for (long long v = first; v < vectors; v += threads) {
        wide_dst[v] = wide_src[v];
    }
    // At most three elements are left; the first threads of the grid take one each.
    const long long rest = vectors * 4 + first;
    if (rest < n) {
        dst[rest] = src[rest];
    }
    // END SOLUTION
}

// dst[i] = src[i * stride] for i < n, any number of blocks. One element a lane and load.
extern "C" __global__ void copy_strided(const float* __restrict__ src, float* __restrict__ dst, long long n,
                                        long long stride) {
    // BEGIN SOLUTION
    // STARTER: // TODO: a loop over the grid
    const long long threads = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        dst[i] = src[i * stride];
    }
    // END SOLUTION
}

// Every group of 32 neighbours is summed: dst[i] = sum of src[j], j < n, over the group of i. One element a thread; the
// grid covers n. The reduction is done `rounds` times, each time on a 32nd of the last result (so the answer stays the
// same): that is what the benchmark times. Five exchanges a reduction.
extern "C" __global__ void warp_sum_shuffle(const float* __restrict__ src, float* __restrict__ dst, long long n,
                                            int rounds) {
    // BEGIN SOLUTION
    // STARTER: // TODO: a butterfly of __shfl_xor_sync; lanes beyond n stay in it
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    float value = i < n ? src[i] : 0.0f;
    for (int round = 0; round < rounds; ++round) {
        if (round > 0) {
            value *= 1.0f / WARP_LANES;
        }
#pragma unroll
        for (int offset = WARP_LANES / 2; offset > 0; offset /= 2) {
            value += __shfl_xor_sync(FULL_MASK, value, offset);
        }
    }
    if (i < n) {
        dst[i] = value;
    }
    // END SOLUTION
}

// The same with the maximum, once.
extern "C" __global__ void warp_max_shuffle(const float* __restrict__ src, float* __restrict__ dst, long long n) {
    // BEGIN SOLUTION
    // STARTER: // TODO: the butterfly with fmaxf; what do lanes beyond n hold?
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    float value = i < n ? src[i] : MINUS_INFINITY;
#pragma unroll
    for (int offset = WARP_LANES / 2; offset > 0; offset /= 2) {
        value = fmaxf(value, __shfl_xor_sync(FULL_MASK, value, offset));
    }
    if (i < n) {
        dst[i] = value;
    }
    // END SOLUTION
}

// warp_sum_shuffle through shared memory, without a shuffle: each warp has 32 words of its own.
extern "C" __global__ void warp_sum_shared(const float* __restrict__ src, float* __restrict__ dst, long long n,
                                           int rounds) {
    // BEGIN SOLUTION
    // STARTER: // TODO: store, synchronise the warp, load the partner's, synchronise again
    __shared__ float exchange[1024];
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const int lane = threadIdx.x % WARP_LANES;
    float* mine = exchange + (threadIdx.x - lane);
    float value = i < n ? src[i] : 0.0f;
    for (int round = 0; round < rounds; ++round) {
        if (round > 0) {
            value *= 1.0f / WARP_LANES;
        }
#pragma unroll
        for (int offset = WARP_LANES / 2; offset > 0; offset /= 2) {
            mine[lane] = value;
            __syncwarp();
            value += mine[lane ^ offset];
            // The partner may still be reading what the next step overwrites.
            __syncwarp();
        }
    }
    if (i < n) {
        dst[i] = value;
    }
    // END SOLUTION
}
// kept-from-students-01ba72839e8e7340
