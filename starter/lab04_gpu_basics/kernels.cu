// Lab 04: copies and warp reductions in CUDA C++, compiled by NVRTC (no headers are needed, none is there).
//
// Every kernel is launched with blocks of a multiple of 32 threads. `src` and `dst` don't overlap and begin at multiples
// of 16 bytes. Nothing outside dst[0 … n-1] may be written, nothing outside src may be read.

#define WARP_LANES 32
#define FULL_MASK 0xffffffffu
#define MINUS_INFINITY __int_as_float(0xff800000)

// dst[i] = src[i] for i < n, any number of blocks. 16 bytes a load: every lane moves a float4.
extern "C" __global__ void copy_coalesced(const float* __restrict__ src, float* __restrict__ dst, long long n) {
    // TODO: float4 loads and stores in a loop over the grid, then what is left when 4 doesn't divide n
}

// dst[i] = src[i * stride] for i < n, any number of blocks. One element a lane and load.
extern "C" __global__ void copy_strided(const float* __restrict__ src, float* __restrict__ dst, long long n,
                                        long long stride) {
    // TODO: a loop over the grid
}

// Every group of 32 neighbours is summed: dst[i] = sum of src[j], j < n, over the group of i. One element a thread; the
// grid covers n. The reduction is done `rounds` times, each time on a 32nd of the last result (so the answer stays the
// same): that is what the benchmark times. Five exchanges a reduction.
extern "C" __global__ void warp_sum_shuffle(const float* __restrict__ src, float* __restrict__ dst, long long n,
                                            int rounds) {
    // TODO: a butterfly of __shfl_xor_sync; lanes beyond n stay in it
}

// The same with the maximum, once.
extern "C" __global__ void warp_max_shuffle(const float* __restrict__ src, float* __restrict__ dst, long long n) {
    // TODO: the butterfly with fmaxf; what do lanes beyond n hold?
}

// warp_sum_shuffle through shared memory, without a shuffle: each warp has 32 words of its own.
extern "C" __global__ void warp_sum_shared(const float* __restrict__ src, float* __restrict__ dst, long long n,
                                           int rounds) {
    // TODO: store, synchronise the warp, load the partner's, synchronise again
}
