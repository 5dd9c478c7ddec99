// Other habits: 128-bit accesses by inline assembly, two vectors a turn, rolled loops, blocks that synchronise whole.

#define FULL_MASK 0xffffffffu

extern "C" __global__ void copy_coalesced(const float* src, float* dst, long long n) {
    const long long step = (long long)gridDim.x * blockDim.x * 4;
    long long i = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (; i + 3 < n; i += step) {
        unsigned a, b, c, d;
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(src + i));
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(dst + i), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
    }
    // The thread whose vector is cut copies what there is of it.
    for (; i < n && i + 3 >= n; ++i) {
        dst[i] = src[i];
        if ((i & 3) == 3) {
            break;
        }
    }
}

extern "C" __global__ void copy_strided(const float* src, float* dst, long long n, long long stride) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    src += i * stride;
    const long long threads = (long long)gridDim.x * blockDim.x;
    while (i < n) {
        dst[i] = *src;
        i += threads;
        src += threads * stride;
    }
}

template <typename Op>
__device__ float butterfly(float value, Op op) {
#pragma unroll 1
    for (int offset = 1; offset < 32; offset <<= 1) {
        value = op(value, __shfl_xor_sync(FULL_MASK, value, offset));
    }
    return value;
}

extern "C" __global__ void warp_sum_shuffle(const float* src, float* dst, long long n, int rounds) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    float value = 0.0f;
    if (i < n) {
        value = src[i];
    }
    value = butterfly(value, [](float a, float b) { return a + b; });
    for (int round = 1; round < rounds; ++round) {
        value = butterfly(value * 0.03125f, [](float a, float b) { return a + b; });
    }
    if (i < n) {
        dst[i] = value;
    }
}

extern "C" __global__ void warp_max_shuffle(const float* src, float* dst, long long n) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    // A lane beyond the end repeats the last element: no neutral value is needed.
    float value = src[i < n ? i : n - 1];
    value = butterfly(value, [](float a, float b) { return a > b ? a : b; });
    if (i < n) {
        dst[i] = value;
    }
}

extern "C" __global__ void warp_sum_shared(const float* src, float* dst, long long n, int rounds) {
    __shared__ float held[2][1024];
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    float value = i < n ? src[i] : 0.0f;
    for (int round = 0; round < rounds; ++round) {
        value *= round ? 0.03125f : 1.0f;
        for (int step = 0; step < 5; ++step) {
            // Two buffers in turn: one barrier a step is enough.
            held[(5 * round + step) & 1][threadIdx.x] = value;
            __syncthreads();
            value += held[(5 * round + step) & 1][threadIdx.x ^ (16 >> step)];
        }
    }
    if (i < n) {
        dst[i] = value;
    }
}
// kept-from-students-5209a2eded0a59a8
